#include "repair.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <queue>

namespace loadmaster::allocation {

namespace {

constexpr double kHeavier = 1.5;

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
    std::int64_t lowest(std::int32_t b) {
        meet(b);
        std::int64_t at = 0;
        for (const Neighbour &other : near_) {
            if (other.low >= at + plain_.size[b]) break;
            at = std::max(at, align_up(other.high, plain_.alignment[b]));
        }
        return at;
    }

  private:
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
};

}  // namespace

bool repair(const Plain &plain, const Company &company, std::vector<std::int64_t> &offset, std::int64_t ceiling, std::int64_t &work, Budget &budget) {
    return Repair(plain, company, offset).run(ceiling, work, budget);
}

void top_up(const Plain &plain, const Company &company, std::vector<std::int64_t> &offset) {
    std::vector<std::int32_t> out = left_out(plain, offset);
    std::sort(out.begin(), out.end(), [&](std::int32_t a, std::int32_t b) { return plain.size[a] != plain.size[b] ? plain.size[a] > plain.size[b] : a < b; });
    Repair last(plain, company, offset);
    for (std::int32_t b : out) offset[b] = last.lowest(b);
}

}  // namespace loadmaster::allocation
