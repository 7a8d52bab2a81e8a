// Placements that keep the limits: paths of all tensors, made one at a time and improved by taking
// some out and putting them back.
#pragma once

#include "common/budget.hpp"
#include "placement/path.hpp"
#include "placement/schedule.hpp"
#include "placement/tensors.hpp"

#include <cstdint>
#include <vector>

namespace loadmaster::placement {

// What a linear program says: prices by which paths are compared, and paths near its solution.
struct LpRounding {
    std::span<const double> memory;     // seconds per byte while each kernel runs
    std::span<const double> fast, slow; // seconds for each use in either memory
    PathsView guess;
};

struct Paths {
    std::vector<std::uint8_t> fast, stays, tail; // per use, per use, per tensor
    double seconds = 0;
    std::int64_t rounds = 0;
};

// Places every tensor, then takes tensors out and puts them back until `goal` seconds are reached
// or the budget's nodes (uses and kernels looked at) are spent. Where copies overlap
// kernels, placements are compared once these are scheduled, and `tensors` have the copies' costs
// at the prices. `base` is a placement that keeps the limits, where each kernel has what it cannot
// do without. Deterministic for a seed.
Paths search(const Tensors &tensors, const Kernels &kernels, const LpRounding &rounding,
    const Paths &base, bool moves, const Links &links, double goal, std::uint64_t seed,
    allocation::Budget &budget);

} // namespace loadmaster::placement
