#include "allocation/policy.hpp"

#include "common/limits.hpp"

#include "allocation/neighbours.hpp"
#include "allocation/sharing.hpp"
#include "allocation/verify.hpp"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>

namespace loadmaster::allocation {

namespace {

using Int = std::int64_t;
using Ranges = std::vector<AddressRange>;

constexpr Int kNoLimit = Int{1} << 62;
// Where several capacities are tried in turn, the search of each has the usual budget divided by
// this.
constexpr double kDescentShare = 8;
// So many ways for in-place pairs to share are all tried, so that the lowest is proven to be.
constexpr std::size_t kMostCases = 256;

Proof by(const Bound &bound) { return bound.pairwise.empty() ? Proof::load : Proof::pairs; }

// One search, with some of the ranges, for the lowest peak or within a capacity.
class Trial {
  public:
    Trial(const Merged &merged, std::span<const AddressRange> ranges, Int capacity,
        const Effort &effort, const Strategy &strategy)
        : merged_(merged),
          reduced_(without_empty(merged, ranges, capacity < 0 ? kNoLimit : capacity)),
          bound_(lower_bound(
              reduced_.buffers(), reduced_.in_place, capacity < 0 ? kNoLimit : capacity)),
          capacity_(capacity), effort_(effort), strategy_(strategy) {}

    void run() {
        if (reduced_.buffers().count() == 0) {
            offset_.emplace();
            return;
        }
        if (capacity_ >= 0 && bound_.bytes > capacity_) return;
        if (reduced_.in_place.empty()) {
            refuse_clash();
            floor_ = search(reduced_, bound_, effort_, [](auto &&offset) { return offset; });
        } else if (strategy_.own) {
            if (cases_of(reduced_, 0).cases.empty()) refuse_clash();
            floor_ = search(reduced_, bound_, effort_, [](auto &&offset) { return offset; });
        } else {
            try_cases();
        }
    }

    const Bound &bound() const { return bound_; }
    Int lower() const { return std::max(bound_.bytes, floor_); }
    // Reserved ranges count: they may be what reaches highest.
    std::optional<Int> solved_peak() const {
        return offset_ ? std::optional(solved_peak_) : std::nullopt;
    }
    bool fits() const { return offset_ && (capacity_ < 0 || solved_peak_ <= capacity_); }
    bool impossible() const { return capacity_ >= 0 && lower() > capacity_; }

    Allocation packing(Int lower, const Bound &bound) const {
        Allocation answer = without_packing(lower);
        answer.offset = reduced_.offsets(merged_, *offset_);
        answer.peak = reduced_.peak(*offset_);
        answer.status = answer.peak == lower ? Status::optimal : Status::feasible;
        if (answer.status == Status::optimal)
            answer.proof = answer.peak == bound.bytes ? by(bound) : Proof::exhausted;
        return answer;
    }
    Allocation without_packing(Int lower) const {
        Allocation answer;
        answer.bound = lower;
        answer.interrupted = interrupted;
        answer.counters = counters;
        return answer;
    }
    // The original buffers in what the bound speaks of, then reserved ranges, numbered on from
    // them. Of a group only those that are alive, if that is what the bound counts.
    std::vector<Int> witnesses() const {
        std::vector<char> named(merged_.buffers().count(), 0);
        std::vector<Int> found, ranges;
        for (Int b : allocation::witnesses(reduced_.buffers(), bound_))
            if (b < reduced_.own)
                named[reduced_.merged(b)] = 1;
            else
                ranges.push_back(merged_.original() + b - reduced_.own);
        const bool at_instant = bound_.buffer < 0 && bound_.pairwise.empty();
        for (Int b : indices(merged_.original()))
            if (named[merged_.place(b)] &&
                (!at_instant || is_alive(merged_.asked, b, bound_.instant)))
                found.push_back(b);
        found.insert(found.end(), ranges.begin(), ranges.end());
        return found;
    }

    bool interrupted = false;
    Counters counters;

  private:
    // Keeps what is found if it is lower; `whole` makes offsets of this problem of those found.
    // Returns the bytes that any packing needs.
    template <typename Whole>
    Int search(
        const Reduced &reduced, const Bound &bound, const Effort &effort, const Whole &whole) {
        Searched found;
        if (strategy_.own) {
            found = strategy_.own(reduced, bound, capacity_);
        } else {
            const std::span<const Int> hint = reduced.rewritten.hint();
            const bool hinted = std::ranges::any_of(hint, [](Int at) { return at >= 0; });
            Portfolio portfolio(reduced.buffers(), hinted ? hint : std::span<const Int>(), bound,
                capacity_, effort);
            portfolio.run(strategy_.name);
            found = {portfolio.found() ? portfolio.offset() : std::vector<Int>(), portfolio.peak(),
                portfolio.floor(), portfolio.interrupted(), portfolio.counters()};
        }
        interrupted |= found.interrupted;
        counters += found.counters;
        if (!found.offset.empty() && (!offset_ || found.peak < solved_peak_))
            offset_ = whole(std::move(found.offset)), solved_peak_ = found.peak;
        return std::max(bound.bytes, found.floor);
    }

    // Which pairs share, case by case: the first case has the whole search, the others orders and
    // exact search alone, and simple strategies where that proves nothing. Simple strategies by
    // themselves keep apart what pins do not join, with all of the work: so they do here.
    void try_cases() {
        const bool searches =
            strategy_.name == "auto" || strategy_.name == "exact" || strategy_.name == "telamalloc";
        Cases found = cases_of(reduced_, searches ? kMostCases : 0);
        if (!searches && found.cases.size() > 1) found.cases.erase(found.cases.begin());
        if (found.cases.empty()) refuse_clash();
        Effort effort = effort_;
        const double work = effort.work / static_cast<double>(found.cases.size());
        Int floor = kNoLimit;
        for (const Case &one : found.cases) {
            if (fits() && solved_peak_ <= std::max({bound_.bytes, floor_, capacity_})) break;
            if (interrupted ||
                (offset_ && effort_.timed() && Budget::Clock::now() >= effort_.deadline)) {
                interrupted = true;
                return;
            }
            Int lower = one.bound.bytes;
            const bool whole =
                strategy_.name == "auto" && one.apart && !orderly(one.reduced.buffers());
            effort.work = whole ? effort_.work : work;
            if (!(offset_ && lower >= solved_peak_) && !(capacity_ >= 0 && lower > capacity_))
                lower = search(one.reduced, one.bound, effort,
                    [&](auto &&offset) { return one.reduced.offsets(one.merged, offset); });
            floor = std::min(floor, lower);
            effort.in_passing = found.complete;
        }
        if (found.complete && floor < kNoLimit) floor_ = floor;
    }

    void refuse_clash() const {
        if (const auto clash = pins_clash(reduced_.buffers()))
            throw std::invalid_argument("offset: " + called(clash->one) + " and " +
                called(clash->other) + " are pinned to addresses that overlap: move one");
    }

    // What a reader of an error knows a buffer of the reduced problem by.
    std::string called(Int b) const {
        if (b >= reduced_.own) return "a reserved range";
        Int first = 0;
        while (merged_.place(first) != reduced_.merged(b)) ++first;
        return "buffer " + std::to_string(first);
    }

    const Merged &merged_;
    const Reduced reduced_;
    const Bound bound_;
    const Int capacity_;
    const Effort &effort_;
    const Strategy &strategy_;
    std::optional<std::vector<Int>> offset_;
    Int solved_peak_ = 0, floor_ = 0;
};

Allocation with_load(Allocation answer, const Trial &trial) {
    answer.load = trial.bound();
    if (answer.proof == Proof::load || answer.proof == Proof::pairs)
        answer.witnesses = trial.witnesses();
    return answer;
}

class Driver {
  public:
    Driver(const Demands &demands, const Effort &effort, const Strategy &strategy)
        : merged_(merge(demands)), ranges_(joined(demands.reserved)), effort_(effort),
          strategy_(strategy) {}

    Allocation run(Int capacity) {
        if (capacity >= 0 || ranges_.empty()) return within(capacity, effort_);
        return merged_.hollow() ? descend() : below_or_above();
    }

  private:
    // Ranges within a capacity are taken for granted, but a packing may end below them: the bound
    // is that without any.
    Allocation within(Int capacity, const Effort &effort) const {
        Trial trial(merged_, ranges_, capacity, effort, strategy_);
        trial.run();
        if (trial.impossible() && !trial.fits()) return infeasible(trial, capacity);
        std::optional<Trial> without;
        if (!ranges_.empty()) without.emplace(merged_, Ranges{}, -1, effort, strategy_);
        const Trial &free = without ? *without : trial;
        const Int lower = without ? free.bound().bytes : trial.lower();
        return with_load(
            trial.fits() ? trial.packing(lower, free.bound()) : trial.without_packing(lower), free);
    }

    static Allocation infeasible(const Trial &trial, Int capacity) {
        Allocation answer = trial.without_packing(std::max(trial.lower(), capacity + 1));
        answer.status = Status::infeasible;
        answer.proof = trial.bound().bytes > capacity ? by(trial.bound()) : Proof::exhausted;
        return with_load(answer, trial);
    }

    // The lowest peak, case by case: below the first range, between it and the second, and so on;
    // for buffers that lie across none.
    Allocation below_or_above() const {
        Int open = kUnlimited;
        Counters counters;
        bool interrupted = false;
        for (std::size_t count = 0;; ++count) {
            Trial trial(merged_, {ranges_.data(), count}, -1, effort_, strategy_);
            const bool last = count == ranges_.size();
            const Int ceiling = last ? kNoLimit : ranges_[count].low;
            if (last || trial.bound().bytes <= ceiling) trial.run();
            counters += trial.counters;
            interrupted |= trial.interrupted;
            if (last || (trial.solved_peak() && *trial.solved_peak() <= ceiling)) {
                Allocation answer = trial.fits()
                    ? trial.packing(std::min(trial.lower(), open), trial.bound())
                    : trial.without_packing(std::min(trial.lower(), open));
                answer.interrupted = interrupted;
                answer.counters = counters;
                return with_load(answer, trial);
            }
            if (trial.lower() <= ceiling) open = std::min(open, trial.lower());
        }
    }

    // The lowest peak by halving what lies between a packing and what is proven; a capacity left
    // undecided proves nothing.
    Allocation descend() const {
        Effort effort = effort_;
        effort.work /= kDescentShare;
        Int highest = ranges_.back().high;
        for (Int pin : merged_.buffers().pin) highest = std::max(highest, pin);
        for (Int b : indices(merged_.buffers().count()))
            highest += merged_.buffers().size[b] + merged_.buffers().alignment[b];
        for (const InPlace &row : merged_.in_place) highest += std::abs(row.shift);
        Allocation best = within(highest, effort);
        if (best.offset.empty()) return best;
        Int low = best.bound, proven = best.bound;
        bool interrupted = best.interrupted;
        while (low < best.peak && !interrupted) {
            const Int capacity = std::midpoint(low, best.peak);
            Allocation trial = within(capacity, effort);
            interrupted |= trial.interrupted;
            trial.counters += best.counters;
            if (!trial.offset.empty()) {
                best = std::move(trial);
                continue;
            }
            best.counters = trial.counters;
            low = capacity + 1;
            if (trial.status == Status::infeasible) proven = low;
        }
        best.bound = std::min(proven, best.peak);
        best.status = best.peak == best.bound ? Status::optimal : Status::feasible;
        if (best.status == Status::feasible)
            best.proof = Proof::none;
        else if (best.proof == Proof::none)
            best.proof = Proof::exhausted;
        best.interrupted = interrupted;
        return best;
    }

    const Merged merged_;
    const Ranges ranges_;
    const Effort &effort_;
    const Strategy &strategy_;
};

} // namespace

Clocked::Clocked(const Demands &demands) : demands_(demands) {
    if (!demands.conflicts || !(made_ = on_one_clock(demands))) return;
    demands_.buffers = made_->view(), demands_.hint = made_->hint;
    demands_.conflicts.reset();
}

Allocation bound_of(const Demands &demands, Int capacity) {
    const Clocked clocked(demands);
    const Merged merged = merge(clocked.demands());
    const Trial trial(merged, joined(demands.reserved), capacity, {}, {});
    Allocation answer = trial.without_packing(trial.bound().bytes);
    answer.proof = by(trial.bound());
    return with_load(std::move(answer), trial);
}

Allocation allocate(
    const Demands &demands, Int capacity, const Effort &effort, const Strategy &strategy) {
    const Clocked clocked(demands);
    Allocation answer = Driver(clocked.demands(), effort, strategy).run(capacity);
    if (demands.conflicts) answer.load.instant = 0; // of no clock that the caller knows
    const bool packed = answer.status == Status::optimal || answer.status == Status::feasible;
    if (!packed)
        answer.offset.clear();
    else if (const auto broken = broken_rule(demands, answer.offset, capacity))
        throw std::logic_error("a packing does not hold: " + *broken + ": please report it");
    return answer;
}

} // namespace loadmaster::allocation
