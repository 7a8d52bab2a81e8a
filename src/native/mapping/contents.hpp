// What one core can hold at given prices: a content says how many jobs of each kind a core runs,
// one after another.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace loadmaster::mapping {

// Kinds of jobs: the time that one takes on a core, what one is worth, and how many there are.
struct Wares {
    std::span<const double> latency;
    std::span<const double> worth;
    std::span<const std::int32_t> count;
};

struct Content {
    double worth = 0.0;             // of `jobs`
    double at_most = 0.0;           // no content is worth more
    std::vector<std::int32_t> jobs; // of each kind
};

// The content of the greatest worth that takes no more than `room` (bounded knapsack); what is
// worth nothing is left out. Branch and bound: exact up to a ten-millionth, unless `nodes` do not
// suffice; then `at_most` says what may have been missed.
Content best_content(const Wares &wares, double room, std::int64_t nodes);

} // namespace loadmaster::mapping
