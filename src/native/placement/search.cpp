#include "placement/search.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace loadmaster::placement {

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

class Search {
  public:
    Search(const Tensors &tensors, const Kernels &kernels, const Advice &advice, const Paths &base,
        bool moves, std::uint64_t seed, allocation::Budget &budget)
        : t_(tensors), k_(kernels), advice_(advice), base_(base), moves_(moves), random_(seed),
          budget_(budget), paths_(base) {
        used_.assign(k_.count(), 0);
        in_slow_.assign(k_.use.size(), 1);
        least_.resize(k_.count());
        several_.assign(k_.count() + 1, 0);
        rent_.assign(k_.count() + 1, 0.0);
        for (std::int64_t k = 0; k < k_.count(); ++k) {
            const auto begin = k_.workspace.begin() + k_.first_algorithm[k],
                       end = k_.workspace.begin() + k_.first_algorithm[k + 1];
            least_[k] = *std::min_element(begin, end);
            several_[k + 1] = several_[k] + (k_.algorithms(k) > 1);
            rent_[k + 1] = rent_[k] + advice_.memory[k];
        }
        owner_.resize(t_.kernel.size());
        begin_.assign(t_.count(), 0);
        end_.assign(t_.count(), 0);
        for (std::int64_t t = 0; t < t_.count(); ++t) {
            if (t_.first[t] == t_.first[t + 1]) continue;
            for (std::int64_t u = t_.first[t]; u < t_.first[t + 1]; ++u) owner_[u] = t;
            const LiveRange range = static_cast<LiveRange>(t_.live_range[t]);
            begin_[t] = range == LiveRange::cyclic || range == LiveRange::input
                ? 0
                : t_.kernel[t_.first[t]];
            end_[t] = range == LiveRange::cyclic || range == LiveRange::output
                ? k_.count()
                : t_.kernel[t_.first[t + 1] - 1] + 1;
            occupy(t, +1);
        }
        seconds_.resize(k_.count());
        for (std::int64_t k = 0; k < k_.count(); ++k) seconds_[k] = time_of(k);
    }

    Paths run(double goal) {
        for (std::int64_t t : advice_.order) follow(t);
        settle();
        best_ = paths_;
        best_.seconds = total();
        improve(goal);
        return best_;
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
    // fast memory: as `_spans` in loadmaster/placement/autotm/sequence_arrays.py;
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
        for (std::int64_t u = t_.first[t]; u < t_.first[t + 1]; ++u)
            in_slow_[t_.operand[u]] = sign < 0 || !paths_.fast[u];
    }

    // Seconds of kernel k if `free` bytes are there for a workspace; infinite if it cannot run.
    // As `Kernel.seconds` in loadmaster/placement/sequence.py; tests/test_twins.py holds the two
    // together.
    double time_of(std::int64_t k, std::int64_t free) const {
        double best = kNever;
        if (k_.measured(k)) {
            const std::int64_t entries = k_.entries(k);
            std::int64_t index = 0;
            for (std::int64_t o = 0; (std::int64_t{1} << o) < entries; ++o)
                index |= std::int64_t{in_slow_[k_.first_operand[k] + o]} << o;
            const double *table = k_.table.data() + k_.first_entry[k];
            for (std::int64_t a = k_.first_algorithm[k]; a < k_.first_algorithm[k + 1];
                ++a, table += entries)
                if (k_.workspace[a] <= free) best = std::min(best, table[index]);
            return best;
        }
        for (std::int64_t a = k_.first_algorithm[k]; a < k_.first_algorithm[k + 1]; ++a)
            if (k_.workspace[a] <= free) best = std::min(best, k_.seconds[a]);
        double fast = 0, slow = 0;
        for (std::int64_t o = k_.first_operand[k]; o < k_.first_operand[k + 1]; ++o)
            (in_slow_[o] ? slow : fast) += in_slow_[o] ? t_.slow[k_.use[o]] : t_.fast[k_.use[o]];
        return std::max({best, fast, slow});
    }
    double time_of(std::int64_t k) const { return time_of(k, k_.limit[k] - used_[k]); }

    double total() const {
        double sum = 0;
        for (double seconds : seconds_) sum += seconds;
        for (std::int64_t t = 0; t < t_.count(); ++t) sum += copies(t);
        return sum;
    }

    // Seconds that the copies of a tensor's path take: as `_copies` in
    // loadmaster/placement/autotm/sequence_arrays.py.
    double copies(std::int64_t t) const {
        const std::int64_t begin = t_.first[t], end = t_.first[t + 1];
        if (!moves_ || begin == end) return 0;
        const LiveRange range = static_cast<LiveRange>(t_.live_range[t]);
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
    // been taken out. `rent` weighs the prices of memory; without `exactly`, uses cost what the
    // linear program thought.
    void price(std::int64_t t, double rent, bool exactly) {
        const std::int64_t begin = t_.first[t], end = t_.first[t + 1], size = t_.size[t],
                           last = k_.count();
        choices_.never = kNever;
        choices_.live_range = static_cast<LiveRange>(t_.live_range[t]);
        choices_.resize(end - begin);
        choices_.last = end > begin ? t_.to_slow[end - 1] : 0.0;
        const bool tail =
            choices_.live_range == LiveRange::cyclic || choices_.live_range == LiveRange::output;
        choices_.tail =
            tail && end > begin ? gap(t_.kernel[end - 1] + 1, last, size, rent) : kNever;
        for (std::int64_t u = begin; u < end; ++u) {
            const std::int64_t i = u - begin, k = t_.kernel[u], free = k_.limit[k] - used_[k];
            choices_.in[i] = t_.to_fast[u];
            choices_.out[i] = u > begin ? t_.to_slow[u - 1] : choices_.last;
            choices_.reads[i] = t_.reads[u];
            choices_.writes[i] = t_.writes[u];
            std::uint8_t &place = in_slow_[t_.operand[u]];
            place = 0;
            double fast = free >= size + least_[k] ? time_of(k, free - size) : kNever;
            place = 1;
            double slow = free >= least_[k] ? time_of(k, free) : kNever;
            if (!exactly && fast < kNever) fast = advice_.fast[u];
            if (!exactly && slow < kNever) slow = advice_.slow[u];
            choices_.fast[i] = fast + rent * advice_.memory[k] * static_cast<double>(size);
            choices_.slow[i] = slow;
            const std::int64_t from = u > begin ? t_.kernel[u - 1] + 1 : 0;
            const bool alive = u > begin || choices_.live_range == LiveRange::cyclic ||
                choices_.live_range == LiveRange::input;
            choices_.stay[i] = alive ? gap(from, k, size, rent) : kNever;
        }
        if (choices_.live_range == LiveRange::cyclic && end > begin)
            choices_.stay[0] += choices_.tail;
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
        for (std::int64_t u = t_.first[t]; u < t_.first[t + 1]; ++u) refresh(t_.kernel[u]);
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
        budget_.add(1);
        Path mine = path(paths_, t);
        if (moves_) return path_.solve(choices_, &mine) < kNever;
        double fast = choices_.live_range == LiveRange::output ? choices_.tail : 0.0, slow = 0;
        for (std::size_t i = 0; i < choices_.uses(); ++i) {
            const bool there = i > 0 || choices_.live_range == LiveRange::cyclic ||
                choices_.live_range == LiveRange::input;
            fast += choices_.fast[i] + (there ? choices_.stay[i] : 0.0);
            slow += choices_.slow[i];
        }
        if (std::min(fast, slow) == kNever) return false;
        std::fill(mine.fast.begin(), mine.fast.end(), fast <= slow);
        std::fill(mine.stays.begin(), mine.stays.end(), fast <= slow);
        if (mine.stays.size() &&
            (choices_.live_range == LiveRange::inner || choices_.live_range == LiveRange::output))
            mine.stays[0] = 0;
        mine.tail = fast <= slow &&
            (choices_.live_range == LiveRange::cyclic || choices_.live_range == LiveRange::output);
        return true;
    }

    // Gives a tensor its cheapest path; the one it has remains if there is none.
    void replace(std::int64_t t, double rent, bool exactly) {
        if (t_.first[t] == t_.first[t + 1]) return;
        remove(t);
        price(t, rent, exactly);
        choose(t);
        insert(t);
    }

    // --- all tensors

    // Gives a tensor the path that the linear program is sure of, if it is possible, else the
    // cheapest by its prices.
    void follow(std::int64_t t) {
        if (t_.first[t] == t_.first[t + 1]) return;
        remove(t);
        price(t, 1.0, false);
        if (!(advice_.sure[t] && possible(t))) choose(t);
        insert(t);
    }

    bool possible(std::int64_t t) {
        const std::int64_t begin = t_.first[t], end = t_.first[t + 1];
        for (std::int64_t u = begin; u < end; ++u) {
            const std::int64_t i = u - begin;
            if ((advice_.fast_there[u] ? choices_.fast[i] : choices_.slow[i]) == kNever)
                return false;
            if (advice_.stays[u] && choices_.stay[i] == kNever) return false;
        }
        if (advice_.tail[t] && choices_.tail == kNever) return false;
        const auto copy = [&](std::span<const std::uint8_t> from, std::vector<std::uint8_t> &to) {
            std::copy(from.begin() + begin, from.begin() + end, to.begin() + begin);
        };
        copy(advice_.fast_there, paths_.fast);
        copy(advice_.stays, paths_.stays);
        paths_.tail[t] = advice_.tail[t];
        return true;
    }

    // Best answers to what the others do, in turns, until nobody gains.
    void settle() {
        double before = total();
        for (int round = 0; round < 20 && !budget_.spent(); ++round) {
            for (std::int64_t t : advice_.order) {
                replace(t, 0.0, true);
                if (budget_.spent() || ((t & 63) == 0 && !budget_.look())) return;
            }
            const double after = total();
            if (!(after < before * (1 - 1e-6))) return;
            before = after;
        }
    }

    void improve(double goal);
    double attempt(double now);

    double share() { return static_cast<double>(random_() >> 11) * 0x1p-53; }
    std::int64_t below(std::size_t count) { return static_cast<std::int64_t>(random_() % count); }

    // Tensors to take out: a few that live at one kernel, and the operands of a kernel nearby.
    void gather() {
        victims_.clear();
        const auto add = [&](std::int64_t t) {
            if (t_.size[t] > 0 && std::find(victims_.begin(), victims_.end(), t) == victims_.end())
                victims_.push_back(t);
        };
        const std::int64_t seed = movable_[below(movable_.size())];
        const std::int64_t use = t_.first[seed] + below(t_.first[seed + 1] - t_.first[seed]),
                           at = t_.kernel[use];
        add(seed);
        if (share() < 0.7)
            for (std::int64_t o = k_.first_operand[at]; o < k_.first_operand[at + 1]; ++o)
                if (share() < 0.7) add(owner_[k_.use[o]]);
        const std::size_t most = victims_.size() + 1 + below(8);
        for (int tries = 0; tries < 40 && victims_.size() < most; ++tries) {
            const std::int64_t t = movable_[below(movable_.size())];
            if (begin_[t] <= at && at < end_[t]) add(t);
        }
    }

    void save(std::int64_t t) {
        const Path mine = path(paths_, t);
        std::vector<std::uint8_t> saved(mine.fast.begin(), mine.fast.end());
        saved.insert(saved.end(), mine.stays.begin(), mine.stays.end());
        saved.push_back(mine.tail);
        kept_.emplace_back(t, std::move(saved));
    }

    // Gives a tensor the path that it has in `other`.
    void assume(std::int64_t t, const Paths &other) {
        remove(t);
        const std::int64_t begin = t_.first[t], count = t_.first[t + 1] - begin;
        std::copy_n(other.fast.begin() + begin, count, paths_.fast.begin() + begin);
        std::copy_n(other.stays.begin() + begin, count, paths_.stays.begin() + begin);
        paths_.tail[t] = other.tail[t];
        insert(t);
    }

    const Tensors &t_;
    const Kernels &k_;
    const Advice &advice_;
    const Paths &base_;
    const bool moves_;
    std::mt19937_64 random_;
    allocation::Budget &budget_;
    Paths paths_, best_;
    std::vector<std::int64_t> used_;    // bytes of tensors while each kernel runs
    std::vector<std::uint8_t> in_slow_; // of every operand, kernel by kernel
    std::vector<std::int64_t> least_;   // the smallest workspace of each kernel
    std::vector<std::int64_t> several_; // kernels with a choice of algorithms before each
    std::vector<double> rent_;          // prices of memory before each kernel
    std::vector<double> seconds_;       // of each kernel
    double total_ = 0;                  // seconds, up to rounding
    std::vector<std::int64_t> owner_, begin_,
        end_; // the tensor of each use; the live range of each tensor
    std::vector<std::int64_t> movable_, victims_;
    std::vector<std::pair<std::int64_t, std::vector<std::uint8_t>>> kept_;
    Choices<double> choices_;
    ShortestPath<double> path_;
};

// Large neighbourhood search: tensors that live at the same time or meet at a kernel go back to the
// base, then look for a path again in a random order at random prices of memory. What is not worse
// is kept.
void Search::improve(double goal) {
    movable_.clear();
    for (std::int64_t t : advice_.order)
        if (t_.first[t] < t_.first[t + 1] && t_.size[t] > 0) movable_.push_back(t);
    double now = best_.seconds;
    while (!movable_.empty() && best_.seconds > goal && budget_.look() && !budget_.spent()) {
        now = total_ = total();
        for (int step = 0; step < 256 && best_.seconds > goal && !budget_.spent(); ++step) {
            now = attempt(now);
            if (now < best_.seconds) best_ = paths_, best_.seconds = now;
        }
        ++best_.rounds;
    }
}

// One step from a placement of `now` seconds; returns the seconds of the next one.
double Search::attempt(double now) {
    gather();
    kept_.clear();
    for (std::int64_t t : victims_) {
        save(t);
        assume(t, base_);
    }
    std::shuffle(victims_.begin(), victims_.end(), random_);
    const double rent = share() < 0.3 ? 0.0 : share();
    for (std::int64_t t : victims_) replace(t, rent, true);
    if (rent > 0)
        for (std::int64_t t : victims_) replace(t, 0.0, true);
    if (total_ <= now && total_ < kNever) return total_;
    for (std::int64_t t : victims_) assume(t, base_);
    for (auto &[t, saved] : kept_) {
        remove(t);
        Path mine = path(paths_, t);
        std::copy_n(saved.begin(), mine.fast.size(), mine.fast.begin());
        std::copy_n(saved.begin() + mine.fast.size(), mine.fast.size(), mine.stays.begin());
        mine.tail = saved.back();
        insert(t);
    }
    total_ = now;
    return now;
}

} // namespace

Paths search(const Tensors &tensors, const Kernels &kernels, const Advice &advice,
    const Paths &base, bool moves, double goal, std::uint64_t seed, allocation::Budget &budget) {
    return Search(tensors, kernels, advice, base, moves, seed, budget).run(goal);
}

} // namespace loadmaster::placement
