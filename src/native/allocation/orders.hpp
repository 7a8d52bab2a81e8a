// Orders in which buffers are preferred, and seeded perturbations of them.
#pragma once

#include "allocation/search.hpp"

#include <cstdint>

namespace loadmaster::allocation {

// A small generator whose values are the same everywhere (splitmix64).
class Random {
  public:
    explicit Random(std::uint64_t seed) : state_(seed) {}
    std::uint64_t next() {
        std::uint64_t z = (state_ += 0x9e3779b97f4a7c15ULL);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
        return z ^ (z >> 31);
    }
    double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
    // 0 .. below - 1.
    std::size_t index(std::size_t below) {
        return static_cast<std::size_t>(uniform() * static_cast<double>(below));
    }

  private:
    std::uint64_t state_;
};

// The first attempts, as many as this, each follow one order of buffers without random noise.
constexpr std::int64_t kUnperturbedAttempts = 6;

// The heuristic of the `attempt`-th search: orders without noise first, then perturbed ones, for
// ever.
BranchingHeuristic heuristic_of_attempt(
    const Model &model, std::int64_t attempt, std::uint64_t seed);

} // namespace loadmaster::allocation
