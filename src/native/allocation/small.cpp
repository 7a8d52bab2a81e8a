#include "allocation/small.hpp"

#include "allocation/model.hpp"
#include "allocation/orders.hpp"
#include "allocation/search.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <numeric>

namespace loadmaster::allocation {

namespace {

// The search at the load bound makes this many attempts, of this many nodes each.
constexpr std::int64_t kAttempts = 4, kNodesPerAttempt = 500;

struct Item {
    std::int64_t lower, upper, size;
    std::int32_t buffer;
    double contention, key;
};

struct Placed {
    std::int64_t low, high, lower, upper;
};

// Returns the load bound, and sets the contention of each item: the highest load during its lifetime.
std::int64_t find_contention(std::vector<Item> &items) {
    std::vector<std::int64_t> instants;
    instants.reserve(items.size());
    for (const Item &item : items) instants.push_back(item.lower);
    std::sort(instants.begin(), instants.end());
    instants.erase(std::unique(instants.begin(), instants.end()), instants.end());
    // Loads only rise where something starts.
    std::vector<std::int64_t> load(instants.size(), 0);
    std::vector<std::pair<std::size_t, std::size_t>> span(items.size());
    const auto slot = [&](std::int64_t when) { return static_cast<std::size_t>(std::lower_bound(instants.begin(), instants.end(), when) - instants.begin()); };
    for (std::size_t i = 0; i < items.size(); ++i) {
        span[i] = {slot(items[i].lower), slot(items[i].upper)};
        for (std::size_t s = span[i].first; s < span[i].second; ++s) load[s] += items[i].size;
    }
    std::int64_t most = 0;
    for (std::size_t i = 0; i < items.size(); ++i) {
        const std::int64_t peak = *std::max_element(load.begin() + static_cast<std::ptrdiff_t>(span[i].first), load.begin() + static_cast<std::ptrdiff_t>(span[i].second));
        items[i].contention = static_cast<double>(peak);
        most = std::max(most, peak);
    }
    return most;
}

// First fit in the order of the items; gives up above `limit`.
std::int64_t place_all(const std::vector<Item> &items, std::vector<Placed> &placed, std::vector<std::int64_t> &offset, std::int64_t limit) {
    std::int64_t peak = 0;
    placed.clear();
    for (const Item &item : items) {
        std::int64_t at = 0;
        for (const Placed &other : placed) {
            if (other.lower >= item.upper || item.lower >= other.upper || other.high <= at) continue;
            if (other.low >= at + item.size) break;
            at = other.high;
        }
        const Placed mine{at, at + item.size, item.lower, item.upper};
        if (mine.high > limit) return mine.high;
        placed.push_back(mine);
        for (std::size_t i = placed.size() - 1; i > 0 && placed[i - 1].low > at; --i) std::swap(placed[i - 1], placed[i]);
        offset[item.buffer] = at;
        peak = std::max(peak, mine.high);
    }
    return peak;
}

void try_orders(std::vector<Item> &items, Small &best) {
    std::vector<std::int64_t> offset = best.offset;
    std::vector<Placed> placed;
    placed.reserve(items.size());
    const auto attempt = [&](auto key) {
        if (best.peak == best.bound) return;
        for (Item &item : items) item.key = key(item);
        std::sort(items.begin(), items.end(), [](const Item &a, const Item &b) { return a.key != b.key ? a.key > b.key : a.buffer < b.buffer; });
        const std::int64_t peak = place_all(items, placed, offset, best.peak - 1);
        if (peak < best.peak) best.peak = peak, best.offset = offset;
    };
    // Where the load is highest there is least room for mistakes.
    const auto length = [](const Item &item) { return static_cast<double>(item.upper) - static_cast<double>(item.lower); };
    const double sizes = 2.0 * static_cast<double>(best.bound), lengths = 0x1p64;
    const auto contention = [&](const Item &item) { return std::pow(item.contention / static_cast<double>(best.bound), 20); };
    attempt([&](const Item &item) { return contention(item) * length(item) * (1 + static_cast<double>(item.size) / sizes); });
    attempt([&](const Item &item) { return contention(item) * length(item) * static_cast<double>(item.size); });
    attempt([&](const Item &item) { return static_cast<double>(item.size) * (1 + length(item) / lengths); });
    attempt([&](const Item &item) { return static_cast<double>(item.size) * length(item); });
}

// Look for a packing at the load bound itself.
void search_at_bound(const Buffers &buffers, Small &best) {
    // With more pairs of buffers alive together than this, building the model takes too long for a quick answer.
    constexpr std::int64_t kPairLimit = 1'000'000;
    const Model model = make_model(buffers, true, true, kPairLimit);
    if (model.count < 0 || model.load * model.unit != best.bound) return;
    Budget budget(-1, std::numeric_limits<double>::infinity(), nullptr);
    const std::atomic<std::int64_t> unsettled = std::numeric_limits<std::int64_t>::max();
    Search search(model, SearchRules{});
    for (std::int64_t attempt = 0; attempt < kAttempts; ++attempt) {
        Allowance allowance(budget, false, kNodesPerAttempt, 0, unsettled);
        const Outcome outcome = search.run(model.load, heuristic_of_attempt(model, attempt, 0), allowance);
        if (outcome == Outcome::failed) return;
        if (outcome == Outcome::aborted) continue;
        std::fill(best.offset.begin(), best.offset.end(), 0);
        for (std::int32_t i = 0; i < model.count; ++i) best.offset[model.buffer[i]] = search.offsets()[i] * model.unit;
        best.peak = best.bound;
        return;
    }
}

}  // namespace

Small allocate_small(const Buffers &buffers) {
    Small best;
    best.offset.assign(buffers.size.size(), 0);
    std::vector<Item> items;
    items.reserve(buffers.size.size());
    for (std::int64_t b = 0; b < buffers.count(); ++b)
        if (buffers.matters(b)) items.push_back({buffers.begin[b], buffers.end[b], buffers.size[b], static_cast<std::int32_t>(b), 0, 0});
    if (items.empty()) return best;
    best.bound = find_contention(items);
    best.peak = std::numeric_limits<std::int64_t>::max();
    try_orders(items, best);
    if (best.peak > best.bound) search_at_bound(buffers, best);
    return best;
}

}  // namespace loadmaster::allocation
