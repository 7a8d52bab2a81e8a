// TelaMalloc: a heuristic that guides a constraint propagator, and learns from it where to go back to.
//
// After "TelaMalloc: Efficient On-Chip Memory Allocation for Production Machine Learning Accelerators", ASPLOS 2023. Each step goes to
// the lowest place of the skyline, there to the instant with the highest contention, picks a buffer by one of three rules, and puts it at
// its lowest offset. The propagator then says whether the others can still be placed, and if not, which placements are to blame.
#pragma once

#include "common/budget.hpp"
#include "allocation/forest.hpp"
#include "allocation/skyline.hpp"

#include <cstdint>
#include <limits>
#include <vector>

namespace loadmaster::allocation {

enum Feature : std::int64_t {
    kContention = 1,   // of the lowest instants the fullest next; else the earliest
    kThreeRules = 2,   // candidates by lifetime, size and area; else by size alone
    kPhases = 4,       // groups of buffers that contend with each other, one after the other; else all at once
    kPropagate = 8,    // ask the propagator after every step; else notice only that a buffer itself does not fit
    kJump = 16,        // major backtracks: to a placement to blame; else one placement after the other
    kPrioritise = 32,  // buffers that could not be placed are tried first from then on
    kUnstick = 64,     // after some backtracks without getting deeper, undo half of the placements; after many steps, all
    kLowest = 128,     // where the skyline is lowest first; else contention alone decides
};

struct TelamallocCounts {
    std::int64_t steps = 0, minor_backtracks = 0, major_backtracks = 0, attempts = 0;
};

struct TelamallocOptions {
    std::int64_t features = -1, patience = 200, steps = 0;
    const Forest *forest = nullptr;  // chooses the target of a major backtrack; none: the latest to blame
};

// Where a search went back, as a table: what was known of each possible target, and the cost that an oracle found by trying it.
struct Lessons {
    std::vector<double> features, cost;  // `kTargetFeatures` for each row; the cost counts steps
    std::vector<std::int64_t> group;     // rows of one backtrack
};

class Telamalloc {
  public:
    using Int = std::int64_t;
    Telamalloc(const Buffers &buffers, Int capacity, const TelamallocOptions &options, Budget &budget);
    // Whether a packing was found: if not, that proves nothing.
    bool run();
    // The same, but at every `every`-th choice between targets each of them is tried for `horizon` steps.
    bool run_with_oracle(std::int64_t every, std::int64_t horizon, Lessons &lessons);
    std::vector<Int> offsets() const;
    const TelamallocCounts &counts() const { return counts_; }

    static constexpr std::size_t kTargetFeatures = 12;

  private:
    struct Level {
        std::int32_t slot = 0, visits = 0;
        std::size_t next = 0, earlier = 0;  // candidates: the first that was not tried, and how many earlier rounds found
        std::int64_t asked = 0;             // rules, over all rounds
        std::vector<std::int32_t> candidates, blamed;
    };
    struct Phase {
        std::int32_t begin, end;            // slots
        std::vector<std::int32_t> members;  // waiting when the search began
        Int most = 0;                       // contention
    };
    struct Oracle {
        std::int64_t every, horizon, seen = 0, groups = 0;
        Lessons &lessons;
    };

    bool has(Feature feature) const { return (options_.features & feature) != 0; }
    void group();
    void count_waiting(std::int32_t buffer, Int sign);
    bool step();
    bool solve_phase();
    void start_over();
    void open();
    std::int32_t pick_slot();
    bool has_candidate(Level &level);
    std::int32_t best_of(const Level &level, std::int64_t rule) const;
    void learn(Level &level);
    bool back(bool far);
    std::int32_t pick_target(const std::vector<std::int32_t> &blamed);
    std::int32_t ask_oracle(const std::vector<std::int32_t> &blamed);
    std::int64_t trial(std::int32_t target, std::int64_t horizon) const;
    void describe(const std::vector<std::int32_t> &blamed, std::size_t at, double *features) const;
    void go_back_to(std::int32_t target, const std::vector<std::int32_t> &blamed);
    void promote(std::int32_t buffer);
    void undo_to(std::int32_t depth);
    double area(std::int32_t buffer) const { return timeline_.length(buffer) * static_cast<double>(buffers_.size[buffer]); }

    const Buffers buffers_;
    const TelamallocOptions options_;
    Budget &budget_;
    Timeline timeline_;
    Skyline sky_;
    std::vector<Phase> phases_;
    std::size_t phase_ = 0;
    std::vector<Int> waiting_;  // bytes per slot
    std::vector<Level> levels_;
    std::int32_t base_ = 0, top_ = 0;  // levels of earlier phases, and all in use
    std::vector<std::int32_t> priority_;
    std::int32_t deepest_ = 0;
    std::int64_t stuck_ = 0, attempt_ = 0, attempt_steps_ = 0, limit_ = 0;
    TelamallocCounts counts_;
    Oracle *oracle_ = nullptr;
    std::vector<std::int32_t> cover_;
};

}  // namespace loadmaster::allocation
