#include "placement/search.hpp"

#include "common/limits.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <random>

namespace loadmaster::placement {

namespace {

constexpr double kNever = kInfinite;

class Search {
  public:
    Search(const Tensors &tensors, const Kernels &kernels, const LpRounding &rounding,
        const Paths &base, bool moves, const Links &links, std::uint64_t seed,
        allocation::Budget &budget)
        : t_(tensors), k_(kernels), rounding_(rounding), base_(base), moves_(moves), random_(seed),
          budget_(budget), paths_(base) {
        if (links.overlaps) schedule_.emplace(tensors, kernels, links);
        used_.assign(k_.count(), 0);
        in_slow_.assign(k_.use.size(), 1);
        least_.resize(k_.count());
        several_.assign(k_.count() + 1, 0);
        rent_.assign(k_.count() + 1, 0.0);
        for (std::int64_t k : indices(k_.count())) {
            const auto begin = k_.workspace.begin() + k_.first_algorithm[k],
                       end = k_.workspace.begin() + k_.first_algorithm[k + 1];
            least_[k] = *std::min_element(begin, end);
            several_[k + 1] = several_[k] + (k_.algorithms(k) > 1);
            rent_[k + 1] = rent_[k] + rounding_.memory[k];
        }
        owner_.resize(t_.kernel.size());
        begin_.assign(t_.count(), 0);
        end_.assign(t_.count(), 0);
        for (std::int64_t t : indices(t_.count())) {
            if (t_.first[t] == t_.first[t + 1]) continue;
            for (std::int64_t u : row_of(t_.first, t)) owner_[u] = t;
            const LiveRange range = t_.range(t);
            begin_[t] = range == LiveRange::cyclic || range == LiveRange::input
                ? 0
                : t_.kernel[t_.first[t]];
            end_[t] = range == LiveRange::cyclic || range == LiveRange::output
                ? k_.count()
                : t_.kernel[t_.first[t + 1] - 1] + 1;
            occupy(t, +1);
            order_.push_back(t);
            if (t_.size[t] > 0) movable_.push_back(t);
        }
        std::ranges::stable_sort(
            order_, std::greater{}, [&](std::int64_t t) { return t_.size[t]; });
        seconds_.resize(k_.count());
        for (std::int64_t k : indices(k_.count())) seconds_[k] = time_of(k);
    }

    Paths run(double goal) {
        for (std::int64_t t : order_) follow(t);
        last_ = paths_;
        last_.seconds = total();
        note_stalls();
        while (!movable_.empty() && last_.seconds > goal && budget_.look() && !budget_.spent()) {
            if (last_.rounds++ % 256 == 0 && !schedule_) last_.seconds = total_ = total();
            attempt();
        }
        return last_;
    }

  private:
    // --- state

    Path path(Paths &paths, std::int64_t t) {
        const auto begin = static_cast<std::size_t>(t_.first[t]),
                   count = static_cast<std::size_t>(t_.first[t + 1]) - begin;
        return {std::span(paths.fast).subspan(begin, count),
            std::span(paths.stays).subspan(begin, count), paths.tail[t]};
    }

    // Calls visit(first kernel, end) for every span of kernels during which the tensor is in the
    // fast memory: as `_spans` in schedule.cpp;
    // tests/test_twins.py holds the two together.
    template <class Visit> void spans(const Paths &paths, std::int64_t t, Visit visit) const {
        const std::int64_t begin = t_.first[t], end = t_.first[t + 1];
        if (begin == end) return;
        for (std::int64_t u = begin; u < end; ++u) {
            const std::int64_t from = u > begin ? t_.kernel[u - 1] + 1 : 0;
            if (paths.stays[u] && from < t_.kernel[u]) visit(from, t_.kernel[u]);
            if (paths.fast[u]) visit(t_.kernel[u], t_.kernel[u] + 1);
        }
        if (paths.tail[t]) visit(t_.kernel[end - 1] + 1, k_.count());
    }

    void occupy(std::int64_t t, std::int64_t sign) {
        spans(paths_, t, [&](std::int64_t from, std::int64_t to) {
            for (std::int64_t k = from; k < to; ++k) used_[k] += sign * t_.size[t];
        });
        for (std::int64_t u : row_of(t_.first, t))
            in_slow_[t_.operand[u]] = sign < 0 || !paths_.fast[u];
    }

    // Seconds of kernel k if `free` bytes are there for a workspace.
    double time_of(std::int64_t k, std::int64_t free) const {
        return kernel_time(t_, k_, in_slow_, k, free).seconds;
    }
    double time_of(std::int64_t k) const { return time_of(k, k_.limit[k] - used_[k]); }

    double total() {
        if (schedule_) {
            budget_.add(std::ssize(t_.kernel) + k_.count());
            return schedule_->run({paths_.fast, paths_.stays, paths_.tail});
        }
        double sum = 0;
        for (double seconds : seconds_) sum += seconds;
        for (std::int64_t t : indices(t_.count())) sum += copies(t);
        return sum;
    }

    // Seconds that the copies of a tensor's path take: as `_copies` in
    // loadmaster/placement/autotm/sequence_arrays.py.
    double copies(std::int64_t t) const {
        const std::int64_t begin = t_.first[t], end = t_.first[t + 1];
        if (!moves_ || begin == end) return 0;
        const LiveRange range = t_.range(t);
        double sum = 0;
        // A cyclic tensor's state at the start is the one at the end: found by going round twice.
        enum {
            dirty,
            clean,
            slow
        } state = range == LiveRange::input && paths_.stays[begin] ? dirty : slow;
        if (range == LiveRange::cyclic && paths_.fast[end - 1]) state = clean;
        for (int round = range == LiveRange::cyclic ? 0 : 1; round < 2; ++round) {
            sum = 0;
            for (std::int64_t u = begin; u < end; ++u) {
                if (!paths_.stays[u]) {
                    if (state == dirty &&
                        (t_.reads[u] || (u == begin && range == LiveRange::cyclic)))
                        sum += t_.to_slow[u > begin ? u - 1 : end - 1];
                    if (paths_.fast[u] && t_.reads[u]) sum += t_.to_fast[u];
                    state = paths_.fast[u] ? clean : slow;
                }
                if (paths_.fast[u] && t_.writes[u]) state = dirty;
            }
        }
        if (range == LiveRange::output && state == dirty && !paths_.tail[t])
            sum += t_.to_slow[end - 1];
        return sum;
    }

    // --- one tensor

    // Fills the costs of a tensor's choices given where the others are. The tensor itself must have
    // been taken out. `rent` weighs the prices of memory, `toll` those of copies; without
    // `exactly`, uses cost what the linear program thought.
    void price(std::int64_t t, double rent, double toll, bool exactly) {
        const std::int64_t begin = t_.first[t], end = t_.first[t + 1], size = t_.size[t],
                           last = k_.count();
        choices_.never = kNever;
        choices_.live_range = t_.range(t);
        choices_.resize(end - begin);
        choices_.last = toll * t_.to_slow[end - 1];
        choices_.tail = choices_.lasts() ? gap(t_.kernel[end - 1] + 1, last, size, rent) : kNever;
        for (std::int64_t u = begin; u < end; ++u) {
            const std::int64_t i = u - begin, k = t_.kernel[u], free = k_.limit[k] - used_[k];
            choices_.in[i] = toll * t_.to_fast[u];
            choices_.out[i] = u > begin ? toll * t_.to_slow[u - 1] : choices_.last;
            choices_.reads[i] = t_.reads[u];
            choices_.writes[i] = t_.writes[u];
            std::uint8_t &place = in_slow_[t_.operand[u]];
            place = 0;
            double fast = free >= size + least_[k] ? time_of(k, free - size) : kNever;
            place = 1;
            double slow = free >= least_[k] ? time_of(k, free) : kNever;
            if (!exactly && fast < kNever) fast = rounding_.fast[u];
            if (!exactly && slow < kNever) slow = rounding_.slow[u];
            choices_.fast[i] = fast + rent * rounding_.memory[k] * static_cast<double>(size);
            choices_.slow[i] = slow;
            const std::int64_t from = u > begin ? t_.kernel[u - 1] + 1 : 0;
            choices_.stay[i] = i > 0 || choices_.begins() ? gap(from, k, size, rent) : kNever;
        }
        if (choices_.live_range == LiveRange::cyclic) choices_.stay[0] += choices_.tail;
    }

    // Cost of being there while kernels from `from` to `to` - 1 run, none of which uses the tensor.
    double gap(std::int64_t from, std::int64_t to, std::int64_t size, double rent) const {
        for (std::int64_t k = from; k < to; ++k)
            if (k_.limit[k] - used_[k] - least_[k] < size) return kNever;
        double cost = rent * (rent_[to] - rent_[from]) * static_cast<double>(size);
        if (several_[to] > several_[from])
            for (std::int64_t k = from; k < to; ++k)
                if (k_.algorithms(k) > 1)
                    cost += time_of(k, k_.limit[k] - used_[k] - size) -
                        time_of(k, k_.limit[k] - used_[k]);
        return cost;
    }

    // Takes a tensor out of the fast memory and out of the kernels that use it; the sums of seconds
    // follow.
    void remove(std::int64_t t) {
        total_ -= copies(t);
        occupy(t, -1);
        refresh_spans(t);
    }

    void insert(std::int64_t t) {
        total_ += copies(t);
        occupy(t, +1);
        for (std::int64_t u : row_of(t_.first, t)) refresh(t_.kernel[u]);
        refresh_spans(t);
    }

    void refresh(std::int64_t k) {
        total_ -= seconds_[k];
        seconds_[k] = time_of(k);
        total_ += seconds_[k];
    }

    // Kernels with several algorithms take what memory is free.
    void refresh_spans(std::int64_t t) {
        spans(paths_, t, [&](std::int64_t from, std::int64_t to) {
            if (several_[to] == several_[from]) return;
            for (std::int64_t k = from; k < to; ++k)
                if (k_.algorithms(k) > 1) refresh(k);
        });
    }

    // The cheapest path for the costs in `choices_`; false if there is none.
    bool choose(std::int64_t t) {
        budget_.add(t_.first[t + 1] - t_.first[t]);
        Path mine = path(paths_, t);
        if (moves_) return path_.solve(choices_, &mine) < kNever;
        const auto [fast, slow] = placed_once(choices_);
        if (std::min(fast, slow) == kNever) return false;
        std::ranges::fill(mine.fast, fast <= slow);
        std::ranges::fill(mine.stays, fast <= slow);
        if (!choices_.begins() && mine.stays.size()) mine.stays[0] = 0;
        mine.tail = fast <= slow && choices_.lasts();
        return true;
    }

    // Gives a tensor its cheapest path; the one it has remains if there is none.
    void replace(std::int64_t t, double rent, double toll, bool exactly) {
        remove(t);
        price(t, rent, toll, exactly);
        choose(t);
        insert(t);
    }

    // --- all tensors

    // Gives a tensor the path that the linear program says, if it is possible, else the cheapest by
    // its prices.
    void follow(std::int64_t t) {
        remove(t);
        price(t, 1.0, 1.0, false);
        if (!possible(t)) choose(t);
        insert(t);
    }

    bool possible(std::int64_t t) {
        const std::int64_t begin = t_.first[t], end = t_.first[t + 1];
        for (std::int64_t u = begin; u < end; ++u) {
            const std::int64_t i = u - begin;
            if ((rounding_.guess.fast[u] ? choices_.fast[i] : choices_.slow[i]) == kNever)
                return false;
            if (rounding_.guess.stays[u] && choices_.stay[i] == kNever) return false;
        }
        if (rounding_.guess.tail[t] && choices_.tail == kNever) return false;
        take(t, rounding_.guess);
        return true;
    }

    // Gives a tensor that has been taken out the path that it has in `other`.
    void take(std::int64_t t, const PathsView &other) {
        const Path mine = path(paths_, t);
        std::copy_n(other.fast.begin() + t_.first[t], mine.fast.size(), mine.fast.begin());
        std::copy_n(other.stays.begin() + t_.first[t], mine.stays.size(), mine.stays.begin());
        mine.tail = other.tail[t];
    }

    void assume(std::int64_t t, const Paths &other) {
        remove(t);
        take(t, {other.fast, other.stays, other.tail});
        insert(t);
    }

    double share() { return static_cast<double>(random_() >> 11) * 0x1p-53; }
    std::int64_t below(std::size_t count) { return static_cast<std::int64_t>(random_() % count); }

    // Tensors to take out: a few that live at one kernel, often one that waited for a copy, those
    // that were copied shortly before, and operands of the kernel.
    void gather() {
        victims_.clear();
        const auto add = [&](std::int64_t t) {
            if (t_.size[t] > 0 && std::ranges::find(victims_, t) == victims_.end())
                victims_.push_back(t);
        };
        std::int64_t at = 0;
        if (!stalls_.empty() && share() < kLate) {
            const auto found =
                std::ranges::upper_bound(stalls_, share() * stalls_.back().until, {}, &Late::until);
            const Late &late = found == stalls_.end() ? stalls_.back() : *found;
            if (below(2)) add(late.tensor);
            for (std::int64_t others = victims_.empty() ? 1 : below(3); others > 0; --others)
                add(copied_[std::max<std::int64_t>(0, late.place - below(kBefore))]);
            at = std::min(late.position, k_.count() - 1);
        } else {
            const std::int64_t t = movable_[below(movable_.size())];
            at = t_.kernel[t_.first[t] + below(t_.first[t + 1] - t_.first[t])];
            add(t);
        }
        if (share() < (schedule_ ? 0.3 : 0.7))
            for (std::int64_t o : row_of(k_.first_operand, at))
                if (share() < 0.7) add(owner_[k_.use[o]]);
        const std::size_t most = schedule_ ? 1 + below(5) : victims_.size() + 1 + below(8);
        for (int tries = 0; tries < 40 && victims_.size() < most; ++tries) {
            const std::int64_t t = movable_[below(movable_.size())];
            if (begin_[t] <= at && at < end_[t]) add(t);
        }
        std::ranges::shuffle(victims_, random_);
    }

    // Notes what kernels waited for in the schedule that is kept.
    void note_stalls() {
        if (!schedule_) return;
        stalls_.clear();
        copied_.clear();
        place_.assign(schedule_->copies().size(), 0);
        for (std::int64_t c : schedule_->order()) {
            place_[c] = std::ssize(copied_);
            copied_.push_back(schedule_->copies()[c].tensor);
        }
        double until = 0;
        for (const Stall &stall : schedule_->stalls())
            stalls_.push_back({until += stall.seconds, stall.position,
                schedule_->copies()[stall.copy].tensor, place_[stall.copy]});
    }

    bool changed(std::int64_t t) {
        const Path now = path(paths_, t), before = path(last_, t);
        return !std::ranges::equal(now.fast, before.fast) ||
            !std::ranges::equal(now.stays, before.stays) || now.tail != before.tail;
    }

    // Large neighbourhood search: tensors that live at the same time or meet at a kernel go back to
    // the base, then look for a path again in a random order at random prices. What is not worse is
    // kept.
    void attempt() {
        gather();
        for (std::int64_t t : victims_) assume(t, base_);
        const double rent = share() < 0.3 ? 0.0 : (schedule_ ? 2.0 : 1.0) * share();
        // Where copies overlap kernels, what a use takes now says no more than what the linear
        // program thought.
        const bool exactly = !schedule_ || below(2);
        for (std::int64_t t : victims_) replace(t, rent, schedule_ ? 2.0 * share() : 1.0, exactly);
        const auto differs = [&](std::int64_t t) { return changed(t); };
        if (std::ranges::any_of(victims_, differs)) {
            const double now = schedule_ ? total() : total_;
            if (now <= last_.seconds && std::isfinite(now)) {
                last_.seconds = now;
                for (std::int64_t t : victims_) {
                    const Path mine = path(last_, t), found = path(paths_, t);
                    std::ranges::copy(found.fast, mine.fast.begin());
                    std::ranges::copy(found.stays, mine.stays.begin());
                    mine.tail = found.tail;
                }
                note_stalls();
                return;
            }
        }
        for (std::int64_t t : victims_) assume(t, last_);
        total_ = last_.seconds;
    }

    struct Late {
        double until; // seconds that kernels waited, up to this one
        std::int64_t position, tensor, place;
    };
    static constexpr double kLate = 0.5;
    static constexpr std::int64_t kBefore = 12;

    const Tensors &t_;
    const Kernels &k_;
    const LpRounding &rounding_;
    const Paths &base_;
    const bool moves_;
    std::mt19937_64 random_;
    allocation::Budget &budget_;
    Paths paths_, last_;                // those that are tried, and those that are kept
    std::optional<Schedule> schedule_;  // where copies overlap kernels
    std::vector<std::int64_t> used_;    // bytes of tensors while each kernel runs
    std::vector<std::uint8_t> in_slow_; // of every operand, kernel by kernel
    std::vector<std::int64_t> least_;   // the smallest workspace of each kernel
    std::vector<std::int64_t> several_; // kernels with a choice of algorithms before each
    std::vector<double> rent_;          // prices of memory before each kernel
    std::vector<double> seconds_;       // of each kernel
    double total_ = 0;                  // seconds, up to rounding
    std::vector<std::int64_t> owner_, begin_,
        end_; // the tensor of each use; the live range of each tensor
    std::vector<std::int64_t> order_, movable_,
        victims_; // tensors that are used, the largest first
    std::vector<Late> stalls_;
    std::vector<std::int64_t> copied_,
        place_; // tensors in the order of their copies, and where each copy is in it
    Choices<double> choices_;
    ShortestPath<double> path_;
};

} // namespace

Paths search(const Tensors &tensors, const Kernels &kernels, const LpRounding &rounding,
    const Paths &base, bool moves, const Links &links, double goal, std::uint64_t seed,
    allocation::Budget &budget) {
    return Search(tensors, kernels, rounding, base, moves, links, seed, budget).run(goal);
}

} // namespace loadmaster::placement
