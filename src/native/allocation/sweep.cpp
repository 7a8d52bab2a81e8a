#include "allocation/sweep.hpp"

#include "common/limits.hpp"

#include <algorithm>
#include <map>
#include <set>

namespace loadmaster::allocation {

namespace {

// What a gap at the very bottom or top borders on instead of a buffer.
constexpr std::int32_t kFloor = -1, kCeiling = -2;
// The mismatch between the ends of two lifetimes counts as at most this many lifetimes of the
// buffer.
constexpr double kMismatchLimit = 16;
// A neighbour that outlives the buffer counts this many times as much as one that ends earlier,
// because it cuts the free space in two.
constexpr double kOutliveFactor = 4;
// The clock is read once for every so many births.
constexpr std::int32_t kBirthsPerClockCheck = 256;

struct Gap {
    std::int64_t low, high;
    std::int32_t below, above; // the buffers that it lies between
};

class Sweep {
  public:
    Sweep(const Plain &plain, std::int64_t ceiling, double affinity)
        : plain_(plain), affinity_(affinity), gaps_{{0, ceiling, kFloor, kCeiling}},
          below_(plain.count()), above_(plain.count()), offset_(plain.count(), -1) {}

    std::vector<std::int64_t> run(std::int64_t &work, Budget &budget) {
        std::size_t dead = 0;
        std::int32_t born = 0;
        for (std::int32_t b : plain_.births) {
            while (
                dead < plain_.deaths.size() && plain_.end[plain_.deaths[dead]] <= plain_.begin[b])
                release(plain_.deaths[dead++]);
            work -= std::ssize(gaps_) + 1;
            if (work < 0 || (++born % kBirthsPerClockCheck == 0 && !budget.look())) return {};
            place(b);
        }
        return plain_.of_caller(offset_);
    }

  private:
    double end_mismatch(std::int32_t neighbour, std::int32_t b) const {
        if (neighbour < 0) return kMismatchLimit;
        const double life = static_cast<double>(plain_.end[b] - plain_.begin[b]),
                     later = static_cast<double>(plain_.end[neighbour] - plain_.end[b]);
        return std::min(kMismatchLimit, later < 0 ? -later / life : kOutliveFactor * later / life);
    }
    void place(std::int32_t b) {
        const std::int64_t size = plain_.size[b], alignment = plain_.alignment[b];
        double best = kInfinite;
        std::size_t chosen = gaps_.size();
        std::int64_t at = 0;
        const auto consider = [&](std::size_t gap, std::int64_t offset, double cost) {
            if (cost < best) best = cost, chosen = gap, at = offset;
        };
        for (std::size_t i : indices(gaps_.size())) {
            const Gap &gap = gaps_[i];
            if (gap.high - gap.low < size) continue;
            const std::int64_t low = align_up(gap.low, alignment),
                               high = (gap.high - size) / alignment * alignment;
            if (high < low) continue;
            const double waste = static_cast<double>(gap.high - gap.low - size) /
                static_cast<double>(gap.high - gap.low);
            if (affinity_ == 0 || gap.high - gap.low == size) {
                const double cost = affinity_ == 0
                    ? 0
                    : affinity_ * (end_mismatch(gap.below, b) + end_mismatch(gap.above, b)) / 2 - 1;
                consider(i, low, waste + cost);
            } else {
                consider(i, low, waste + affinity_ * end_mismatch(gap.below, b));
                consider(i, high, waste + affinity_ * end_mismatch(gap.above, b));
            }
        }
        if (chosen < gaps_.size())
            take(b, chosen, at);
        else
            make_room(b);
    }
    // Evicts the buffers of some stretch of addresses instead, if they are smaller together than
    // the buffer itself.
    void make_room(std::int32_t b) {
        std::int64_t least = plain_.size[b];
        std::size_t chosen = gaps_.size();
        for (std::size_t i : indices(gaps_.size())) {
            std::int64_t cost = 0, high = gaps_[i].high;
            std::int32_t next = gaps_[i].above;
            for (std::size_t j = i + 1; cost < least &&
                high - align_up(gaps_[i].low, plain_.alignment[b]) < plain_.size[b];) {
                if (next == kCeiling) {
                    cost = least;
                    break;
                }
                cost += plain_.size[next];
                high += plain_.size[next];
                next = above_[next];
                if (j < gaps_.size() && gaps_[j].low == high) high = gaps_[j++].high;
            }
            if (cost < least) least = cost, chosen = i;
        }
        if (chosen == gaps_.size()) return;
        const std::int64_t at = align_up(gaps_[chosen].low, plain_.alignment[b]);
        while (gaps_[chosen].high - at < plain_.size[b]) {
            const std::int32_t out = gaps_[chosen].above;
            release(out);
            offset_[out] = -1;
        }
        take(b, chosen, at);
    }
    void take(std::int32_t b, std::size_t chosen, std::int64_t at) {
        const Gap gap = gaps_[chosen];
        const std::int64_t top = at + plain_.size[b];
        offset_[b] = at;
        below_[b] = gap.below, above_[b] = gap.above;
        if (gap.below >= 0) above_[gap.below] = b;
        if (gap.above >= 0) below_[gap.above] = b;
        if (gap.low < at && top < gap.high) {
            gaps_.insert(gaps_.begin() + chosen, gap);
            gaps_[chosen + 1].low = top, gaps_[chosen + 1].below = b;
        }
        if (gap.low < at)
            gaps_[chosen].high = at, gaps_[chosen].above = b;
        else if (top < gap.high)
            gaps_[chosen].low = top, gaps_[chosen].below = b;
        else
            gaps_.erase(gaps_.begin() + chosen);
    }
    void release(std::int32_t b) {
        if (offset_[b] < 0) return;
        const std::int64_t low = offset_[b], high = low + plain_.size[b];
        if (below_[b] >= 0) above_[below_[b]] = above_[b];
        if (above_[b] >= 0) below_[above_[b]] = below_[b];
        const auto next = std::ranges::lower_bound(gaps_, high, {}, &Gap::low);
        const bool up = next != gaps_.end() && next->low == high,
                   down = next != gaps_.begin() && (next - 1)->high == low;
        if (up && down) {
            (next - 1)->high = next->high;
            (next - 1)->above = next->above;
            gaps_.erase(next);
        } else if (up) {
            next->low = low;
            next->below = below_[b];
        } else if (down) {
            (next - 1)->high = high;
            (next - 1)->above = above_[b];
        } else {
            gaps_.insert(next, {low, high, below_[b], above_[b]});
        }
    }

    const Plain &plain_;
    const double affinity_;
    std::vector<Gap> gaps_;                   // in order of address
    std::vector<std::int32_t> below_, above_; // neighbours of the living
    std::vector<std::int64_t> offset_;
};

} // namespace

namespace {

// Gaps by address and by length; the topmost one has no end.
class Gaps {
  public:
    Gaps() { add(0, kEndless); }
    std::int64_t take(std::int64_t size) {
        const auto [length, low] = *by_length_.lower_bound({size, 0});
        drop(low, low + length);
        if (length > size) add(low + size, low + length);
        return low;
    }
    void release(std::int64_t low, std::int64_t high) {
        auto next = by_low_.lower_bound(low);
        if (next != by_low_.begin() && std::prev(next)->second == low) {
            const auto [before, end] = *std::prev(next);
            low = before;
            drop(before, end);
        }
        if (next != by_low_.end() && next->first == high) {
            const auto [begin, after] = *next;
            high = after;
            drop(begin, after);
        }
        add(low, high);
    }

  private:
    static constexpr std::int64_t kEndless = kUnlimited;
    // All addresses lie below 2^62, so that the endless gap is longer than any other.
    void add(std::int64_t low, std::int64_t high) {
        by_low_.emplace(low, high), by_length_.emplace(high - low, low);
    }
    void drop(std::int64_t low, std::int64_t high) {
        by_low_.erase(low), by_length_.erase({high - low, low});
    }
    std::map<std::int64_t, std::int64_t> by_low_;
    std::set<std::pair<std::int64_t, std::int64_t>> by_length_;
};

} // namespace

std::vector<std::int64_t> sweep_best_fit(const Plain &plain, std::span<const std::int32_t> births) {
    std::vector<std::int64_t> offset(plain.count());
    Gaps gaps;
    std::size_t dead = 0;
    for (std::int32_t b : births) {
        for (; dead < plain.deaths.size() && plain.end[plain.deaths[dead]] <= plain.begin[b];
            ++dead) {
            const std::int32_t gone = plain.deaths[dead];
            gaps.release(offset[gone], offset[gone] + plain.size[gone]);
        }
        offset[b] = gaps.take(plain.size[b]);
    }
    return plain.of_caller(offset);
}

std::vector<std::int64_t> sweep(
    const Plain &plain, std::int64_t ceiling, double affinity, std::int64_t &work, Budget &budget) {
    return Sweep(plain, ceiling, affinity).run(work, budget);
}

} // namespace loadmaster::allocation
