// Better ways to cut all operators, found by changing one after the other.
#pragma once

#include "cutting/network.hpp"

#include <cstdint>
#include <vector>

namespace loadmaster::cutting {

// Goes from the first option of every operator, and changes one operator at a time: one after the
// other, as long as all then ends earlier, or as early with less work; then at random, by simulated
// annealing, a few times from the same choice. About `most` pieces are run for it. The results are
// options of every operator, counted from its first; the choice that ends first comes first.
std::vector<std::vector<std::int64_t>> improve(const Network &network, std::int64_t most);

} // namespace loadmaster::cutting
