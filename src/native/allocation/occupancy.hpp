// Which addresses are taken during a stretch of time, in memory that grows with n log n however
// many buffers are alive together.
//
// A segment tree over slots of time. Every node holds two sets of addresses, as sorted disjoint
// ranges: `full`, taken throughout its slots by a buffer put there, and `some`, taken in any of its
// slots by a buffer put there or below. Packings leave few holes, so that ranges grow together and
// the sets stay small.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace loadmaster::allocation {

struct Range {
    std::int64_t low, high;
};

class RangeSet {
  public:
    void add(std::int64_t low, std::int64_t high) {
        auto from = std::ranges::lower_bound(ranges_, low, {}, &Range::high);
        if (from == ranges_.end() || from->low > high) {
            ranges_.insert(from, {low, high});
            return;
        }
        auto to = from;
        while (to != ranges_.end() && to->low <= high) ++to;
        from->low = std::min(from->low, low);
        from->high = std::max((to - 1)->high, high);
        ranges_.erase(from + 1, to);
    }
    const std::vector<Range> &ranges() const { return ranges_; }

  private:
    std::vector<Range> ranges_;
};

class Occupancy {
  public:
    explicit Occupancy(std::int32_t slots) {
        while (leaves_ < slots) leaves_ *= 2;
        full_.resize(leaves_);
        some_.resize(2 * leaves_);
    }

    void take(std::int32_t begin, std::int32_t end, std::int64_t low, std::int64_t high) {
        walk(begin, end, [&](std::int32_t node) {
            if (node < leaves_) full_[node].add(low, high);
            some_[node].add(low, high);
        });
        above(begin, end, [&](std::int32_t node) { some_[node].add(low, high); });
    }
    // Calls `visit` with sets of ranges whose union is what is taken at some time in [begin, end).
    template <typename Visit> void during(std::int32_t begin, std::int32_t end, Visit visit) const {
        const auto give = [&](const RangeSet &set) {
            if (!set.ranges().empty()) visit(set.ranges());
        };
        walk(begin, end, [&](std::int32_t node) { give(some_[node]); });
        above(begin, end, [&](std::int32_t node) { give(full_[node]); });
    }

  private:
    // The largest nodes that lie inside [begin, end).
    template <typename Visit> void walk(std::int32_t begin, std::int32_t end, Visit visit) const {
        for (std::int32_t left = begin + leaves_, right = end + leaves_; left < right;
            left /= 2, right /= 2) {
            if (left & 1) visit(left++);
            if (right & 1) visit(--right);
        }
    }
    // The nodes that reach into [begin, end) and beyond: the ancestors of its borders that are not
    // inside.
    template <typename Visit> void above(std::int32_t begin, std::int32_t end, Visit visit) const {
        std::int32_t left = begin + leaves_, right = end - 1 + leaves_;
        for (std::int32_t width = 1; left >= 1; left /= 2, right /= 2, width *= 2) {
            if (!inside(left, width, begin, end)) visit(left);
            if (right != left && !inside(right, width, begin, end)) visit(right);
        }
    }
    bool inside(std::int32_t node, std::int32_t width, std::int32_t begin, std::int32_t end) const {
        const std::int32_t from = node * width - leaves_;
        return from >= begin && from + width <= end;
    }

    std::int32_t leaves_ = 1;
    std::vector<RangeSet> full_,
        some_; // `full_` without leaves, of which none reaches beyond what is asked for
};

} // namespace loadmaster::allocation
