#include "small.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

namespace loadmaster::allocation {

namespace {

struct Plain {
    std::int64_t lower, upper, size;
    std::int32_t buffer;
    double key;
};

struct Placed {
    std::int64_t low, high, lower, upper;
};

double length(const Plain &item) { return static_cast<double>(item.upper) - static_cast<double>(item.lower); }

std::int64_t load_of(const std::vector<Plain> &items) {
    std::vector<std::pair<std::int64_t, std::int64_t>> events;
    events.reserve(2 * items.size());
    for (const Plain &item : items) {
        events.emplace_back(item.lower, item.size);
        events.emplace_back(item.upper, -item.size);
    }
    std::sort(events.begin(), events.end());
    std::int64_t live = 0, most = 0;
    for (const auto &event : events) most = std::max(most, live += event.second);
    return most;
}

std::int64_t place_all(const std::vector<Plain> &items, std::vector<Placed> &placed, std::vector<std::int64_t> &offset) {
    std::int64_t peak = 0;
    placed.clear();
    for (const Plain &item : items) {
        std::int64_t at = 0;
        for (const Placed &other : placed) {
            if (other.lower >= item.upper || item.lower >= other.upper || other.high <= at) continue;
            if (other.low >= at + item.size) break;
            at = other.high;
        }
        const Placed mine{at, at + item.size, item.lower, item.upper};
        placed.push_back(mine);
        for (std::size_t i = placed.size() - 1; i > 0 && placed[i - 1].low > at; --i) std::swap(placed[i - 1], placed[i]);
        offset[item.buffer] = at;
        peak = std::max(peak, mine.high);
    }
    return peak;
}

}  // namespace

Small allocate_small(std::span<const std::int64_t> lower, std::span<const std::int64_t> upper, std::span<const std::int64_t> size) {
    Small best;
    best.offset.assign(size.size(), 0);
    std::vector<Plain> items;
    items.reserve(size.size());
    for (std::size_t b = 0; b < size.size(); ++b)
        if (size[b] > 0 && lower[b] < upper[b]) items.push_back({lower[b], upper[b], size[b], static_cast<std::int32_t>(b), 0});
    best.bound = load_of(items);
    best.peak = std::numeric_limits<std::int64_t>::max();
    std::vector<std::int64_t> offset = best.offset;
    std::vector<Placed> placed;
    placed.reserve(items.size());
    const auto attempt = [&](auto key) {
        if (best.peak == best.bound) return;
        for (Plain &item : items) item.key = key(item);
        std::sort(items.begin(), items.end(), [](const Plain &a, const Plain &b) { return a.key != b.key ? a.key > b.key : a.buffer < b.buffer; });
        const std::int64_t peak = place_all(items, placed, offset);
        if (peak < best.peak) best.peak = peak, best.offset = offset;
    };
    attempt([](const Plain &item) { return static_cast<double>(item.size); });
    attempt([](const Plain &item) { return static_cast<double>(item.size) * length(item); });
    attempt(length);
    attempt([](const Plain &item) { return -static_cast<double>(item.lower); });
    return best;
}

}  // namespace loadmaster::allocation
