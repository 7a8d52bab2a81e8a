#include "allocation/small.hpp"

#include "allocation/model.hpp"
#include "allocation/orders.hpp"
#include "allocation/search.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

namespace loadmaster::allocation {

namespace {

// The search at the load bound makes this many attempts, of this many nodes each.
constexpr std::int64_t kAttempts = 4, kNodesPerAttempt = 500;

// With more buffers than this the search would take longer than a quick answer may.
constexpr std::int64_t kSearchedBuffers = 128;

struct Item {
    std::int64_t lower, upper, size;
    std::int32_t buffer, first_slot, last_slot; // of instants at which something starts
    double contention, key;
};

struct Placed {
    std::int64_t low, high, lower, upper;
};

// Returns the load bound, and sets the contention of each item: the highest load during its
// lifetime.
std::int64_t find_contention(std::vector<Item> &items) {
    std::vector<std::int64_t> instants;
    instants.reserve(items.size());
    for (const Item &item : items) instants.push_back(item.lower);
    std::sort(instants.begin(), instants.end());
    instants.erase(std::unique(instants.begin(), instants.end()), instants.end());
    // Loads only rise where something starts.
    std::vector<std::int64_t> load(instants.size(), 0);
    const auto slot = [&](std::int64_t when) {
        return static_cast<std::size_t>(
            std::lower_bound(instants.begin(), instants.end(), when) - instants.begin());
    };
    for (std::size_t i = 0; i < items.size(); ++i) {
        items[i].first_slot = static_cast<std::int32_t>(slot(items[i].lower)),
        items[i].last_slot = static_cast<std::int32_t>(slot(items[i].upper));
        for (std::int32_t s = items[i].first_slot; s < items[i].last_slot; ++s)
            load[s] += items[i].size;
    }
    std::int64_t most = 0;
    for (std::size_t i = 0; i < items.size(); ++i) {
        const std::int64_t peak = *std::max_element(
            load.begin() + items[i].first_slot, load.begin() + items[i].last_slot);
        items[i].contention = static_cast<double>(peak);
        most = std::max(most, peak);
    }
    return most;
}

// First fit in the order of the items; gives up above `limit`.
std::int64_t place_all(const std::vector<Item> &items, std::vector<Placed> &placed,
    std::vector<std::int64_t> &offset, std::int64_t limit) {
    std::int64_t peak = 0;
    placed.clear();
    for (const Item &item : items) {
        std::int64_t at = 0;
        for (const Placed &other : placed) {
            if (other.lower >= item.upper || item.lower >= other.upper || other.high <= at)
                continue;
            if (other.low >= at + item.size) break;
            at = other.high;
        }
        const Placed mine{at, at + item.size, item.lower, item.upper};
        if (mine.high > limit) return mine.high;
        placed.push_back(mine);
        for (std::size_t i = placed.size() - 1; i > 0 && placed[i - 1].low > at; --i)
            std::swap(placed[i - 1], placed[i]);
        offset[item.buffer] = at;
        peak = std::max(peak, mine.high);
    }
    return peak;
}

// The same with lists of what is placed, one for each slot: quicker where few of many are alive
// together.
class PlacedBySlot {
  public:
    explicit PlacedBySlot(const std::vector<Item> &items) {
        std::int32_t slots = 0;
        double cells = 0;
        for (const Item &item : items)
            slots = std::max(slots, item.last_slot), cells += item.last_slot - item.first_slot;
        // A look at a list costs some times as much as one at an entry of a single list.
        constexpr double kLookCost = 8;
        const auto count = static_cast<double>(items.size());
        if (kLookCost * cells * cells < count * count * slots)
            lists_.resize(static_cast<std::size_t>(slots));
    }
    bool worthwhile() const { return !lists_.empty(); }
    std::int64_t place_all(
        const std::vector<Item> &items, std::vector<std::int64_t> &offset, std::int64_t limit) {
        std::int64_t peak = 0;
        for (auto &list : lists_) list.clear();
        for (const Item &item : items) {
            met_.clear();
            for (std::int32_t s = item.first_slot; s < item.last_slot; ++s)
                met_.insert(met_.end(), lists_[s].begin(), lists_[s].end());
            std::sort(met_.begin(), met_.end());
            std::int64_t at = 0;
            for (const auto &[low, high] : met_) {
                if (high <= at) continue;
                if (low >= at + item.size) break;
                at = high;
            }
            if (at + item.size > limit) return at + item.size;
            for (std::int32_t s = item.first_slot; s < item.last_slot; ++s)
                lists_[s].emplace_back(at, at + item.size);
            offset[item.buffer] = at;
            peak = std::max(peak, at + item.size);
        }
        return peak;
    }

  private:
    std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>> lists_;
    std::vector<std::pair<std::int64_t, std::int64_t>> met_;
};

void try_orders(std::vector<Item> &items, Small &best) {
    std::vector<std::int64_t> offset = best.offset;
    std::vector<Placed> placed;
    placed.reserve(items.size());
    PlacedBySlot by_slot(items);
    const auto attempt = [&](auto key) {
        if (best.peak == best.bound) return;
        for (Item &item : items) item.key = key(item);
        std::sort(items.begin(), items.end(), [](const Item &a, const Item &b) {
            return a.key != b.key ? a.key > b.key : a.buffer < b.buffer;
        });
        const std::int64_t limit = best.peak - 1,
                           peak = by_slot.worthwhile() ? by_slot.place_all(items, offset, limit)
                                                       : place_all(items, placed, offset, limit);
        if (peak < best.peak) best.peak = peak, best.offset = offset;
    };
    // Where the load is highest there is least room for mistakes.
    const auto length = [](const Item &item) {
        return static_cast<double>(item.upper) - static_cast<double>(item.lower);
    };
    const double sizes = 2.0 * static_cast<double>(best.bound), lengths = 0x1p64;
    const auto contention = [&](const Item &item) {
        return std::pow(item.contention / static_cast<double>(best.bound), 20);
    };
    attempt([&](const Item &item) {
        return contention(item) * length(item) * (1 + static_cast<double>(item.size) / sizes);
    });
    attempt([&](const Item &item) {
        return contention(item) * length(item) * static_cast<double>(item.size);
    });
    attempt([&](const Item &item) {
        return static_cast<double>(item.size) * (1 + length(item) / lengths);
    });
    attempt([&](const Item &item) { return static_cast<double>(item.size) * length(item); });
}

// Look for a packing at the load bound itself.
void search_at_bound(const Buffers &buffers, Small &best) {
    // With more pairs of buffers alive together than this, building the model takes too long for a
    // quick answer.
    constexpr std::int64_t kPairLimit = 1'000'000;
    const Model model = make_model(buffers, true, true, kPairLimit);
    if (model.count < 0 || model.load * model.unit != best.bound) return;
    Budget budget(-1, std::numeric_limits<double>::infinity(), nullptr);
    const std::atomic<std::int64_t> unsettled = std::numeric_limits<std::int64_t>::max();
    Search search(model, SearchRules{});
    for (std::int64_t attempt = 0; attempt < kAttempts; ++attempt) {
        Allowance allowance(budget, false, kNodesPerAttempt, 0, unsettled);
        const Outcome outcome =
            search.run(model.load, heuristic_of_attempt(model, attempt, 0), allowance);
        if (outcome == Outcome::failed) return;
        if (outcome == Outcome::aborted) continue;
        std::fill(best.offset.begin(), best.offset.end(), 0);
        for (std::int32_t i = 0; i < model.count; ++i)
            best.offset[model.buffer[i]] = search.offsets()[i] * model.unit;
        best.peak = best.bound;
        return;
    }
}

} // namespace

Small allocate_small(const Buffers &buffers) {
    Small best;
    best.offset.assign(buffers.size.size(), 0);
    std::vector<Item> items;
    items.reserve(buffers.size.size());
    for (std::int64_t b = 0; b < buffers.count(); ++b)
        if (buffers.matters(b))
            items.push_back({buffers.begin[b], buffers.end[b], buffers.size[b],
                static_cast<std::int32_t>(b), 0, 0, 0, 0});
    if (items.empty()) return best;
    best.bound = find_contention(items);
    best.peak = std::numeric_limits<std::int64_t>::max();
    try_orders(items, best);
    if (best.peak > best.bound && buffers.count() <= kSearchedBuffers)
        search_at_bound(buffers, best);
    return best;
}

} // namespace loadmaster::allocation
