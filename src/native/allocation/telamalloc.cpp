#include "allocation/telamalloc.hpp"

#include "common/limits.hpp"

#include <algorithm>
#include <array>
#include <functional>

namespace loadmaster::allocation {

namespace {

// The list of buffers that are tried first is at most this long.
constexpr std::size_t kPriorityLength = 16;
// The first attempts start over after this many steps; later ones after more.
constexpr std::int64_t kFirstAttemptSteps = 2000;
// The oracle or a model chooses among at most this many of the latest targets.
constexpr std::size_t kTargetsConsidered = 8;
// How many candidates each rule may name at one level, for one attempt after the other. One each,
// as published, leaves too few alternatives.
constexpr std::array<std::int64_t, 12> kCandidatesPerRule{2, 3, 2, 3, 2, 3, 2, 3, 4, 4, 4, 1 << 20};

} // namespace

Telamalloc::Telamalloc(
    const Buffers &buffers, Int capacity, const TelamallocOptions &options, Budget &budget)
    : buffers_(buffers), options_(options), budget_(budget), timeline_(buffers),
      sky_(buffers_, timeline_, capacity), limit_(options.steps), cover_(timeline_.slots() + 1, 0) {
    waiting_.assign(timeline_.slots(), 0);
    for (std::int32_t b = 0; b < buffers_.count(); ++b)
        if (sky_.waiting(b)) count_waiting(b, 1);
    group_phases();
}

// Buffers that are alive together, directly or through others, make a phase; the fullest comes
// first.
void Telamalloc::group_phases() {
    std::vector<std::pair<std::int32_t, std::int32_t>> hulls; // first slot, buffer
    std::vector<std::int32_t> end(buffers_.count(), 0);
    for (std::int32_t b = 0; b < buffers_.count(); ++b) {
        if (!sky_.waiting(b)) continue;
        std::int32_t begin = timeline_.slots();
        for (const Section &s : timeline_.sections(b))
            begin = std::min(begin, s.begin), end[b] = std::max(end[b], s.end);
        hulls.emplace_back(begin, b);
    }
    std::ranges::sort(hulls);
    for (const auto &[begin, b] : hulls) {
        if (phases_.empty() || (options_.features.phases && begin >= phases_.back().end))
            phases_.push_back({begin, begin, {}, 0});
        Phase &phase = phases_.back();
        phase.end = std::max(phase.end, end[b]);
        phase.members.push_back(b);
        phase.most = std::max(phase.most, timeline_.contention(b));
    }
    std::ranges::stable_sort(phases_, std::greater{}, &Phase::most);
}

void Telamalloc::count_waiting(std::int32_t buffer, Int sign) {
    for (const Section &s : timeline_.sections(buffer))
        for (std::int32_t slot = s.begin; slot < s.end; ++slot)
            waiting_[slot] += sign * (s.high - s.low);
}

bool Telamalloc::run() {
    if (!sky_.root_feasible(options_.features.propagate)) return false;
    counts_.attempts = 1;
    for (; phase_ < phases_.size(); ++phase_) {
        base_ = deepest_ = sky_.depth();
        stuck_ = attempt_ = attempt_steps_ = 0;
        if (!solve_phase()) return false;
    }
    return true;
}

bool Telamalloc::solve_phase() {
    const std::int32_t goal = base_ + static_cast<std::int32_t>(phases_[phase_].members.size());
    while (sky_.depth() < goal) {
        if (options_.features.unstick && attempt_steps_ > kFirstAttemptSteps * (1 + attempt_ / 6))
            start_over();
        if (top_ == sky_.depth()) open_level();
        if (has_candidate(levels_[top_ - 1])) {
            if (!step()) return false;
            continue;
        }
        const bool far = options_.features.unstick && ++stuck_ >= options_.patience;
        if (far) stuck_ = 0;
        if (backtrack(far)) continue;
        // With all candidates tried, another attempt would be the same.
        if (kCandidatesPerRule[attempt_ % kCandidatesPerRule.size()] == kCandidatesPerRule.back())
            return false;
        start_over();
    }
    return true;
}

// Tries the next candidate of the top level; false if the budget is spent.
bool Telamalloc::step() {
    if (counts_.steps >= limit_ || budget_.stopped() ||
        ((counts_.steps & 63) == 63 && !budget_.look()))
        return false;
    ++counts_.steps;
    ++attempt_steps_;
    Level &level = levels_[top_ - 1];
    const std::int32_t buffer = level.candidates[level.next++];
    if (sky_.place(buffer, options_.features.propagate)) {
        count_waiting(buffer, -1);
        if (sky_.depth() > deepest_) deepest_ = sky_.depth(), stuck_ = 0;
    } else {
        record_failure(level);
    }
    return true;
}

void Telamalloc::start_over() {
    top_ = base_;
    undo_to(base_);
    deepest_ = base_;
    attempt_steps_ = 0;
    ++attempt_;
    ++counts_.attempts;
}

void Telamalloc::open_level() {
    if (static_cast<std::size_t>(top_) == levels_.size()) levels_.emplace_back();
    Level &level = levels_[top_++];
    level.slot = choose_slot();
    level.next = level.earlier = 0;
    level.visits = 0;
    level.asked = 0;
    level.candidates.clear();
    level.blamed.clear();
    for (std::int32_t b : priority_)
        if (sky_.waiting(b) && sky_.alive(b, level.slot)) level.candidates.push_back(b);
}

// Of the slots where an unplaced buffer goes as low as any can, the one with the most bytes
// waiting.
std::int32_t Telamalloc::choose_slot() {
    const Phase &phase = phases_[phase_];
    Int lowest = kUnlimited;
    std::int32_t begin = phase.end, end = phase.begin;
    for (std::int32_t b : phase.members) {
        if (!sky_.waiting(b) || (options_.features.lowest && sky_.lowest(b) > lowest)) continue;
        if (options_.features.lowest && sky_.lowest(b) < lowest) {
            std::fill(cover_.begin() + begin, cover_.begin() + std::max(begin, end + 1), 0);
            begin = phase.end, end = phase.begin;
            lowest = sky_.lowest(b);
        }
        for (const Section &s : timeline_.sections(b)) {
            ++cover_[s.begin], --cover_[s.end];
            begin = std::min(begin, s.begin), end = std::max(end, s.end);
        }
    }
    std::int32_t best = -1, open = 0;
    for (std::int32_t slot = begin; slot <= end; ++slot) {
        open += cover_[slot];
        cover_[slot] = 0;
        if (open > 0 &&
            (best < 0 || (options_.features.contention && waiting_[slot] > waiting_[best])))
            best = slot;
    }
    return best;
}

// Finds the next candidate of a level, if there is one. After the prioritised buffers, each rule in
// turn names the best of the lowest that were not found in an earlier round. The rule that comes
// first is the published one in the first attempt, and another one in the next.
bool Telamalloc::has_candidate(Level &level) {
    const std::int64_t rules = options_.features.rules ? 3 : 1,
                       width = kCandidatesPerRule[attempt_ % kCandidatesPerRule.size()];
    std::vector<std::int32_t> &found = level.candidates;
    while (level.next == found.size() && level.asked < rules * width) {
        if (level.asked > 0 && level.asked % rules == 0) level.earlier = found.size();
        const std::int64_t rule = options_.features.rules ? (level.asked % 3 + attempt_) % 3 : 1;
        ++level.asked;
        const std::int32_t b = best_of(level, rule);
        if (b < 0)
            level.asked = rules * width;
        else if (std::ranges::find(found, b) == found.end())
            found.push_back(b);
    }
    return level.next < found.size();
}

// The best by a rule (0: lifetime, 1: size, 2: area) among those waiting at a level's slot, but for
// what earlier rounds found; or -1.
std::int32_t Telamalloc::best_of(const Level &level, std::int64_t rule) const {
    std::int32_t best = -1;
    double most = 0;
    const auto key = [&](std::int32_t b) {
        return rule == 0 ? timeline_.length(b)
            : rule == 1  ? static_cast<double>(buffers_.size[b])
                         : area(b);
    };
    const auto earlier = level.candidates.begin() + level.earlier;
    const auto better = [&](std::int32_t b, double mine) {
        if (options_.features.lowest && sky_.lowest(b) != sky_.lowest(best))
            return sky_.lowest(b) < sky_.lowest(best);
        if (mine != most) return mine > most;
        return area(b) != area(best) ? area(b) > area(best) : b < best;
    };
    sky_.overlapping(level.slot, level.slot + 1, [&](std::int32_t index) {
        const std::int32_t b = sky_.owner(index);
        if (!sky_.waiting(b) ||
            (best >= 0 && options_.features.lowest && sky_.lowest(b) > sky_.lowest(best)))
            return;
        const double mine = key(b);
        if (best >= 0 && !better(b, mine)) return;
        if (std::find(level.candidates.begin(), earlier, b) == earlier) best = b, most = mine;
    });
    return best;
}

// A candidate that failed was a minor backtrack; the placements that the propagator blames are kept
// for the level.
void Telamalloc::record_failure(Level &level) {
    ++counts_.minor_backtracks;
    const Skyline::Conflict &conflict = sky_.conflict();
    for (std::int32_t at : conflict.levels)
        if (at >= base_ && at < top_ - 1) level.blamed.push_back(at);
    if (conflict.victim >= 0) promote(conflict.victim);
}

// Leaves the top level, whose candidates are used up; false if there is nowhere to go. `far`: back
// by half of the placements.
bool Telamalloc::backtrack(bool far) {
    Level &top = levels_[--top_];
    sort_distinct(top.blamed);
    if (top_ == base_) return false;
    std::int32_t target = top_ - 1;
    if (options_.features.jump) {
        if (top.blamed.empty()) return false;
        target = choose_target(top.blamed);
    }
    if (far) target = std::min(target, base_ + (top_ - base_) / 2);
    if (target < top_ - 1) {
        ++counts_.major_backtracks;
        promote(top.candidates.front());
    } else {
        ++counts_.minor_backtracks;
    }
    go_back_to(target, top.blamed);
    return true;
}

void Telamalloc::go_back_to(std::int32_t target, const std::vector<std::int32_t> &blamed) {
    Level &level = levels_[target];
    for (std::int32_t at : blamed)
        if (at < target) level.blamed.push_back(at);
    ++level.visits;
    top_ = target + 1;
    undo_to(target);
}

std::int32_t Telamalloc::choose_target(const std::vector<std::int32_t> &blamed) {
    if (blamed.size() == 1) return blamed.back();
    if (oracle_ != nullptr && ++oracle_->seen % oracle_->every == 0) return ask_oracle(blamed);
    if (options_.forest == nullptr) return blamed.back();
    std::array<double, kTargetFeatures> features;
    double least = kInfinite;
    std::int32_t target = blamed.back();
    for (std::size_t at = 0; at < std::min(blamed.size(), kTargetsConsidered); ++at) {
        describe(blamed, at, features.data());
        const double cost = (*options_.forest)(features.data());
        if (cost < least) least = cost, target = blamed[blamed.size() - 1 - at];
    }
    return target;
}

// What is known of the `at`-th latest target.
void Telamalloc::describe(
    const std::vector<std::int32_t> &blamed, std::size_t at, double *features) const {
    const Phase &phase = phases_[phase_];
    const std::int32_t target = blamed[blamed.size() - 1 - at], buffer = sky_.placed(target),
                       here = levels_[top_].candidates.front();
    const Level &level = levels_[target];
    const double members = static_cast<double>(phase.members.size()),
                 capacity = static_cast<double>(sky_.capacity());
    const auto together = [&](std::int32_t b) {
        return sky_.alive(b, levels_[top_].slot) ? 1.0 : 0.0;
    };
    const double values[kTargetFeatures] = {
        static_cast<double>(at),
        static_cast<double>(blamed.size()),
        static_cast<double>(top_ - target),
        static_cast<double>(top_ - target) / members,
        static_cast<double>(top_ - base_) / members,
        static_cast<double>(level.candidates.size() - level.next),
        static_cast<double>(level.visits),
        static_cast<double>(buffers_.size[buffer]) / static_cast<double>(buffers_.size[here]),
        timeline_.length(buffer) / timeline_.length(here),
        static_cast<double>(sky_.lowest(buffer)) / capacity,
        static_cast<double>(waiting_[level.slot]) / capacity,
        together(buffer),
    };
    std::copy(values, values + kTargetFeatures, features);
}

// Tries every target and takes the one that led to a packing, or failing that deepest, in the
// fewest steps.
std::int32_t Telamalloc::ask_oracle(const std::vector<std::int32_t> &blamed) {
    const std::size_t targets = std::min(blamed.size(), kTargetsConsidered);
    BacktrackSamples &samples = oracle_->samples;
    std::int64_t least = kUnlimited;
    std::int32_t best = blamed.back();
    for (std::size_t at : indices(targets)) {
        const std::int32_t target = blamed[blamed.size() - 1 - at];
        samples.features.resize(samples.features.size() + kTargetFeatures);
        describe(blamed, at, &*samples.features.end() - kTargetFeatures);
        const std::int64_t cost = trial(target, oracle_->horizon);
        samples.cost.push_back(static_cast<double>(cost));
        samples.group.push_back(oracle_->groups);
        if (cost < least) least = cost, best = target;
    }
    ++oracle_->groups;
    return best;
}

// Steps to a packing of the phase from a target on; what is missing after `horizon` steps counts as
// many more.
std::int64_t Telamalloc::trial(std::int32_t target, std::int64_t horizon) const {
    Telamalloc other = *this;
    other.oracle_ = nullptr;
    other.limit_ = counts_.steps + horizon;
    other.deepest_ = 0;
    other.go_back_to(target, levels_[top_].blamed);
    const auto members = std::ssize(phases_[phase_].members);
    if (other.solve_phase()) return other.counts_.steps - counts_.steps;
    return horizon + horizon * (members - (other.deepest_ - base_)) / members;
}

bool Telamalloc::run_with_oracle(
    std::int64_t every, std::int64_t horizon, BacktrackSamples &samples) {
    Oracle oracle{every, horizon, 0, 0, samples};
    oracle_ = &oracle;
    const bool found = run();
    oracle_ = nullptr;
    return found;
}

void Telamalloc::promote(std::int32_t buffer) {
    if (!options_.features.prioritise) return;
    std::erase(priority_, buffer);
    priority_.insert(priority_.begin(), buffer);
    if (priority_.size() > kPriorityLength) priority_.pop_back();
}

void Telamalloc::undo_to(std::int32_t depth) {
    while (sky_.depth() > depth) {
        const std::int32_t buffer = sky_.placed(sky_.depth() - 1);
        sky_.undo();
        count_waiting(buffer, 1);
    }
}

std::vector<Telamalloc::Int> Telamalloc::offsets() const {
    std::vector<Int> found(buffers_.count());
    for (std::int32_t b = 0; b < buffers_.count(); ++b)
        found[b] = buffers_.pin[b] >= 0 ? buffers_.pin[b] : sky_.lowest(b);
    return found;
}

} // namespace loadmaster::allocation
