// Packing as time goes by, below a ceiling: only the free addresses of the moment matter, so that a
// pass over 100,000 buffers is short.
#pragma once

#include "common/budget.hpp"
#include "allocation/plain.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace loadmaster::allocation {

// Offsets of the caller's buffers; one that does not fit below the ceiling gets -1. Among the gaps
// in which a buffer fits, the best is tight, and the neighbour there ends at about the same time as
// the buffer, so that free space stays in one piece; `affinity` is the weight of the second. Empty
// once the budget is spent or `work`, the number of gaps to look at, is.
std::vector<std::int64_t> sweep(
    const Plain &plain, std::int64_t ceiling, double affinity, std::int64_t &work, Budget &budget);

// Best-fit in an order of birth, without a ceiling: the tightest gap, the lowest of equals. O(n log
// n). Knows no alignment.
std::vector<std::int64_t> sweep_best_fit(const Plain &plain, std::span<const std::int32_t> births);

} // namespace loadmaster::allocation
