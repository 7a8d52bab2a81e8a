// Restarts of the exact search for a packing within one capacity, each with another heuristic, on
// one or more threads.
#pragma once

#include "common/budget.hpp"
#include "allocation/buffers.hpp"
#include "allocation/search.hpp"
#include "allocation/solver.hpp"

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

namespace loadmaster::allocation {

class Restarts {
  public:
    Restarts(const Model &model, const Settings &settings, Budget &budget)
        : model_(model), settings_(settings), budget_(budget) {}

    // Stops after `nodes` nodes. A new capacity is tried with the unperturbed orders first; after
    // them no attempt is repeated.
    Outcome run(std::int64_t units, std::int64_t nodes);

    // Offsets in bytes, from the attempt that found a packing.
    std::vector<std::int64_t> offsets(const Buffers &buffers) const;

  private:
    // Attempts take turns on this many searches, each of which keeps only what its own attempts
    // learned. So the work of an attempt depends neither on the number of threads nor on which of
    // them ends first.
    static constexpr std::int64_t kLanes = 4;
    struct Attempt {
        std::int64_t number, limit;
        Outcome outcome = Outcome::aborted;
        std::int64_t nodes = 0;
    };

    Outcome run_round(std::int64_t units, std::vector<Attempt> &round);
    Search &lane(std::int64_t place);

    const Model &model_;
    const Settings settings_;
    Budget &budget_;
    std::array<std::unique_ptr<Search>, kLanes> lanes_;
    std::int64_t solved_ = 0; // the lane whose attempt found a packing
    std::int64_t perturbed_ = 0, last_units_ = -1;
};

} // namespace loadmaster::allocation
