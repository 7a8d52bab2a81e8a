#include "allocation/repair.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <queue>

namespace loadmaster::allocation {

namespace {

// The weight of a buffer grows by this factor each time it is placed, so that it is less likely to be ejected again.
constexpr double kWeightGrowth = 1.5;
// An ejection tries at most this many places for a buffer.
constexpr std::size_t kPlacesTried = 100;
// An ejection moves at most this many buffers out of the way.
constexpr std::size_t kEjectionLimit = 12;

struct Neighbour {
    std::int64_t low, high;
    std::int32_t buffer;
};

std::vector<std::int32_t> left_out(const Plain &plain, const std::vector<std::int64_t> &offset) {
    std::vector<std::int32_t> out;
    for (std::int32_t b = 0; b < plain.count(); ++b)
        if (offset[b] < 0) out.push_back(b);
    return out;
}

class Repair {
  public:
    Repair(const Plain &plain, const LiveIndex &live, std::vector<std::int64_t> &offset) : plain_(plain), live_(live), offset_(offset), weight_(plain.count()) {
        for (std::int32_t b = 0; b < plain.count(); ++b)
            weight_[b] = static_cast<double>(plain.size[b]) * (static_cast<double>(plain.end[b]) - static_cast<double>(plain.begin[b]));
    }
    bool run(std::int64_t ceiling, std::int64_t &work, Budget &budget) {
        const auto smaller = [&](std::int32_t a, std::int32_t b) { return plain_.size[a] != plain_.size[b] ? plain_.size[a] < plain_.size[b] : a > b; };
        std::priority_queue<std::int32_t, std::vector<std::int32_t>, decltype(smaller)> out(smaller, left_out(plain_, offset_));
        while (!out.empty()) {
            const std::int32_t b = out.top();
            out.pop();
            list_neighbours(b);
            work -= static_cast<std::int64_t>(near_.size()) + 1;
            if (work < 0 || !budget.look()) return false;
            const std::int64_t at = cheapest(b, ceiling);
            if (at < 0) return false;
            for (const Neighbour &other : near_)
                if (other.low < at + plain_.size[b] && at < other.high) offset_[other.buffer] = -1, out.push(other.buffer);
            offset_[b] = at;
            weight_[b] *= kWeightGrowth;
        }
        return true;
    }
    void place_by_ejection(std::int64_t ceiling, std::int64_t &work, Budget &budget) {
        for (std::int32_t b : largest_first())
            if (work >= 0 && budget.look()) place_or_eject(b, ceiling, true, work);
    }
    bool place_at_lowest_gap(std::int64_t &work, Budget &budget) {
        for (std::int32_t b : largest_first()) {
            offset_[b] = lowest(b);
            work -= static_cast<std::int64_t>(near_.size()) + 1;
            if (work < 0 || !budget.look()) return false;
        }
        return true;
    }

  private:
    std::vector<std::int32_t> largest_first() const {
        std::vector<std::int32_t> out = left_out(plain_, offset_);
        std::sort(out.begin(), out.end(), [&](std::int32_t a, std::int32_t b) { return plain_.size[a] != plain_.size[b] ? plain_.size[a] > plain_.size[b] : a < b; });
        return out;
    }
    std::int64_t lowest(std::int32_t b) {
        list_neighbours(b);
        std::int64_t at = 0;
        for (const Neighbour &other : near_) {
            if (other.low >= at + plain_.size[b]) break;
            at = std::max(at, align_up(other.high, plain_.alignment[b]));
        }
        return at;
    }

    // Places a buffer in a gap, or at a place from which all buffers in the way can be moved to gaps elsewhere.
    bool place_or_eject(std::int32_t b, std::int64_t ceiling, bool may_eject, std::int64_t &work) {
        const std::int64_t gap = lowest(b);
        work -= static_cast<std::int64_t>(near_.size()) + 1;
        if (gap + plain_.size[b] <= ceiling) {
            move(b, gap);
            return true;
        }
        if (!may_eject || work < 0) return false;
        cheapest(b, ceiling);
        std::vector<std::pair<double, std::int64_t>> places = std::move(places_);
        std::vector<Neighbour> near = near_;
        const std::size_t tries = std::min(places.size(), kPlacesTried);
        std::partial_sort(places.begin(), places.begin() + static_cast<std::ptrdiff_t>(tries), places.end());
        const std::size_t mark = moves_.size();
        bool settled = false;
        for (std::size_t i = 0; i < tries && !settled && work >= 0; ++i) {
            const std::int64_t at = places[i].second;
            std::vector<std::int32_t> out;
            for (const Neighbour &other : near)
                if (other.low < at + plain_.size[b] && at < other.high) out.push_back(other.buffer);
            if (out.size() > kEjectionLimit) continue;
            move(b, at);
            for (std::int32_t other : out) move(other, -1);
            std::sort(out.begin(), out.end(), [&](std::int32_t a, std::int32_t c) { return plain_.size[a] != plain_.size[c] ? plain_.size[a] > plain_.size[c] : a < c; });
            settled = std::all_of(out.begin(), out.end(), [&](std::int32_t other) { return place_or_eject(other, ceiling, false, work); });
            if (!settled) undo(mark);
        }
        return settled;
    }
    void move(std::int32_t b, std::int64_t at) {
        moves_.emplace_back(b, offset_[b]);
        offset_[b] = at;
    }
    void undo(std::size_t mark) {
        for (; moves_.size() > mark; moves_.pop_back()) offset_[moves_.back().first] = moves_.back().second;
    }
    // Collects the placed buffers whose lifetimes overlap that of a buffer, in order of address.
    void list_neighbours(std::int32_t b) {
        near_.clear();
        live_.overlapping(b, [&](std::int32_t other) {
            if (offset_[other] >= 0) near_.push_back({offset_[other], offset_[other] + plain_.size[other], other});
        });
        std::sort(near_.begin(), near_.end(), [](const Neighbour &a, const Neighbour &c) { return a.low != c.low ? a.low < c.low : a.buffer < c.buffer; });
    }
    // The offset at which the buffers in the way weigh least: the lowest one, or next to some neighbour.
    std::int64_t cheapest(std::int32_t b, std::int64_t ceiling) {
        const std::int64_t size = plain_.size[b], alignment = plain_.alignment[b], highest = ceiling - size;
        places_.clear();
        if (highest < 0) return -1;
        tops_.resize(near_.size());
        std::iota(tops_.begin(), tops_.end(), 0);
        std::sort(tops_.begin(), tops_.end(), [&](std::int32_t a, std::int32_t c) { return near_[a].high != near_[c].high ? near_[a].high < near_[c].high : a < c; });
        std::size_t above = 0, below = 0, under = 0, over = 0;  // `above` and `below` walk the candidates, the others what is in the way
        double cost = 0, least = std::numeric_limits<double>::infinity();
        std::int64_t best = -1;
        const auto consider = [&](std::int64_t at) {
            if (at < 0 || at > highest) return;
            while (under < near_.size() && near_[under].low < at + size) cost += weight_[near_[under++].buffer];
            while (over < tops_.size() && near_[tops_[over]].high <= at) cost -= weight_[near_[tops_[over++]].buffer];
            if (under == over) cost = 0;
            places_.emplace_back(cost, at);
            if (cost < least) least = cost, best = at;
        };
        consider(0);
        while (above < tops_.size() || below < near_.size()) {
            const std::int64_t on = above < tops_.size() ? align_up(near_[tops_[above]].high, alignment) : std::numeric_limits<std::int64_t>::max();
            const std::int64_t room = below < near_.size() ? near_[below].low - size : std::numeric_limits<std::int64_t>::max();
            const std::int64_t hung = below < near_.size() ? (room < 0 ? -1 : room / alignment * alignment) : room;
            if (on <= hung) ++above, consider(on);
            else ++below, consider(hung);
        }
        return best;
    }

    const Plain &plain_;
    const LiveIndex &live_;
    std::vector<std::int64_t> &offset_;
    std::vector<double> weight_;
    std::vector<Neighbour> near_;
    std::vector<std::int32_t> tops_;
    std::vector<std::pair<double, std::int64_t>> places_;
    std::vector<std::pair<std::int32_t, std::int64_t>> moves_;  // buffers that were moved, and their offsets before
};

}  // namespace

bool repair(const Plain &plain, const LiveIndex &live, std::vector<std::int64_t> &offset, std::int64_t ceiling, std::int64_t &work, Budget &budget) {
    return Repair(plain, live, offset).run(ceiling, work, budget);
}

void place_by_ejection(const Plain &plain, const LiveIndex &live, std::vector<std::int64_t> &offset, std::int64_t ceiling, std::int64_t &work, Budget &budget) {
    Repair(plain, live, offset).place_by_ejection(ceiling, work, budget);
}

bool place_at_lowest_gap(const Plain &plain, const LiveIndex &live, std::vector<std::int64_t> &offset, std::int64_t &work, Budget &budget) {
    return Repair(plain, live, offset).place_at_lowest_gap(work, budget);
}

}  // namespace loadmaster::allocation
