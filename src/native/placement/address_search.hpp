// Addresses of stays that let copies overlap computation for longer: a local search over packings,
// by the time of the schedule.
#pragma once

#include "common/budget.hpp"
#include "placement/schedule.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace loadmaster::placement {

struct FoundOffsets {
    std::vector<std::int64_t> offset;
    double seconds = 0;
};

// Moves blocks of a schedule (which has listed its paths) to other addresses, multiples of
// `alignment` below `capacity`, and keeps what is not slower, until `goal` seconds are reached or
// the budget (blocks and copies looked at) is spent. Deterministic for a seed.
FoundOffsets search_addresses(Schedule &schedule, std::span<const std::int64_t> offset,
    std::int64_t capacity, std::int64_t alignment, double goal, std::uint64_t seed,
    allocation::Budget &budget);

} // namespace loadmaster::placement
