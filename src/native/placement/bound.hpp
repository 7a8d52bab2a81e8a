// A lower bound on the time of every placement, from prices that a solver or anybody proposes.
#pragma once

#include "placement/tensors.hpp"

namespace loadmaster::placement {

constexpr int kShareBits = 24; // shares of a kernel's time are whole multiples of 2^-24

struct Prices {
    std::span<const std::int64_t>
        memory; // of a byte while each kernel runs, in units of 2^-shift seconds
    std::span<const std::int32_t>
        shares; // kernels x (arithmetic, fast memory, slow memory), together at most 2^24
    std::span<const double> surcharge; // of each use's slow place, in seconds, where combinations
                                       // of places are told apart
    std::span<const std::uint8_t>
        noted; // uses whose places are told apart though their kernel has no table
    int shift = 0;
};

// The Lagrangian bound: memory is bought at its prices, and each tensor lives as cheaply as it can
// alone. A kernel's time is at least the mean of its parts weighted by its shares; or its operands
// pay a surcharge in the slow memory, and the kernel chooses the combination of places that costs
// it least after these, of those within its limit. Computed in whole numbers, costs rounded down;
// valid for all prices.
double lagrangian_bound(
    const Tensors &tensors, const Kernels &kernels, const Prices &prices, bool moves);

} // namespace loadmaster::placement
