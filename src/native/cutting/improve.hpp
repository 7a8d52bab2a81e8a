// Better ways to cut all operators, found by changing one after the other.
#pragma once

#include "cutting/network.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace loadmaster::cutting {

struct Choice {
    std::vector<std::int64_t> option; // of every operator, counted from its first
    double makespan;                  // seconds, as `PieceSimulator` has it
};

// Changes the option of one operator after the other as long as all then ends earlier, or as early
// with less work. About `most` pieces are run for it.
Choice improve(const Network &network, std::span<const std::int64_t> option, std::int64_t most);

// Simulated annealing over the options of up to three operators that read from one another at once;
// at the end as `improve`. About `most` pieces are run for it, and a quarter of that for the end.
// Always the same for the same arguments.
Choice explore(const Network &network, std::span<const std::int64_t> option, std::int64_t most);

} // namespace loadmaster::cutting
