// TelaMalloc: a heuristic that guides a constraint propagator, and learns from it where to go back
// to.
//
// After "TelaMalloc: Efficient On-Chip Memory Allocation for Production Machine Learning
// Accelerators", ASPLOS 2023. Each step goes to the lowest place of the skyline, there to the
// instant with the highest contention, picks a buffer by one of three rules, and puts it at its
// lowest offset. The propagator then says whether the others can still be placed, and if not, which
// placements are to blame.
#pragma once

#include "common/budget.hpp"
#include "allocation/effort.hpp"
#include "allocation/forest.hpp"
#include "allocation/skyline.hpp"

#include <cstdint>
#include <vector>

namespace loadmaster::allocation {

struct TelamallocFeatures {
    // Of the instants where the skyline is lowest, the one with the most bytes waiting comes next;
    // else the earliest.
    bool contention = true;
    // Candidates are chosen by lifetime, size and area; else by size alone.
    bool rules = true;
    // Groups of buffers that contend with each other are placed one after the other; else all at
    // once.
    bool phases = true;
    // The propagator is asked after every step; else a step fails only if the buffer itself does
    // not fit.
    bool propagate = true;
    // A major backtrack goes to a placement to blame; else placements are undone one by one.
    bool jump = true;
    // Buffers that could not be placed are tried first from then on.
    bool prioritise = true;
    // After some backtracks without getting deeper, half of the placements are undone; after many
    // steps, all of them.
    bool unstick = true;
    // The next instant is one where the skyline is lowest; else contention alone decides.
    bool lowest = true;
};

struct TelamallocOptions {
    TelamallocFeatures features;
    std::int64_t patience =
        200; // backtracks without getting deeper after which half of the placements are undone
    std::int64_t steps = 0; // placements to try
    const Forest *forest =
        nullptr; // chooses the target of a major backtrack; none: the latest to blame
};

// Backtracks of a search as a table: what was known of each possible target, and the cost that an
// oracle found by trying it.
struct BacktrackSamples {
    std::vector<double> features, cost; // `kTargetFeatures` for each row; the cost counts steps
    std::vector<std::int64_t> group;    // rows of one backtrack
};

class Telamalloc {
  public:
    using Int = std::int64_t;
    Telamalloc(
        const Buffers &buffers, Int capacity, const TelamallocOptions &options, Budget &budget);
    // Whether a packing was found: if not, that proves nothing.
    bool run();
    // Runs the search, but at every `every`-th choice between targets tries each of them for
    // `horizon` steps and records what came of it.
    bool run_with_oracle(std::int64_t every, std::int64_t horizon, BacktrackSamples &samples);
    std::vector<Int> offsets() const;
    const Counters &counts() const { return counts_; }

    static constexpr std::size_t kTargetFeatures = 12;

  private:
    struct Level {
        std::int32_t slot = 0, visits = 0;
        std::size_t next = 0, earlier = 0; // candidates: the first that was not tried, and how many
                                           // earlier rounds found
        std::int64_t asked = 0;            // rules, over all rounds
        std::vector<std::int32_t> candidates, blamed;
    };
    struct Phase {
        std::int32_t begin, end;           // slots
        std::vector<std::int32_t> members; // waiting when the search began
        Int most = 0;                      // contention
    };
    struct Oracle {
        std::int64_t every, horizon, seen = 0, groups = 0;
        BacktrackSamples &samples;
    };

    void group_phases();
    void count_waiting(std::int32_t buffer, Int sign);
    bool step();
    bool solve_phase();
    void start_over();
    void open_level();
    std::int32_t choose_slot();
    bool has_candidate(Level &level);
    std::int32_t best_of(const Level &level, std::int64_t rule) const;
    void record_failure(Level &level);
    bool backtrack(bool far);
    std::int32_t choose_target(const std::vector<std::int32_t> &blamed);
    std::int32_t ask_oracle(const std::vector<std::int32_t> &blamed);
    std::int64_t trial(std::int32_t target, std::int64_t horizon) const;
    void describe(const std::vector<std::int32_t> &blamed, std::size_t at, double *features) const;
    void go_back_to(std::int32_t target, const std::vector<std::int32_t> &blamed);
    void promote(std::int32_t buffer);
    void undo_to(std::int32_t depth);
    double area(std::int32_t buffer) const {
        return timeline_.length(buffer) * static_cast<double>(buffers_.size[buffer]);
    }

    const Buffers buffers_;
    const TelamallocOptions options_;
    Budget &budget_;
    Timeline timeline_;
    Skyline sky_;
    std::vector<Phase> phases_;
    std::size_t phase_ = 0;
    std::vector<Int> waiting_; // bytes per slot
    std::vector<Level> levels_;
    std::int32_t base_ = 0, top_ = 0; // levels of earlier phases, and all in use
    std::vector<std::int32_t> priority_;
    std::int32_t deepest_ = 0;
    std::int64_t stuck_ = 0, attempt_ = 0, attempt_steps_ = 0, limit_ = 0;
    Counters counts_;
    Oracle *oracle_ = nullptr;
    std::vector<std::int32_t> cover_;
};

} // namespace loadmaster::allocation
