// Depth-first search for a packing within one capacity, bottom up, where it is most likely to fail.
//
// Every slot has a floor: the lowest place of any unplaced buffer in it. In a valley (slots of equal floor between higher ones) nothing
// can come to lie below the floor any more, so of the buffers in one of its slots either one starts right there, or none does and the
// floor of that slot rises to the next level at which one could. That is a complete choice in any slot of any valley; the search takes the one
// with fewest candidates and least slack, weighted by how often a choice there failed (after the weighted degree of Boussemart, Hemery, Lecoutre
// and Sais, 2004).
//
// Of all packings that fit it looks for one whose sum of offsets is smallest: there each buffer rests on another one, or on the ground.
#pragma once

#include "common/budget.hpp"
#include "allocation/failed_states.hpp"
#include "allocation/model.hpp"
#include "allocation/rules.hpp"

#include <cstdint>
#include <vector>

namespace loadmaster::allocation {

enum class Outcome { failed, solved, aborted };

// What a search tries first. It finds all there is with any of them.
struct Taste {
    std::vector<std::int32_t> rank;  // of buffers that could start at the same place; identical ones in the order of their indices
    double slack = 100;              // candidates that as much slack as the whole load counts for
    double blame = 0.03;             // what a failure adds to the weight of the slot where it was met
};

class Search {
  public:
    Search(const Model &model, std::int64_t rules);

    // Find a packing whose peak is at most `capacity` units, until the allowance is spent.
    Outcome run(std::int64_t capacity, const Taste &taste, Allowance &allowance);
    // Forget what earlier runs learned.
    void forget();

    const std::vector<std::int64_t> &offsets() const { return offset_; }

  private:
    using Int = std::int64_t;
    struct Part {  // unplaced buffers order_[from .. to), alive in slots [slot_from, slot_to) only
        std::int32_t from, to, slot_from, slot_to;
        Int capacity;
    };
    struct Valley {
        std::int32_t slot = -1, from = 0, to = 0;
        Int floor = 0;
    };
    struct Candidate {
        std::int32_t rank, buffer;
    };
    struct Level {
        std::size_t mark;  // of what to undo
        std::uint64_t key;
        Int base;
        std::int64_t holes;
    };
    struct Undo {
        enum Kind : std::int32_t { kLowest, kFloor, kTop } kind;
        std::int32_t index, witness;
        Int value;
    };

    bool has(Rule rule) const { return (rules_ & rule) != 0; }
    bool reset(Int capacity);
    Outcome solve(const Part &part);
    bool enter_level(const Part &part);
    void leave_level(const Part &part);
    Outcome try_candidates(const Part &part, const Valley &valley);
    Outcome solve_rest(Part part, std::int32_t placed);
    Outcome solve_apart(const Part &part);
    Outcome solve_throughout(Part part);
    bool falls_apart(const Part &part, std::int32_t placed) const;
    Valley choose(const Part &part);
    void mark_valleys(const Part &part);
    void count_candidates(const Part &part);
    void list_candidates(const Valley &valley);
    bool place(std::int32_t buffer, const Part &part);
    bool raise(std::int32_t slot, Int to, const Part &part);
    Int next_level(const Part &part, const Valley &valley) const;
    bool leaves_hole(std::int32_t slot) const;
    void take(std::int32_t buffer, int sign);
    bool lift(std::int32_t buffer, Int to);
    bool settle(const Part &part);
    bool refresh(std::int32_t slot);
    void rewind(std::size_t mark);
    Int lowest_floor(const Part &part) const;
    std::uint64_t key_of(const Part &part, Int base) const;
    bool known_to_fail(const Part &part, std::uint64_t key, Int base) const;
    void remember(const Part &part, std::uint64_t key, Int base);
    bool twin_first(std::int32_t buffer) const;

    const Model &model_;
    const std::int64_t rules_;
    bool valleys_apart_ = true;  // every buffer is alive without a gap, so that valleys can be told apart
    bool sinks_ = true;          // buffers can move by any number of units: no alignment, no pins, no windows
    Allowance *allowance_ = nullptr;
    const Taste *taste_ = nullptr;
    Int capacity_ = 0;  // of the part at hand
    std::vector<Int> offset_;
    std::vector<Int> lowest_;             // lowest place of each unplaced buffer above what is placed; kPlaced once placed
    std::vector<Int> unplaced_, floor_;   // of each slot: units still to come, and where the first of them could start
    std::vector<Int> top_;                // of what is placed in each slot
    std::vector<std::int32_t> witness_;   // index in slot_buffer of whom the floor is for
    std::vector<std::int32_t> crossing_;  // unplaced buffers alive on both sides of the border after each slot
    std::vector<std::int32_t> order_, valley_, change_;
    std::vector<double> weight_;
    std::vector<Undo> undo_;
    std::vector<Candidate> candidates_;
    std::vector<Level> levels_;
    std::vector<Part> parts_;
    std::int32_t touched_from_ = 0, touched_to_ = 0;  // slots whose floors may have changed
    std::int64_t holes_ = 0;                          // branches that were left because of a hole
    FailedStates failed_;
};

}  // namespace loadmaster::allocation
