// What one core can hold at given prices: a content says how many jobs of each kind a core runs, one after another.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace loadmaster::mapping {

// Kinds of jobs: the parts of a core's time that one takes, what one is worth, and how many there are.
struct Wares {
    std::span<const std::int32_t> parts;
    std::span<const double> worth;
    std::span<const std::int32_t> count;
};

struct Content {
    double worth;
    std::vector<std::int32_t> jobs;  // of each kind
};

// The content of the greatest worth that takes no more than `grid` parts (bounded knapsack); what is worth nothing is left out.
// O(grid x kinds of jobs x log count).
Content best_content(const Wares &wares, std::int32_t grid);

}  // namespace loadmaster::mapping
