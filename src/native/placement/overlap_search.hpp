// Large neighbourhood search over paths, each scheduled with its copies.
#pragma once

#include "common/budget.hpp"
#include "placement/schedule.hpp"
#include "placement/search.hpp"

namespace loadmaster::placement {

// Takes tensors out of `paths` and puts them back, cheaply at prices that vary at random around
// those of `advice`, and keeps what is not slower once the copies are scheduled, until `goal`
// seconds are reached or the budget's nodes (uses and kernels scheduled) are spent. `tensors` have
// the copies' costs at those prices; `advice.sure`, paths and order are not used. Deterministic for
// a seed.
Paths search_overlapping(const Tensors &tensors, const Kernels &kernels, const Advice &advice,
    const Links &links, const Paths &paths, double goal, std::uint64_t seed,
    allocation::Budget &budget);

} // namespace loadmaster::placement
