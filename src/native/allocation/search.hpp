// Depth-first search over canonical packings of one capacity.
//
// Of all packings that fit, take one with the smallest sum of offsets, and list its buffers by offset, ties by rank. In that list every
// buffer starts at the lowest place that the buffers before it leave (else it could sink), so it is enough to try, again and again, each
// unplaced buffer at its lowest place, with offsets that never decrease. Every rule below cuts only branches that cannot hold this packing.
#pragma once

#include "budget.hpp"
#include "model.hpp"
#include "rules.hpp"

#include <cstdint>
#include <utility>
#include <vector>

namespace loadmaster::allocation {

enum class Outcome { failed, solved, aborted };

// States from which no packing was found, with the highest capacity for which that is known. A state is the set of unplaced buffers, the
// lowest place of each and which of them were passed over: nothing else decides what can still be done. A fixed number of slots, the
// newer state wins.
class FailedStates {
  public:
    void resize(int log2_slots) { slots_.assign(std::size_t{1} << log2_slots, {}), mask_ = slots_.size() - 1; }
    struct Key {
        std::uint64_t a, b;
    };
    bool knows(const Key &key, std::int64_t capacity) const {
        const Slot &slot = slots_[key.a & mask_];
        return slot.key.a == key.a && slot.key.b == key.b && capacity <= slot.capacity;
    }
    void add(const Key &key, std::int64_t capacity) { slots_[key.a & mask_] = {key, capacity}; }

  private:
    struct Slot {
        Key key{0, 0};
        std::int64_t capacity = -1;
    };
    std::vector<Slot> slots_;
    std::size_t mask_ = 0;
};

class Search {
  public:
    Search(const Model &model, std::int64_t rules, Budget &budget);

    // Find a packing whose peak is at most `capacity` units, spending at most `nodes` nodes of the budget. `rank` orders the buffers that
    // could go to the same place; identical ones must have theirs in the order of their indices.
    Outcome run(std::int64_t capacity, const std::vector<std::int32_t> &rank, std::int64_t nodes);

    const std::vector<std::int64_t> &offsets() const { return offset_; }

  private:
    using Int = std::int64_t;
    struct Part {  // unplaced buffers order_[from .. to), alive in slots [slot_from, slot_to) only
        std::int32_t from, to, slot_from, slot_to;
    };
    struct Candidate {
        Int at;
        std::int32_t rank, buffer;
        bool operator<(const Candidate &other) const { return at != other.at ? at < other.at : rank < other.rank; }
    };
    struct Undo {
        std::int32_t index;  // of a buffer, or of a slot as ~slot
        std::int32_t witness;
        Int value;
    };

    bool has(Rule rule) const { return (rules_ & rule) != 0; }
    bool reset(Int capacity);
    Outcome solve(const Part &part, Int base, std::int32_t last);
    Outcome solve_parts(const Part &part, Int base, std::int32_t last, std::int32_t placed);
    bool place(std::int32_t buffer, Int at, const Part &part);
    void unplace(std::int32_t buffer, std::size_t mark);
    bool slots_hold(const Part &part, Int base);
    bool refresh(std::int32_t slot);
    void find_candidates(const Part &part, Int base, std::int32_t last);
    bool supported(const Part &part, Int base, std::int32_t last, Int top) const;
    FailedStates::Key key_of(const Part &part, Int base, std::int32_t last) const;
    bool passed_over(std::int32_t buffer, Int base, std::int32_t last) const { return lowest_[buffer] < base || (lowest_[buffer] == base && rank_[buffer] < last); }

    const Model &model_;
    const std::int64_t rules_;
    Budget &budget_;
    std::int64_t limit_ = 0;  // of the budget's nodes, for this run
    Int capacity_ = 0;
    std::vector<Int> offset_;
    std::vector<Int> lowest_;            // lowest place of each unplaced buffer above what is placed; kPlaced once placed
    std::vector<Int> unplaced_, bottom_; // of each slot: bytes still to come, and the lowest place of any of them
    std::vector<std::int32_t> witness_;  // index in slot_buffer of who has that lowest place
    std::vector<std::int32_t> crossing_; // unplaced buffers alive on both sides of the border after each slot
    std::vector<std::int32_t> order_, rank_;
    std::vector<Undo> undo_;
    std::vector<Candidate> candidates_;
    std::vector<Part> parts_;
    std::vector<std::int32_t> scratch_;
    FailedStates failed_;
};

}  // namespace loadmaster::allocation
