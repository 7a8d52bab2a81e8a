// Better ways to cut all operators, found by changing a few at a time.
#pragma once

#include "cutting/network.hpp"

#include <cstdint>
#include <vector>

namespace loadmaster::cutting {

struct Choice {
    std::vector<std::int64_t> option; // of every operator, counted from its first
    double makespan;                  // seconds, as `PieceSimulator` has it
};

// Goes from the first option of every operator, by simulated annealing over those of up to three
// operators that read from one another at once, about `annealed` pieces of which are run. In the
// end it changes one operator after the other as long as all then ends earlier, or as early with
// less work; for that about `descended` pieces are run. Always the same for the same arguments.
Choice explore(const Network &network, std::int64_t annealed, std::int64_t descended);

} // namespace loadmaster::cutting
