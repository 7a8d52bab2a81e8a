#include "allocation/repair.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <queue>

namespace loadmaster::allocation {

namespace {

// An ejection tries at most this many places for a buffer.
constexpr std::size_t kPlacesTried = 100;
// An ejection moves at most this many buffers out of the way.
constexpr std::size_t kEjectionLimit = 12;
// At random, a place may seem up to this much dearer than it is.
constexpr double kNoise = 0.3;
// Each time it is placed, a buffer weighs so much of its first weight more.
constexpr double kGrowth = 0.3;

std::vector<std::int32_t> left_out(const std::vector<std::int64_t> &offset) {
    std::vector<std::int32_t> out;
    for (std::size_t b = 0; b < offset.size(); ++b)
        if (offset[b] < 0) out.push_back(static_cast<std::int32_t>(b));
    return out;
}

class Repair {
  public:
    Repair(const Neighbours &neighbours, std::vector<std::int64_t> &offset)
        : set_(neighbours), offset_(offset), weight_(neighbours.weight) {}

    bool run(std::int64_t ceiling, double growth, std::int64_t &work, Budget &budget) {
        const auto smaller = [&](std::int32_t a, std::int32_t b) {
            return set_.size[a] != set_.size[b] ? set_.size[a] < set_.size[b] : a > b;
        };
        std::priority_queue<std::int32_t, std::vector<std::int32_t>, decltype(smaller)> out(
            smaller, left_out(offset_));
        while (!out.empty()) {
            const std::int32_t b = out.top();
            out.pop();
            if (!look_around(b, work) || !budget.look()) return false;
            if (!eject_into(b, cheapest(b, ceiling), [&](std::int32_t other) { out.push(other); }))
                return false;
            weight_[b] *= growth;
        }
        return true;
    }
    bool run_at_random(std::int64_t ceiling, Random &random, std::int64_t &work, Budget &budget) {
        std::vector<std::int32_t> out = left_out(offset_);
        const auto noise = [&] { return 1 + kNoise * random.uniform(); };
        while (!out.empty()) {
            std::swap(out[random.index(out.size())], out.back());
            const std::int32_t b = out.back();
            out.pop_back();
            if (!look_around(b, work) || !budget.look()) return false;
            if (!eject_into(b, cheapest(b, ceiling, noise),
                    [&](std::int32_t other) { out.push_back(other); }))
                return false;
            weight_[b] += kGrowth * set_.weight[b];
        }
        return true;
    }
    void place_by_ejection(std::int64_t ceiling, std::int64_t &work, Budget &budget) {
        for (std::int32_t b : largest_first())
            if (work >= 0 && budget.look()) place_or_eject(b, ceiling, true, work);
    }
    bool place_at_lowest_gap(std::int64_t &work, Budget &budget) {
        for (std::int32_t b : largest_first()) {
            const bool within = look_around(b, work);
            offset_[b] = lowest(b);
            if (!within || !budget.look()) return false;
        }
        return true;
    }

  private:
    std::vector<std::int32_t> largest_first() const {
        std::vector<std::int32_t> out = left_out(offset_);
        std::sort(out.begin(), out.end(), [&](std::int32_t a, std::int32_t b) {
            return set_.size[a] != set_.size[b] ? set_.size[a] > set_.size[b] : a < b;
        });
        return out;
    }
    // Lists what is in the way of a buffer; false once the work is spent.
    bool look_around(std::int32_t b, std::int64_t &work) {
        set_.list(b, offset_, near_);
        work -= static_cast<std::int64_t>(near_.size()) + 1;
        return work >= 0;
    }
    // Places a buffer and hands out what was in its way; false if there is no place.
    template <typename Out> bool eject_into(std::int32_t b, std::int64_t at, Out out) {
        if (at < 0) return false;
        for (const Forbidden &other : near_)
            if (other.from < at && at < other.to && offset_[other.buffer] >= 0)
                offset_[other.buffer] = -1, out(other.buffer);
        offset_[b] = at;
        return true;
    }
    // The lowest offset that nothing listed forbids.
    std::int64_t lowest(std::int32_t b) const {
        std::int64_t at = 0;
        for (const Forbidden &other : near_) {
            if (other.from >= at) break;
            at = std::max(at, align_up(other.to, set_.alignment[b]));
        }
        return at;
    }

    // Places a buffer in a gap, or at a place from which all buffers in the way can be moved to
    // gaps elsewhere.
    bool place_or_eject(std::int32_t b, std::int64_t ceiling, bool may_eject, std::int64_t &work) {
        const bool within = look_around(b, work);
        const std::int64_t gap = lowest(b);
        if (gap + set_.size[b] <= ceiling) {
            move(b, gap);
            return true;
        }
        if (!may_eject || !within) return false;
        cheapest(b, ceiling);
        std::vector<std::pair<double, std::int64_t>> places = std::move(places_);
        std::vector<Forbidden> near = near_;
        const std::size_t tries = std::min(places.size(), kPlacesTried);
        std::partial_sort(
            places.begin(), places.begin() + static_cast<std::ptrdiff_t>(tries), places.end());
        const std::size_t mark = moves_.size();
        bool settled = false;
        for (std::size_t i = 0; i < tries && !settled && work >= 0; ++i) {
            const std::int64_t at = places[i].second;
            std::vector<std::int32_t> out;
            for (const Forbidden &other : near)
                if (other.from < at && at < other.to) out.push_back(other.buffer);
            if (out.size() > kEjectionLimit) continue;
            move(b, at);
            for (std::int32_t other : out) move(other, -1);
            std::sort(out.begin(), out.end(), [&](std::int32_t a, std::int32_t c) {
                return set_.size[a] != set_.size[c] ? set_.size[a] > set_.size[c] : a < c;
            });
            settled = std::all_of(out.begin(), out.end(),
                [&](std::int32_t other) { return place_or_eject(other, ceiling, false, work); });
            if (!settled) undo(mark);
        }
        return settled;
    }
    void move(std::int32_t b, std::int64_t at) {
        moves_.emplace_back(b, offset_[b]);
        offset_[b] = at;
    }
    void undo(std::size_t mark) {
        for (; moves_.size() > mark; moves_.pop_back())
            offset_[moves_.back().first] = moves_.back().second;
    }
    // The offset at which the buffers in the way weigh least: the lowest one, or next to what is
    // listed. -1 if there is none, or none without a buffer that may not move.
    std::int64_t cheapest(std::int32_t b, std::int64_t ceiling) {
        return cheapest(b, ceiling, [] { return 1.0; });
    }
    // The same where every price is multiplied by a factor of its own.
    template <typename Factor>
    std::int64_t cheapest(std::int32_t b, std::int64_t ceiling, Factor factor) {
        const std::int64_t alignment = set_.alignment[b], highest = ceiling - set_.size[b];
        places_.clear();
        if (highest < 0) return -1;
        tops_.resize(near_.size());
        std::iota(tops_.begin(), tops_.end(), 0);
        std::sort(tops_.begin(), tops_.end(), [&](std::int32_t a, std::int32_t c) {
            return near_[a].to != near_[c].to ? near_[a].to < near_[c].to : a < c;
        });
        std::size_t above = 0, below = 0, under = 0,
                    over =
                        0; // `above` and `below` walk the candidates, the others what is in the way
        std::int64_t fixed = 0;
        double cost = 0, least = std::numeric_limits<double>::infinity();
        std::int64_t best = -1;
        const auto weigh = [&](const Forbidden &other, int sign) {
            if (std::isinf(weight_[other.buffer]))
                fixed += sign;
            else
                cost += sign * weight_[other.buffer];
        };
        const auto consider = [&](std::int64_t at) {
            if (at < 0 || at > highest) return;
            while (under < near_.size() && near_[under].from < at) weigh(near_[under++], 1);
            while (over < tops_.size() && near_[tops_[over]].to <= at)
                weigh(near_[tops_[over++]], -1);
            if (under == over) cost = 0;
            if (fixed) return;
            places_.emplace_back(cost, at);
            if (const double price = cost * factor(); price < least) least = price, best = at;
        };
        consider(0);
        while (above < tops_.size() || below < near_.size()) {
            const std::int64_t on = above < tops_.size()
                ? align_up(near_[tops_[above]].to, alignment)
                : std::numeric_limits<std::int64_t>::max();
            const std::int64_t room =
                below < near_.size() ? near_[below].from : std::numeric_limits<std::int64_t>::max();
            const std::int64_t hung =
                below < near_.size() ? (room < 0 ? -1 : room / alignment * alignment) : room;
            if (on <= hung)
                ++above, consider(on);
            else
                ++below, consider(hung);
        }
        return best;
    }

    const Neighbours &set_;
    std::vector<std::int64_t> &offset_;
    std::vector<double> weight_;
    std::vector<Forbidden> near_;
    std::vector<std::int32_t> tops_;
    std::vector<std::pair<double, std::int64_t>> places_;
    std::vector<std::pair<std::int32_t, std::int64_t>>
        moves_; // buffers that were moved, and their offsets before
};

} // namespace

bool repair(const Neighbours &neighbours, std::vector<std::int64_t> &offset, std::int64_t ceiling,
    double growth, std::int64_t &work, Budget &budget) {
    return Repair(neighbours, offset).run(ceiling, growth, work, budget);
}

bool repair_at_random(const Neighbours &neighbours, std::vector<std::int64_t> &offset,
    std::int64_t ceiling, Random &random, std::int64_t &work, Budget &budget) {
    return Repair(neighbours, offset).run_at_random(ceiling, random, work, budget);
}

void place_by_ejection(const Neighbours &neighbours, std::vector<std::int64_t> &offset,
    std::int64_t ceiling, std::int64_t &work, Budget &budget) {
    Repair(neighbours, offset).place_by_ejection(ceiling, work, budget);
}

bool place_at_lowest_gap(const Neighbours &neighbours, std::vector<std::int64_t> &offset,
    std::int64_t &work, Budget &budget) {
    return Repair(neighbours, offset).place_at_lowest_gap(work, budget);
}

} // namespace loadmaster::allocation
