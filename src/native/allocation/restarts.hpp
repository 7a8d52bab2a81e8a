// Search after search for a packing within one capacity, each by another taste, in as many threads as may be.
#pragma once

#include "common/budget.hpp"
#include "allocation/buffers.hpp"
#include "allocation/search.hpp"
#include "allocation/solver.hpp"

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

namespace loadmaster::allocation {

class Restarts {
  public:
    Restarts(const Model &model, const Settings &settings, Budget &budget) : model_(model), settings_(settings), budget_(budget) {}

    // Stops after `nodes` nodes. A capacity that is new gets the pure orders first; after that every attempt is new.
    Outcome run(std::int64_t units, std::int64_t nodes);

    // Of the attempt that solved it.
    std::vector<std::int64_t> offsets(const Buffers &buffers) const;

  private:
    // Attempts take turns on a few searches, each of which learns from its own alone. So what an attempt does depends neither on how many
    // threads there are nor on who is first.
    static constexpr std::int64_t kLanes = 4;
    struct Attempt {
        std::int64_t number, limit;
        Outcome outcome = Outcome::aborted;
        std::int64_t nodes = 0;
    };

    Outcome run_round(std::int64_t units, std::vector<Attempt> &round);
    void try_out(std::int64_t units, Attempt &attempt, std::int64_t place, std::atomic<std::int64_t> &settled, bool looks);
    Search &lane(std::int64_t place);

    const Model &model_;
    const Settings settings_;
    Budget &budget_;
    std::array<std::unique_ptr<Search>, kLanes> lanes_;
    std::int64_t solved_ = 0;  // the lane that did
    std::int64_t perturbed_ = 0, last_units_ = -1;
};

}  // namespace loadmaster::allocation
