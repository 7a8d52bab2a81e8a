// Orders in which buffers are preferred, and seeded perturbations of them.
#pragma once

#include "allocation/search.hpp"
#include "common/random.hpp"

#include <cstdint>

namespace loadmaster::allocation {

// The first attempts, as many as this, each follow one order of buffers without random noise.
constexpr std::int64_t kUnperturbedAttempts = 6;

// The heuristic of the `attempt`-th search: orders without noise first, then perturbed ones, for
// ever.
BranchingHeuristic heuristic_of_attempt(
    const Model &model, std::int64_t attempt, std::uint64_t seed);

} // namespace loadmaster::allocation
