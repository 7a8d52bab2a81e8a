#include "allocation/repair.hpp"

#include "common/limits.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <queue>

namespace loadmaster::allocation {

namespace {

// At random, a place may seem up to this much dearer than it is.
constexpr double kNoise = 0.3;
// Each time it is placed, a buffer weighs so much of its first weight more.
constexpr double kGrowth = 0.3;
// At first, what is ejected may be worth so many times more, in the mean. A third, or three times
// as much, leaves out 2 to 5 % more.
constexpr double kTolerance = 3.0;
// So many neighbours are looked at in half the time of a node of exact search.
constexpr std::int64_t kNeighboursPerNode = 100;

std::vector<std::int32_t> left_out(const std::vector<std::int64_t> &offset) {
    std::vector<std::int32_t> out;
    for (std::size_t b : indices(offset.size()))
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
            if (!eject_into(b, cheapest(b, ceiling, [] { return 1.0; }),
                    [&](std::int32_t other) { out.push(other); }))
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
    void place_most_worth(std::span<const double> worth, std::int64_t ceiling, std::int64_t nodes) {
        std::int64_t work = kNeighboursPerNode * std::min(nodes, kUnlimited / kNeighboursPerNode);
        for (std::size_t b : indices(weight_.size()))
            if (std::isfinite(weight_[b])) weight_[b] = worth[b];
        std::vector<std::int32_t> out = left_out(offset_);
        double lost = 0;
        for (std::int32_t b : out) lost += worth[b];
        std::vector<std::int64_t> best = offset_;
        Random random(0);
        const auto noise = [&] { return 1 + kNoise * random.uniform(); };
        const auto all = static_cast<double>(work);
        for (double least = lost; !out.empty();) {
            std::swap(out[random.index(out.size())], out.back());
            const std::int32_t b = out.back();
            if (!look_around(b, work)) break;
            const std::int64_t at = cheapest(b, ceiling, noise);
            const double tolerance = kTolerance * static_cast<double>(work) / all;
            const double most = weight_[b] * (1 - tolerance * std::log(1 - random.uniform()));
            if (at < 0 || in_the_way_ > most) continue;
            out.pop_back();
            lost -= worth[b];
            eject_into(b, at, [&](std::int32_t other) {
                out.push_back(other);
                lost += worth[other];
            });
            if (lost < least) least = lost, best = offset_;
        }
        offset_ = std::move(best);
    }
    bool place_at_lowest_gap(std::int64_t &work, Budget &budget) {
        std::vector<std::int32_t> out = left_out(offset_);
        std::ranges::stable_sort(out, std::greater{}, [&](std::int32_t a) { return set_.size[a]; });
        for (std::int32_t b : out) {
            const bool within = look_around(b, work);
            offset_[b] = lowest(b);
            if (!within || !budget.look()) return false;
        }
        return true;
    }

  private:
    // Lists what is in the way of a buffer; false once the work is spent.
    bool look_around(std::int32_t b, std::int64_t &work) {
        set_.list(b, offset_, near_);
        work -= std::ssize(near_) + 1;
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

    // The offset at which the buffers in the way weigh least: the lowest one, or next to what is
    // listed. -1 if there is none, or none without a buffer that may not move. Every price is
    // multiplied by a factor of its own.
    template <typename Factor>
    std::int64_t cheapest(std::int32_t b, std::int64_t ceiling, Factor factor) {
        const std::int64_t alignment = set_.alignment[b], highest = ceiling - set_.size[b];
        if (highest < 0) return -1;
        tops_.resize(near_.size());
        std::iota(tops_.begin(), tops_.end(), 0);
        std::ranges::sort(
            tops_, {}, [&](std::int32_t top) { return std::pair(near_[top].to, top); });
        std::size_t above = 0, below = 0, under = 0,
                    over =
                        0; // `above` and `below` walk the candidates, the others what is in the way
        std::int64_t fixed = 0;
        double cost = 0, least = kInfinite;
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
            if (const double price = cost * factor(); price < least)
                least = price, best = at, in_the_way_ = cost;
        };
        consider(0);
        while (above < tops_.size() || below < near_.size()) {
            const std::int64_t on =
                above < tops_.size() ? align_up(near_[tops_[above]].to, alignment) : kUnlimited;
            const std::int64_t room = below < near_.size() ? near_[below].from : kUnlimited;
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
    double in_the_way_ = 0; // the weight of what the cheapest place ejects
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

void place_most_worth(const Neighbours &neighbours, std::span<const double> worth,
    std::vector<std::int64_t> &offset, std::int64_t ceiling, std::int64_t nodes) {
    Repair(neighbours, offset).place_most_worth(worth, ceiling, nodes);
}

bool place_at_lowest_gap(const Neighbours &neighbours, std::vector<std::int64_t> &offset,
    std::int64_t &work, Budget &budget) {
    return Repair(neighbours, offset).place_at_lowest_gap(work, budget);
}

} // namespace loadmaster::allocation
