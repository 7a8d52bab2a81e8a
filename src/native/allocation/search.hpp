// Depth-first search for a packing within one capacity, bottom up, where it is most likely to fail.
//
// Every slot has a floor: the lowest place of any unplaced buffer in it. In a valley (slots of
// equal floor between higher ones) nothing can come to lie below the floor any more, so of the
// buffers in one of its slots either one starts right there, or none does and the floor of that
// slot rises to the next level at which one could. That is a complete choice in any slot of any
// valley; the search takes the one with fewest candidates and least slack, weighted by how often a
// choice there failed (after the weighted degree of Boussemart, Hemery, Lecoutre and Sais, 2004).
//
// Of all packings that fit it looks for one whose sum of offsets is smallest: there each buffer
// rests on another one, or on the ground.
#pragma once

#include "common/budget.hpp"
#include "allocation/failed_states.hpp"
#include "allocation/model.hpp"

#include <cstdint>
#include <vector>

namespace loadmaster::allocation {

enum class Outcome { failed, solved, aborted };

// How a search chooses where to branch and what to try first. It is complete with any of them.
struct BranchingHeuristic {
    // Of the buffers that could start at the same place, the one of the lowest rank is tried first.
    // Identical buffers rank by index.
    std::vector<std::int32_t> rank;
    // A slot with as much slack as the whole load is as unattractive as one with this many more
    // candidates.
    double slack_weight;
    // A branch that fails adds this to the weight of its slot, so that the search returns there
    // sooner.
    double failure_weight;
};

class Search {
  public:
    explicit Search(const Model &model);

    // Find a packing whose peak is at most `capacity` units, until the allowance is spent.
    Outcome run(std::int64_t capacity, const BranchingHeuristic &heuristic, Allowance &allowance);
    // Drop the weights and the failed states of earlier runs.
    void forget();

    const std::vector<std::int64_t> &offsets() const { return offset_; }

  private:
    using Int = std::int64_t;
    // The lowest place of a buffer that is placed already: above every offset.
    static constexpr Int kPlaced = Int{1} << 62;
    struct Part { // a subproblem: the unplaced buffers order_[from .. to), which are alive in slots
                  // [slot_from, slot_to) only
        std::int32_t from, to, slot_from, slot_to;
    };
    struct Valley {
        std::int32_t slot = -1, from = 0, to = 0;
        Int floor = 0;
    };
    struct Candidate {
        std::int32_t rank, buffer;
    };
    struct Level {
        std::size_t mark; // of what to undo
        std::uint64_t key;
        Int base;
    };
    struct Undo {
        enum Kind : std::int32_t { kLowest, kFloor } kind;
        std::int32_t index, witness;
        Int value;
    };

    bool reset(Int capacity);
    Outcome solve(const Part &part);
    bool enter_level(const Part &part);
    void leave_level(const Part &part);
    Outcome try_candidates(const Part &part, const Valley &valley);
    Outcome solve_rest(const Part &part, std::int32_t placed);
    Outcome solve_components(const Part &part);
    bool splits(const Part &part, std::int32_t placed) const;
    Valley choose(const Part &part);
    void mark_valleys(const Part &part);
    void count_candidates(const Part &part);
    void list_candidates(const Valley &valley);
    bool place(std::int32_t buffer, const Part &part);
    bool raise_floor(std::int32_t slot, Int to, const Part &part);
    Int next_level(const Part &part, const Valley &valley) const;
    void take(std::int32_t buffer, int sign);
    bool raise_lowest(std::int32_t buffer, Int to);
    bool update_floors(const Part &part);
    bool update_floor(std::int32_t slot);
    void rewind(std::size_t mark);
    Int lowest_floor(const Part &part) const;
    std::uint64_t key_of(const Part &part, Int base) const;
    bool known_to_fail(const Part &part, const Level &level) const;
    void remember(const Part &part, const Level &level);
    bool waits_for_identical(std::int32_t buffer) const;

    const Model &model_;
    bool local_valleys_ = true; // no buffer has gaps or windows, so that every valley is a complete
                                // choice, not only the lowest one
    bool unaligned_ = true; // no buffer has an alignment, a pin or windows, so that each can move
                            // by any number of units
    Allowance *allowance_ = nullptr;
    const BranchingHeuristic *heuristic_ = nullptr;
    Int capacity_ = 0;
    std::vector<Int> offset_;
    std::vector<Int>
        lowest_; // lowest place of each unplaced buffer above what is placed; kPlaced once placed
    std::vector<Int> unplaced_,
        floor_; // of each slot: units still to come, and where the first of them could start
    std::vector<std::int32_t>
        witness_; // the buffer, as an index in slot_buffer, whose lowest place is the floor
    std::vector<std::int32_t>
        crossing_; // unplaced buffers alive on both sides of the border after each slot
    std::vector<std::int32_t> order_, valley_, change_;
    std::vector<double> weight_;
    std::vector<Undo> undo_;
    std::vector<Candidate> candidates_;
    std::vector<Level> levels_;
    std::vector<Part> parts_;
    std::int32_t touched_from_ = 0, touched_to_ = 0; // slots whose floors may have changed
    FailedStates failed_;
};

} // namespace loadmaster::allocation
