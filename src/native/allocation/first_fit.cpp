#include "allocation/first_fit.hpp"

#include "common/limits.hpp"

#include "allocation/at_scale.hpp"
#include "allocation/neighbours.hpp"
#include "allocation/occupancy.hpp"
#include "allocation/plain.hpp"
#include "allocation/sweep.hpp"
#include "allocation/timeline.hpp"

#include <algorithm>
#include <array>
#include <cmath>

namespace loadmaster::allocation {

namespace {

// Up to this many buffers, or sections of buffers with gaps, a plain list of what is placed is
// faster than a tree.
constexpr std::int64_t kPlainListLimit = 1500;

// The lowest aligned offset strictly inside none of some ranges, or with `best_fit` the lowest one
// in the tightest gap.
std::int64_t choose(std::vector<Range> &taken, std::int64_t alignment, bool best_fit) {
    std::ranges::sort(taken, {}, &Range::low);
    std::int64_t at = 0, best = -1, tightest = kUnlimited;
    for (const Range &next : taken) {
        if (next.low >= at) {
            if (!best_fit) return at;
            if (next.low - at < tightest) tightest = next.low - at, best = at;
        }
        if (next.high > at) at = align_up(next.high, alignment);
    }
    return best >= 0 ? best : at;
}

// The placed buffers in a plain list, in order of address.
class PlacedList {
  public:
    PlacedList(const Buffers &, const Timeline &time) : time_(time) {}
    std::int64_t place(const Buffers &buffers, std::int64_t b, bool best_fit) {
        if (plain(b) && !best_fit) return lowest(buffers, b);
        taken_.clear();
        for (const Section &mine : time_.sections(b))
            for (const Entry &entry : placed_)
                if (entry.begin < mine.end && mine.begin < entry.end)
                    taken_.push_back({entry.low - mine.high, entry.high - mine.low});
        return choose(taken_, buffers.alignment[b], best_fit);
    }
    std::int64_t visits() const { return 0; }
    void take(std::int64_t b, std::int64_t at) {
        for (const Section &mine : time_.sections(b)) {
            const Entry entry{at + mine.low, at + mine.high, mine.begin, mine.end};
            placed_.insert(std::ranges::upper_bound(placed_, entry.low, {}, &Entry::low), entry);
        }
    }

  private:
    struct Entry {
        std::int64_t low, high;
        std::int32_t begin, end;
    };
    bool plain(std::int64_t b) const {
        return time_.sections(b).size() == 1 && time_.sections(b)[0].low == 0;
    }
    std::int64_t lowest(const Buffers &buffers, std::int64_t b) const {
        const Section mine = time_.sections(b)[0];
        std::int64_t at = 0;
        for (const Entry &entry : placed_) {
            if (entry.begin >= mine.end || mine.begin >= entry.end || entry.high <= at) continue;
            if (entry.low >= at + mine.high) break;
            at = align_up(entry.high, buffers.alignment[b]);
        }
        return at;
    }
    const Timeline &time_;
    std::vector<Entry> placed_;
    std::vector<Range> taken_;
};

// Where each placed buffer is, for those that pairs say to keep apart.
class PlacedPairs {
  public:
    PlacedPairs(const Buffers &buffers, const Timeline &) : offset_(buffers.size.size(), -1) {}
    std::int64_t place(const Buffers &buffers, std::int64_t b, bool best_fit) {
        taken_.clear();
        for (std::int64_t k : row_of(buffers.near_first, b)) {
            const std::int64_t other = buffers.near[k], at = offset_[other];
            if (at >= 0) taken_.push_back({at - buffers.size[b], at + buffers.size[other]});
        }
        return choose(taken_, buffers.alignment[b], best_fit);
    }
    void take(std::int64_t b, std::int64_t at) { offset_[b] = at; }
    std::int64_t visits() const { return 0; }

  private:
    std::vector<std::int64_t> offset_;
    std::vector<Range> taken_;
};

// The placed buffers in a tree over time.
class PlacedTree {
  public:
    PlacedTree(const Buffers &, const Timeline &time) : time_(time), occupancy_(time.slots()) {}
    std::int64_t place(const Buffers &buffers, std::int64_t b, bool best_fit) {
        cursors_.clear();
        for (const Section &mine : time_.sections(b))
            occupancy_.during(mine.begin, mine.end, [&](const std::vector<Range> &ranges) {
                cursors_.push_back(
                    {ranges.data(), ranges.data() + ranges.size(), mine.low, mine.high});
            });
        std::int64_t best = -1, tightest = kUnlimited;
        for (std::int64_t at = 0;;) {
            at = lowest_from(at, buffers.alignment[b]);
            if (!best_fit) return at;
            // The last offset of this gap; beyond all ranges, none.
            std::int64_t end = kUnlimited;
            for (const Cursor &cursor : cursors_)
                if (cursor.next != cursor.end) end = std::min(end, cursor.next->low - cursor.high);
            if (end == kUnlimited) return best >= 0 ? best : at;
            if (end - at < tightest) tightest = end - at, best = at;
            at = align_up(end + 1, buffers.alignment[b]);
        }
    }
    void take(std::int64_t b, std::int64_t at) {
        for (const Section &mine : time_.sections(b))
            occupancy_.take(mine.begin, mine.end, at + mine.low, at + mine.high);
    }
    // How often a set of ranges was visited so far, which measures the work done.
    std::int64_t visits() const { return visits_; }

  private:
    struct Cursor {
        const Range *next, *end;
        std::int64_t low, high;
    };
    // The lowest aligned offset from `at` on that all cursors leave free; visits them in turn until
    // all agree.
    std::int64_t lowest_from(std::int64_t at, std::int64_t alignment) {
        std::size_t agreed = 0, count = cursors_.size();
        for (std::size_t i = 0; agreed < count; i = i + 1 == count ? 0 : i + 1) {
            Cursor &cursor = cursors_[i];
            ++visits_;
            skip(cursor, at);
            if (cursor.next != cursor.end && cursor.next->low - cursor.high < at) {
                at = align_up(cursor.next->high - cursor.low, alignment);
                ++cursor.next;
                agreed = 0;
                // Ranges that leave too little room between them go in one run.
                while (cursor.next != cursor.end && cursor.next->low - cursor.high < at)
                    at = std::max(at, align_up((cursor.next++)->high - cursor.low, alignment));
            }
            ++agreed;
        }
        return at;
    }
    static void skip(Cursor &cursor, std::int64_t at) {
        std::ptrdiff_t step = 1;
        const auto below = [&](const Range &range) { return range.high - cursor.low <= at; };
        if (cursor.next == cursor.end || !below(*cursor.next)) return;
        while (step < cursor.end - cursor.next && below(cursor.next[step]))
            cursor.next += step, step *= 2;
        const Range *limit = cursor.next + std::min(step, cursor.end - cursor.next);
        cursor.next = std::partition_point(cursor.next, limit, below);
    }
    const Timeline &time_;
    Occupancy occupancy_;
    std::vector<Cursor> cursors_;
    std::int64_t visits_ = 0;
};

// What one order may cost once there is a packing: visits of the tree, and time.
class OrderBudget {
  public:
    explicit OrderBudget(Budget &budget) : budget_(budget) {}
    bool permits(std::int64_t visits) {
        return visits <= kVisitLimit && (++placed_ % kBuffersPerClockCheck != 0 || budget_.look());
    }

  private:
    // An order is given up after this many visits of sets of ranges.
    static constexpr std::int64_t kVisitLimit = 5'000'000;
    // The clock is read once for every so many buffers placed.
    static constexpr std::int64_t kBuffersPerClockCheck = 256;
    Budget &budget_;
    std::int64_t placed_ = 0;
};

// With `leave_out`, what would end above the limit, or is not in the order, gets -1; else the first
// such buffer ends it.
template <typename Placed>
Greedy run(const Buffers &buffers, const Timeline &time, std::span<const std::int64_t> order,
    bool best_fit, std::int64_t limit, OrderBudget *order_budget, bool leave_out = false) {
    Placed placed(buffers, time);
    Greedy result{true, std::vector<std::int64_t>(buffers.size.size(), 0), 0};
    const auto settle = [&](std::int64_t b, std::int64_t at) {
        const std::int64_t top = at + buffers.size[b];
        if (leave_out && top > limit && buffers.pin[b] < 0) return true;
        result.offset[b] = at;
        result.peak = std::max(result.peak, top);
        placed.take(b, at);
        return leave_out ||
            (top <= limit && (!order_budget || order_budget->permits(placed.visits())));
    };
    for (std::int64_t b : indices(buffers.count())) {
        const bool there = !time.sections(b).empty();
        if (there && leave_out) result.offset[b] = -1;
        if (buffers.pin[b] < 0) continue;
        result.offset[b] = buffers.pin[b];
        if (there && !settle(b, buffers.pin[b])) return {};
    }
    for (std::int64_t b : order)
        if (buffers.pin[b] < 0 && !time.sections(b).empty() &&
            !settle(b, placed.place(buffers, b, best_fit)))
            return {};
    return result;
}

Greedy run_any(const Buffers &buffers, const Timeline &time, std::span<const std::int64_t> order,
    bool best_fit, std::int64_t limit, OrderBudget *order_budget, bool leave_out = false) {
    const auto with = [&]<typename Placed>() {
        return run<Placed>(buffers, time, order, best_fit, limit, order_budget, leave_out);
    };
    if (!buffers.near_first.empty()) return with.template operator()<PlacedPairs>();
    if (std::ssize(buffers.begin) <= kPlainListLimit) return with.template operator()<PlacedList>();
    return with.template operator()<PlacedTree>();
}

// An order of buffers: with `by_start`, by size class (`classes` of equal width, or two, divided at
// `split` times the largest size), then by start; else by a product of powers, largest first. Most
// sets are hard where the load is highest; where it is the same everywhere (sliding windows),
// packing in order of start is better.
struct Order {
    double contention, size, length; // exponents
    double classes = 0, split = 0;
    bool by_start = false, best_fit = false,
         powers_of_two =
             false; // powers_of_two: only the binary logarithm of the product counts, then start
};

constexpr std::array<Order, 7> kOrders{{
    {8, 1, 0},
    {0, 0, 0, 0, 0, true, true},
    {0, 1, 0},
    {0, 1, 1},
    {0, 0, 0, 8, 0, true},
    {0, 0, 0, 0, 0.2, true},
    {4, 1, 0, 0, 0, false, false, true},
}};

std::vector<std::int64_t> sorted(const Buffers &buffers, const Timeline &time, const Order &order) {
    std::vector<std::pair<double, double>> key(buffers.count());
    const double bound = static_cast<double>(std::max<std::int64_t>(time.load(), 1));
    double largest = 1;
    for (std::int64_t size : buffers.size) largest = std::max(largest, static_cast<double>(size));
    for (std::int64_t b : indices(buffers.count())) {
        if (time.sections(b).empty()) continue;
        const double size = static_cast<double>(buffers.size[b]);
        if (order.by_start) {
            const double level = order.split > 0 ? (size > order.split * largest ? 1 : 0)
                                                 : std::floor(order.classes * size / largest);
            key[b] = {-level, static_cast<double>(time.sections(b)[0].begin)};
        } else {
            const double contention = static_cast<double>(time.contention(b)) / bound;
            const double start = static_cast<double>(time.sections(b)[0].begin);
            key[b].first = -(order.contention * std::log(contention) + order.size * std::log(size) +
                order.length * std::log(time.length(b)));
            if (order.powers_of_two) key[b] = {std::ceil(key[b].first / std::log(2.0)), start};
        }
    }
    return sorted_by(key.size(), [&](std::int64_t b) { return key[b]; });
}

// Best-fit in an order of start by one sweep over time; empty where the buffers or the order do not
// allow that.
std::vector<std::int64_t> best_fit_by_birth(
    const Buffers &buffers, std::span<const std::int64_t> order) {
    if (!Plain::possible(buffers) ||
        std::ranges::any_of(buffers.alignment, [](std::int64_t a) { return a != 1; }))
        return {};
    const Plain plain(buffers, false);
    std::vector<std::int32_t> place(buffers.count(), -1), births;
    for (std::int32_t i : indices(plain.count())) place[plain.buffer[i]] = i;
    for (std::int64_t b : order)
        if (place[b] >= 0) births.push_back(place[b]);
    if (!std::ranges::is_sorted(births, {}, [&](std::int32_t b) { return plain.begin[b]; }))
        return {};
    return sweep_best_fit(plain, births);
}

std::vector<std::int64_t> by_hint(std::span<const std::int64_t> hint) {
    return sorted_by(
        hint.size(), [&](std::int64_t b) { return hint[b] < 0 ? kUnlimited : hint[b]; });
}

} // namespace

std::int64_t simple_bound(const Buffers &buffers) {
    std::int64_t bound = load_bound(buffers).bytes;
    for (std::int64_t b : indices(buffers.count()))
        if (buffers.matters(b))
            bound = std::max(bound, buffers.size[b] + std::max<std::int64_t>(buffers.pin[b], 0));
    return bound;
}

Greedy place_in_order(const Buffers &buffers, std::span<const std::int64_t> order, bool best_fit,
    std::int64_t limit) {
    const Timeline time(buffers);
    if (pins_clash(buffers)) return {};
    if (best_fit && buffers.count() > kPlainListLimit && limit == kUnlimited) {
        std::vector<std::int64_t> offset = best_fit_by_birth(buffers, order);
        if (!offset.empty()) return {true, offset, peak_of(buffers, offset)};
    }
    return run_any(buffers, time, order, best_fit, limit, nullptr);
}

std::vector<std::int64_t> place_what_fits(
    const Buffers &buffers, std::span<const std::int64_t> order, std::int64_t capacity) {
    const Timeline time(buffers);
    return run_any(buffers, time, order, false, capacity, nullptr, true).offset;
}

std::vector<std::vector<std::int64_t>> first_fit_orders(const Buffers &buffers) {
    const Timeline time(buffers);
    std::vector<std::vector<std::int64_t>> orders;
    for (const Order &order : kOrders)
        if (!order.best_fit) orders.push_back(sorted(buffers, time, order));
    return orders;
}

Greedy best_first_fit(const Buffers &buffers, std::span<const std::int64_t> hint,
    std::int64_t enough, Budget &budget) {
    const Timeline time(buffers);
    Greedy best;
    if (pins_clash(buffers)) return best;
    const auto attempt = [&](const std::vector<std::int64_t> &order, bool best_fit) {
        const std::int64_t limit = !best.packed ? kUnlimited : best.peak - 1;
        OrderBudget order_budget(budget);
        OrderBudget *const some = best.packed ? &order_budget : nullptr;
        Greedy greedy = run_any(buffers, time, order, best_fit, limit, some);
        if (greedy.packed) best = std::move(greedy);
    };
    const bool huge = buffers.count() > kAcceptNearBoundFrom;
    // Whether the peak is at most one part in `divisor` above the load, which is enough for many
    // buffers.
    const auto near_bound = [&](std::int64_t divisor) {
        return huge && best.peak <= time.load() + time.load() / divisor;
    };
    const auto done = [&] {
        return best.packed && (best.peak <= enough || near_bound(200) || !budget.look());
    };
    const auto found = [&](std::vector<std::int64_t> &&offset) {
        const std::int64_t peak = peak_of(buffers, offset);
        if (!best.packed || peak < best.peak) best = {true, std::move(offset), peak};
        return !done();
    };
    if (!hint.empty()) attempt(by_hint(hint), false);
    if (buffers.count() > kPlainListLimit && !done()) {
        std::vector<std::int64_t> order = sorted(buffers, time, kOrders[1]),
                                  offset = best_fit_by_birth(buffers, order);
        if (!offset.empty()) found(std::move(offset));
    }
    if (buffers.count() > kPlainListLimit && !huge && !done())
        attempt(sorted(buffers, time, kOrders.back()), false);
    if (buffers.count() > kPlainListLimit && !done())
        pack_at_scale(buffers, simple_bound(buffers), budget, found);
    for (const Order &order : kOrders) {
        if (done() || (best.packed && near_bound(100))) break;
        attempt(sorted(buffers, time, order), order.best_fit);
    }
    return best;
}

} // namespace loadmaster::allocation
