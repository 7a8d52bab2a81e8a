#include "placement/overlap_search.hpp"

#include <algorithm>
#include <limits>
#include <random>

namespace loadmaster::placement {

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

class OverlapSearch {
  public:
    OverlapSearch(const Tensors &tensors, const Kernels &kernels, const Advice &advice,
        const Links &links, const Paths &paths, std::uint64_t seed, allocation::Budget &budget)
        : t_(tensors), k_(kernels), advice_(advice), random_(seed), budget_(budget), paths_(paths),
          schedule_(tensors, kernels, links) {
        room_.resize(k_.count());
        rent_.assign(k_.count() + 1, 0.0);
        for (std::int64_t k = 0; k < k_.count(); ++k) {
            const auto begin = k_.workspace.begin() + k_.first_algorithm[k],
                       end = k_.workspace.begin() + k_.first_algorithm[k + 1];
            room_[k] = k_.limit[k] - *std::min_element(begin, end);
            rent_[k + 1] = rent_[k] + advice_.memory[k];
        }
        begin_.assign(t_.count(), 0);
        end_.assign(t_.count(), 0);
        owner_.resize(t_.kernel.size());
        for (std::int64_t t = 0; t < t_.count(); ++t) {
            if (t_.first[t] == t_.first[t + 1]) continue;
            const LiveRange range = static_cast<LiveRange>(t_.live_range[t]);
            begin_[t] = range == LiveRange::cyclic || range == LiveRange::input
                ? 0
                : t_.kernel[t_.first[t]];
            end_[t] = range == LiveRange::cyclic || range == LiveRange::output
                ? k_.count()
                : t_.kernel[t_.first[t + 1] - 1] + 1;
            for (std::int64_t u = t_.first[t]; u < t_.first[t + 1]; ++u) owner_[u] = t;
            occupy(t, +1);
            if (t_.size[t] > 0) movable_.push_back(t);
        }
    }

    Paths run(double goal) {
        paths_.seconds = schedule_.run({paths_.fast, paths_.stays, paths_.tail, paths_.earliest});
        look_back();
        while (!movable_.empty() && paths_.seconds > goal && budget_.look() && !budget_.spent()) {
            attempt();
            ++paths_.rounds;
        }
        return paths_;
    }

  private:
    Path path(std::int64_t t) {
        const auto begin = static_cast<std::size_t>(t_.first[t]),
                   count = static_cast<std::size_t>(t_.first[t + 1]) - begin;
        return {std::span(paths_.fast).subspan(begin, count),
            std::span(paths_.stays).subspan(begin, count), paths_.tail[t]};
    }

    void occupy(std::int64_t t, std::int64_t sign) {
        const std::int64_t begin = t_.first[t], end = t_.first[t + 1], bytes = sign * t_.size[t];
        const auto take = [&](std::int64_t from, std::int64_t to) {
            for (std::int64_t k = from; k < to; ++k) room_[k] -= bytes;
        };
        for (std::int64_t u = begin; u < end; ++u) {
            if (paths_.stays[u]) take(u > begin ? t_.kernel[u - 1] + 1 : 0, t_.kernel[u]);
            if (paths_.fast[u]) take(t_.kernel[u], t_.kernel[u] + 1);
        }
        if (paths_.tail[t]) take(t_.kernel[end - 1] + 1, k_.count());
    }

    double gap(std::int64_t from, std::int64_t to, std::int64_t size, double rent) const {
        for (std::int64_t k = from; k < to; ++k)
            if (room_[k] < size) return kNever;
        return rent * (rent_[to] - rent_[from]) * static_cast<double>(size);
    }

    // The costs of a tensor that has been taken out; memory and copies cost `rent` and `toll` times
    // their prices.
    void price(std::int64_t t, double rent, double toll) {
        const std::int64_t begin = t_.first[t], end = t_.first[t + 1], size = t_.size[t];
        choices_.never = kNever;
        choices_.live_range = static_cast<LiveRange>(t_.live_range[t]);
        choices_.resize(end - begin);
        choices_.last = toll * t_.to_slow[end - 1];
        const bool tail =
            choices_.live_range == LiveRange::cyclic || choices_.live_range == LiveRange::output;
        choices_.tail = tail ? gap(t_.kernel[end - 1] + 1, k_.count(), size, rent) : kNever;
        for (std::int64_t u = begin; u < end; ++u) {
            const std::int64_t i = u - begin, k = t_.kernel[u];
            choices_.in[i] = toll * t_.to_fast[u];
            choices_.out[i] = u > begin ? toll * t_.to_slow[u - 1] : choices_.last;
            choices_.reads[i] = t_.reads[u];
            choices_.writes[i] = t_.writes[u];
            choices_.fast[i] = room_[k] < size
                ? kNever
                : advice_.fast[u] + rent * advice_.memory[k] * static_cast<double>(size);
            choices_.slow[i] = t_.slow[u] < kNever ? advice_.slow[u] : kNever;
            const bool alive = u > begin || choices_.live_range == LiveRange::cyclic ||
                choices_.live_range == LiveRange::input;
            choices_.stay[i] =
                alive ? gap(u > begin ? t_.kernel[u - 1] + 1 : 0, k, size, rent) : kNever;
        }
        if (choices_.live_range == LiveRange::cyclic) choices_.stay[0] += choices_.tail;
    }

    double share() { return static_cast<double>(random_() >> 11) * 0x1p-53; }
    std::int64_t below(std::size_t count) { return static_cast<std::int64_t>(random_() % count); }

    // Tensors to take out: one, and others that live while one of its kernels runs.
    void gather() {
        victims_.clear();
        const auto add = [&](std::int64_t t) {
            if (t_.size[t] > 0 && std::find(victims_.begin(), victims_.end(), t) == victims_.end())
                victims_.push_back(t);
        };
        std::int64_t at = gather_late(add);
        if (victims_.empty()) {
            add(movable_[below(movable_.size())]);
            at = begin_[victims_[0]] + below(end_[victims_[0]] - begin_[victims_[0]]);
        }
        if (share() < 0.3)
            for (std::int64_t o = k_.first_operand[at]; o < k_.first_operand[at + 1]; ++o)
                add(owner_[k_.use[o]]);
        const std::size_t most = 1 + below(5);
        for (int tries = 0; tries < 30 && victims_.size() < most; ++tries) {
            const std::int64_t t = movable_[below(movable_.size())];
            if (begin_[t] <= at && at < end_[t]) add(t);
        }
        std::shuffle(victims_.begin(), victims_.end(), random_);
    }

    // Often: tensors whose copies a kernel waited for, or that were copied shortly before.
    template <class Add> std::int64_t gather_late(Add add) {
        if (late_.empty() || share() >= kLate) return -1;
        const auto found =
            std::ranges::upper_bound(late_, share() * late_.back().until, {}, &Late::until);
        const Late &late = found == late_.end() ? late_.back() : *found;
        if (below(2)) add(late.tensor);
        const std::size_t others = victims_.empty() ? 1 : below(3);
        for (std::size_t i = 0; i < others; ++i)
            add(copied_[std::max<std::int64_t>(0, late.place - below(kBefore))]);
        return std::min(late.position, k_.count() - 1);
    }

    // Notes what kernels waited for in the schedule that is kept.
    void look_back() {
        late_.clear();
        copied_.clear();
        place_.assign(schedule_.copies().size(), 0);
        for (std::int64_t c : schedule_.order()) {
            place_[c] = static_cast<std::int64_t>(copied_.size());
            copied_.push_back(schedule_.copies()[c].tensor);
        }
        double until = 0;
        for (const Stall &stall : schedule_.stalls())
            late_.push_back({until += stall.seconds, stall.position,
                schedule_.copies()[stall.copy].tensor, place_[stall.copy]});
    }

    void save() {
        kept_.clear();
        for (std::int64_t t : victims_) {
            const Path mine = path(t);
            kept_.insert(kept_.end(), mine.fast.begin(), mine.fast.end());
            kept_.insert(kept_.end(), mine.stays.begin(), mine.stays.end());
            kept_.push_back(mine.tail);
        }
    }

    bool changed() {
        auto at = kept_.begin();
        for (std::int64_t t : victims_) {
            const Path mine = path(t);
            const auto same = [&](std::span<const std::uint8_t> part) {
                const bool equal = std::equal(part.begin(), part.end(), at);
                at += static_cast<std::ptrdiff_t>(part.size());
                return equal;
            };
            if (!same(mine.fast) || !same(mine.stays) || mine.tail != *at++) return true;
        }
        return false;
    }

    void restore() {
        auto at = kept_.begin();
        for (std::int64_t t : victims_) {
            Path mine = path(t);
            for (auto part : {mine.fast, mine.stays}) {
                std::copy_n(at, part.size(), part.begin());
                at += static_cast<std::ptrdiff_t>(part.size());
            }
            mine.tail = *at++;
        }
    }

    void attempt() {
        gather();
        save();
        for (std::int64_t t : victims_) occupy(t, -1);
        const double rent = share() < 0.2 ? 0.0 : 2.0 * share();
        std::size_t placed = 0;
        for (std::int64_t t : victims_) {
            price(t, rent, 2.0 * share());
            budget_.add(t_.first[t + 1] - t_.first[t]);
            Path mine = path(t);
            if (path_.solve(choices_, &mine) == kNever) break;
            occupy(t, +1);
            ++placed;
        }
        if (placed == victims_.size()) {
            if (!changed()) return;
            budget_.add(static_cast<std::int64_t>(t_.kernel.size()) + k_.count());
            const double seconds =
                schedule_.run({paths_.fast, paths_.stays, paths_.tail, paths_.earliest});
            if (seconds <= paths_.seconds) {
                paths_.seconds = seconds;
                look_back();
                return;
            }
        }
        for (std::size_t i = 0; i < placed; ++i) occupy(victims_[i], -1);
        restore();
        for (std::int64_t t : victims_) occupy(t, +1);
    }

    struct Late {
        double until; // seconds that kernels waited, up to this one
        std::int64_t position, tensor, place;
    };
    static constexpr double kLate = 0.5;
    static constexpr std::int64_t kBefore = 12;

    const Tensors &t_;
    const Kernels &k_;
    const Advice &advice_;
    std::mt19937_64 random_;
    allocation::Budget &budget_;
    Paths paths_;
    Schedule schedule_;
    std::vector<std::int64_t> room_; // bytes that no path takes, beside the smallest workspace
    std::vector<double> rent_;       // prices of memory before each kernel
    std::vector<std::int64_t> owner_, begin_, end_, movable_, victims_;
    std::vector<Late> late_;
    std::vector<std::int64_t> copied_,
        place_; // tensors in the order of their copies, and where each copy is in it
    std::vector<std::uint8_t> kept_;
    Choices<double> choices_;
    ShortestPath<double> path_;
};

} // namespace

Paths search_overlapping(const Tensors &tensors, const Kernels &kernels, const Advice &advice,
    const Links &links, const Paths &paths, double goal, std::uint64_t seed,
    allocation::Budget &budget) {
    return OverlapSearch(tensors, kernels, advice, links, paths, seed, budget).run(goal);
}

} // namespace loadmaster::placement
