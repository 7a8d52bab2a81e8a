#include "allocation/repair.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <queue>

namespace loadmaster::allocation {

namespace {

constexpr double kHeavier = 1.5;
constexpr std::size_t kTries = 100, kMostOut = 12;  // places tried for a buffer, and others to be put out there

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
    Repair(const Plain &plain, const Company &company, std::vector<std::int64_t> &offset) : plain_(plain), company_(company), offset_(offset), weight_(plain.count()) {
        for (std::int32_t b = 0; b < plain.count(); ++b)
            weight_[b] = static_cast<double>(plain.size[b]) * (static_cast<double>(plain.end[b]) - static_cast<double>(plain.begin[b]));
    }
    bool run(std::int64_t ceiling, std::int64_t &work, Budget &budget) {
        const auto smaller = [&](std::int32_t a, std::int32_t b) { return plain_.size[a] != plain_.size[b] ? plain_.size[a] < plain_.size[b] : a > b; };
        std::priority_queue<std::int32_t, std::vector<std::int32_t>, decltype(smaller)> out(smaller, left_out(plain_, offset_));
        while (!out.empty()) {
            const std::int32_t b = out.top();
            out.pop();
            meet(b);
            work -= static_cast<std::int64_t>(near_.size()) + 1;
            if (work < 0 || !budget.look()) return false;
            const std::int64_t at = cheapest(b, ceiling);
            if (at < 0) return false;
            for (const Neighbour &other : near_)
                if (other.low < at + plain_.size[b] && at < other.high) offset_[other.buffer] = -1, out.push(other.buffer);
            offset_[b] = at;
            weight_[b] *= kHeavier;
        }
        return true;
    }
    void squeeze_in(std::int64_t ceiling, std::int64_t &work, Budget &budget) {
        for (std::int32_t b : largest_first())
            if (work >= 0 && budget.look()) squeeze(b, ceiling, true, work);
    }
    bool top_up(std::int64_t &work, Budget &budget) {
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
        meet(b);
        std::int64_t at = 0;
        for (const Neighbour &other : near_) {
            if (other.low >= at + plain_.size[b]) break;
            at = std::max(at, align_up(other.high, plain_.alignment[b]));
        }
        return at;
    }

    // Into a gap, or where all those in the way find a gap elsewhere.
    bool squeeze(std::int32_t b, std::int64_t ceiling, bool may_put_out, std::int64_t &work) {
        const std::int64_t gap = lowest(b);
        work -= static_cast<std::int64_t>(near_.size()) + 1;
        if (gap + plain_.size[b] <= ceiling) {
            move(b, gap);
            return true;
        }
        if (!may_put_out || work < 0) return false;
        cheapest(b, ceiling);
        std::vector<std::pair<double, std::int64_t>> places = std::move(places_);
        std::vector<Neighbour> near = near_;
        const std::size_t tries = std::min(places.size(), kTries);
        std::partial_sort(places.begin(), places.begin() + static_cast<std::ptrdiff_t>(tries), places.end());
        const std::size_t mark = moves_.size();
        bool settled = false;
        for (std::size_t i = 0; i < tries && !settled && work >= 0; ++i) {
            const std::int64_t at = places[i].second;
            std::vector<std::int32_t> out;
            for (const Neighbour &other : near)
                if (other.low < at + plain_.size[b] && at < other.high) out.push_back(other.buffer);
            if (out.size() > kMostOut) continue;
            move(b, at);
            for (std::int32_t other : out) move(other, -1);
            std::sort(out.begin(), out.end(), [&](std::int32_t a, std::int32_t c) { return plain_.size[a] != plain_.size[c] ? plain_.size[a] > plain_.size[c] : a < c; });
            settled = std::all_of(out.begin(), out.end(), [&](std::int32_t other) { return squeeze(other, ceiling, false, work); });
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
    // Whoever is placed and alive together with a buffer, in order of address.
    void meet(std::int32_t b) {
        near_.clear();
        company_.of(b, [&](std::int32_t other) {
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
    const Company &company_;
    std::vector<std::int64_t> &offset_;
    std::vector<double> weight_;
    std::vector<Neighbour> near_;
    std::vector<std::int32_t> tops_;
    std::vector<std::pair<double, std::int64_t>> places_;
    std::vector<std::pair<std::int32_t, std::int64_t>> moves_;  // who moved, and from where
};

}  // namespace

bool repair(const Plain &plain, const Company &company, std::vector<std::int64_t> &offset, std::int64_t ceiling, std::int64_t &work, Budget &budget) {
    return Repair(plain, company, offset).run(ceiling, work, budget);
}

void squeeze_in(const Plain &plain, const Company &company, std::vector<std::int64_t> &offset, std::int64_t ceiling, std::int64_t &work, Budget &budget) {
    Repair(plain, company, offset).squeeze_in(ceiling, work, budget);
}

bool top_up(const Plain &plain, const Company &company, std::vector<std::int64_t> &offset, std::int64_t &work, Budget &budget) {
    return Repair(plain, company, offset).top_up(work, budget);
}

}  // namespace loadmaster::allocation
