// The constraint propagator under `telamalloc`: how low each unplaced buffer can go, what no longer
// fits, and which placements are to blame.
//
// Placements stack up: nothing goes below what is placed already and alive at the same time. So
// every unplaced buffer has a lowest offset, and every slot of time is a machine that has to get
// through its unplaced buffers, one byte after the other, none released before its lowest offset.
// If the machine is not done at the capacity, nothing will be. Memory: a cell for every buffer and
// slot of its lifetime, up to a limit beyond which only what touches the last placement is checked;
// never a list of pairs.
#pragma once

#include "allocation/buffers.hpp"
#include "allocation/timeline.hpp"
#include "common/limits.hpp"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace loadmaster::allocation {

class Skyline {
  public:
    using Int = std::int64_t;
    // `levels`: of the placements, ascending, that make the conflict together. `victim`: the buffer
    // that fits nowhere, or -1.
    struct Conflict {
        std::vector<std::int32_t> levels;
        std::int32_t victim = -1;
    };

    Skyline(const Buffers &buffers, const Timeline &timeline, Int capacity);

    // False if the propagator shows, before anything is placed, that there is no packing.
    bool root_feasible(bool propagate);
    // Puts a buffer at its lowest offset, or higher. False, with `conflict` set and nothing
    // changed, if that cannot end well.
    bool place(std::int32_t buffer, bool propagate) {
        return place(buffer, lowest_[buffer], propagate);
    }
    bool place(std::int32_t buffer, Int at, bool propagate);
    void undo();

    const Conflict &conflict() const { return conflict_; }
    std::int32_t depth() const { return static_cast<std::int32_t>(placed_.size()); }
    std::int32_t placed(std::int32_t level) const { return placed_[level]; }
    std::int32_t free() const { return free_; }
    bool waiting(std::int32_t buffer) const { return level_[buffer] == kWaiting; }
    Int lowest(std::int32_t buffer) const { return lowest_[buffer]; }
    Int capacity() const { return capacity_; }
    bool alive(std::int32_t buffer, std::int32_t slot) const;
    // Calls `visit` with every section alive in [begin, end), as an index into `section` and
    // `owner`.
    template <typename Visit>
    void overlapping(std::int32_t begin, std::int32_t end, Visit visit) const {
        for (std::int32_t block = 0; block * kBlock < starts_[begin]; ++block) {
            if (reach_[block] <= begin) continue;
            const std::int32_t last = std::min((block + 1) * kBlock, starts_[begin]);
            for (std::int32_t i = block * kBlock; i < last; ++i)
                if (sections_[i].end > begin) visit(i);
        }
        for (std::int32_t i = starts_[begin]; i < starts_[end]; ++i) visit(i);
    }
    const Section &section(std::int32_t index) const { return sections_[index]; }
    std::int32_t owner(std::int32_t index) const { return owner_[index]; }

  private:
    static constexpr std::int32_t kWaiting = -1, kPinned = -2, kAbsent = -3, kBlock = 64;
    static constexpr Int kNeverReleased = kUnlimited;
    struct Raise { // of a buffer's lowest offset; raises of one buffer are linked backwards
        std::int32_t buffer, level, before;
        Int lowest; // until then
    };
    struct Cell {
        std::int32_t buffer;
        Int low, bytes;
        Int release = 0; // as the slot was last looked at
    };
    struct Pin {
        std::int32_t begin, end;
        Int low, high;
    };

    void index_sections();
    void list_cells();
    Int clear_of_pins(std::int32_t buffer, Int at) const;
    bool raise(std::int32_t buffer, Int at);
    bool slot_feasible(std::int32_t slot);
    void explain_raise(std::int32_t buffer, Int threshold);
    Int release_of(const Cell &cell) const;

    const Buffers buffers_;
    const Timeline &timeline_;
    const Int capacity_;
    std::int32_t free_ = 0;
    std::vector<Section> sections_; // by begin
    std::vector<std::int32_t> owner_, starts_, reach_;
    std::vector<Pin> pins_;
    std::vector<std::size_t> first_cell_; // of a slot; empty: no cells
    std::vector<Cell> cells_;             // those of a slot nearly sorted by release
    std::vector<Int> lowest_;
    std::vector<std::int32_t> level_, head_;
    std::vector<Raise> trail_;
    std::vector<std::size_t> marks_;
    std::vector<std::int32_t> placed_;
    std::vector<Int> completion_; // an upper bound on when each slot is through, valid at every
                                  // level that the search goes back to
    std::vector<std::int32_t>
        dirty_; // +1 where a stretch of slots to look at begins, -1 where it ends
    Conflict conflict_;
};

} // namespace loadmaster::allocation
