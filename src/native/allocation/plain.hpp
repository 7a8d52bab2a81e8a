// Buffers with one lifetime, all their bytes and no pin: what packing at scale is made for.
#pragma once

#include "allocation/buffers.hpp"

#include <cstdint>
#include <vector>

namespace loadmaster::allocation {

struct Plain {
    // `backwards`: time runs the other way, which is the same problem.
    Plain(const Buffers &buffers, bool backwards);
    static bool possible(const Buffers &buffers);
    // The sections that take space, as if each were a buffer; `buffer` is the owner of each, in
    // ascending order.
    static Plain of_sections(const Buffers &buffers);
    // Offsets of the caller's buffers from those of these; 0 for what takes no space.
    std::vector<std::int64_t> of_caller(const std::vector<std::int64_t> &offset) const;
    std::int32_t count() const { return static_cast<std::int32_t>(size.size()); }

    std::vector<std::int64_t> begin, end, size, alignment; // without what takes no space
    std::vector<std::int64_t> buffer;                      // index of each among the caller's
    std::vector<std::int32_t> births, deaths; // in order of time; born together, larger ones first

  private:
    explicit Plain(std::size_t callers) : callers_(callers) {}
    void sort_by_time();
    std::size_t callers_; // buffers of the caller
};

// Lists the buffers whose lifetimes overlap that of a given buffer, without storing pairs.
// Snapshots of the live set are kept at some births; one is taken when as many buffers were born
// since the last snapshot as that one holds, so that memory grows with n.
class LiveIndex {
  public:
    explicit LiveIndex(const Plain &plain);
    template <typename Visit> void overlapping(std::int32_t b, Visit visit) const {
        const std::int64_t begin = plain_.begin[b], end = plain_.end[b];
        const std::int32_t snapshot = snapshot_of_[b];
        const auto meet = [&](std::int32_t other) {
            if (other != b && plain_.end[other] > begin) visit(other);
        };
        for (std::size_t i : row_of(first_, snapshot)) meet(alive_[i]);
        for (std::size_t i = born_[snapshot];
            i < plain_.births.size() && plain_.begin[plain_.births[i]] < end; ++i)
            meet(plain_.births[i]);
    }

  private:
    const Plain &plain_;
    std::vector<std::size_t> born_,
        first_; // for each snapshot: births before it, and where its part of `alive_` starts
    std::vector<std::int32_t> alive_, snapshot_of_;
};

} // namespace loadmaster::allocation
