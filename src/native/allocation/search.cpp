#include "allocation/search.hpp"

#include "common/limits.hpp"

#include <algorithm>

namespace loadmaster::allocation {

namespace {

// States of fewer unplaced buffers than this are not remembered, because solving them again is
// cheaper.
constexpr std::int32_t kSmallestRemembered = 4;

} // namespace

Search::Search(const Model &model)
    : model_(model), weight_(model.slots, 1.0), failed_(model.count) {
    for (std::int32_t b : indices(model_.count)) {
        local_valleys_ &= model_.first[b + 1] - model_.first[b] == 1;
        unaligned_ &= model_.alignment[b] == 1 && model_.pin[b] < 0;
    }
    local_valleys_ &= !model_.windows;
    unaligned_ &= !model_.windows;
}

void Search::forget() {
    std::ranges::fill(weight_, 1.0);
    failed_.clear();
}

Search::Int Search::lowest_floor(const Part &part) const {
    return *std::min_element(floor_.begin() + part.slot_from, floor_.begin() + part.slot_to);
}

// Notes for each slot the first slot of the valley that it is in, or -1. Where a buffer has gaps,
// the bytes below it may still be open in one of its lifetimes when it is high up in another one:
// then only the lowest slots of all are valleys.
void Search::mark_valleys(const Part &part) {
    const Int lowest = local_valleys_ ? 0 : lowest_floor(part);
    for (std::int32_t from = part.slot_from, to = 0; from < part.slot_to; from = to) {
        const Int floor = floor_[from];
        for (to = from + 1; to < part.slot_to && floor_[to] == floor;) ++to;
        const bool deep = (from == part.slot_from || floor_[from - 1] > floor) &&
            (to == part.slot_to || floor_[to] > floor);
        const bool valley = floor < kPlaced && (local_valleys_ ? deep : floor == lowest);
        std::fill(valley_.begin() + from, valley_.begin() + to, valley ? from : -1);
    }
}

// Computes how the number of candidates changes from slot to slot.
void Search::count_candidates(const Part &part) {
    std::fill(change_.begin() + part.slot_from, change_.begin() + part.slot_to + 1, 0);
    for (std::int32_t i = part.from; i < part.to; ++i) {
        const std::int32_t b = order_[i];
        for (const Span &span : model_.spans_of(b)) {
            if (valley_[span.begin] < 0 || floor_[span.begin] != lowest_[b] + span.low ||
                waits_for_identical(b))
                continue;
            ++change_[span.begin];
            --change_[span.end];
        }
    }
}

Search::Valley Search::choose(const Part &part) {
    mark_valleys(part);
    count_candidates(part);
    Valley best;
    double least = kInfinite;
    std::int32_t candidates = 0;
    const double per_unit = heuristic_->slack_weight / static_cast<double>(model_.load);
    for (std::int32_t s = part.slot_from; s < part.slot_to; ++s) {
        candidates += change_[s];
        if (valley_[s] < 0) continue;
        const double score =
            (candidates + per_unit * static_cast<double>(capacity_ - floor_[s] - unplaced_[s])) /
            weight_[s];
        if (score < least) least = score, best.slot = s;
    }
    best.floor = floor_[best.slot];
    best.from = valley_[best.slot];
    for (best.to = best.slot + 1; best.to < part.slot_to && valley_[best.to] == best.from;)
        ++best.to;
    return best;
}

// Whether an identical buffer of lower index is still unplaced, which then comes first.
bool Search::waits_for_identical(std::int32_t buffer) const {
    const std::int32_t previous = model_.previous_identical[buffer];
    return previous >= 0 && lowest_[previous] < kPlaced;
}

// Appends to `candidates_` the buffers that may start on the floor of the slot.
void Search::list_candidates(const Valley &valley) {
    const std::size_t from = candidates_.size();
    for (std::int32_t k : row_of(model_.slot_first, valley.slot)) {
        const std::int32_t b = model_.slot_buffer[k];
        if (lowest_[b] + model_.slot_low[k] == valley.floor && !waits_for_identical(b))
            candidates_.push_back({heuristic_->rank[b], b});
    }
    std::ranges::sort(candidates_.begin() + from, candidates_.end(), {}, &Candidate::rank);
}

Outcome Search::solve(const Part &part) {
    if (part.to - part.from == 1) {
        offset_[order_[part.from]] = lowest_[order_[part.from]];
        return Outcome::solved;
    }
    const std::size_t lowest = levels_.size();
    Outcome outcome = Outcome::failed;
    while (outcome == Outcome::failed && enter_level(part)) {
        const Valley valley = choose(part);
        outcome = try_candidates(part, valley);
        if (outcome != Outcome::failed) break;
        if (!allowance_->spend()) outcome = Outcome::aborted;
        const Int next = next_level(part, valley);
        if (next + unplaced_[valley.slot] > capacity_ || !raise_floor(valley.slot, next, part))
            break;
    }
    for (; levels_.size() > lowest; levels_.pop_back())
        if (outcome == Outcome::failed) leave_level(part);
    return outcome;
}

// Where no buffer starts on the floor of one slot after another, each level of floors is a state of
// its own. False if that is known to fail.
bool Search::enter_level(const Part &part) {
    Level level{undo_.size(), 0, 0};
    if (part.to - part.from >= kSmallestRemembered) {
        level.base = unaligned_ ? lowest_floor(part) : 0;
        level.key = key_of(part, level.base);
        if (known_to_fail(part, level)) return false;
    }
    levels_.push_back(level);
    return true;
}

void Search::leave_level(const Part &part) {
    const Level &level = levels_.back();
    rewind(level.mark);
    if (part.to - part.from >= kSmallestRemembered) remember(part, level);
}

Outcome Search::try_candidates(const Part &part, const Valley &valley) {
    const std::size_t first = candidates_.size();
    list_candidates(valley);
    const std::size_t end = candidates_.size();
    for (std::size_t i = first; i < end; ++i) {
        if (!allowance_->spend()) return Outcome::aborted;
        const std::int32_t b = candidates_[i].buffer;
        const std::size_t before = undo_.size();
        if (place(b, part)) {
            std::iter_swap(order_.begin() + part.from,
                std::find(order_.begin() + part.from, order_.begin() + part.to, b));
            const Outcome outcome =
                solve_rest({part.from + 1, part.to, part.slot_from, part.slot_to}, b);
            if (outcome != Outcome::failed) return outcome;
        } else {
            weight_[valley.slot] += heuristic_->failure_weight;
        }
        take(b, -1);
        rewind(before);
    }
    candidates_.resize(first);
    return Outcome::failed;
}

// Solves what is left of a part after a buffer was placed; with placed < 0, all of it.
Outcome Search::solve_rest(const Part &part, std::int32_t placed) {
    if (part.from == part.to) return Outcome::solved;
    return splits(part, placed) ? solve_components(part) : solve(part);
}

bool Search::splits(const Part &part, std::int32_t placed) const {
    if (placed < 0) return true;
    const std::int32_t before = model_.hull_begin[placed] - 1;
    if (before >= part.slot_from && crossing_[before] == 0) return true;
    for (std::int32_t s = model_.hull_begin[placed]; s < model_.hull_end[placed]; ++s)
        if (s + 1 < part.slot_to && crossing_[s] == 0) return true;
    return false;
}

Outcome Search::solve_components(const Part &part) {
    std::ranges::sort(order_.begin() + part.from, order_.begin() + part.to, {},
        [&](std::int32_t b) { return std::pair(model_.hull_begin[b], b); });
    const std::size_t first = parts_.size();
    std::int32_t reach = -1;
    for (std::int32_t i = part.from; i < part.to; ++i) {
        const std::int32_t b = order_[i];
        if (model_.hull_begin[b] >= reach) parts_.push_back({i, i, model_.hull_begin[b], 0});
        reach = std::max(reach, model_.hull_end[b]);
        parts_.back().to = i + 1;
        parts_.back().slot_to = reach;
    }
    // The smallest first: if a part fails, the others need not be tried.
    const std::size_t end = parts_.size();
    std::ranges::sort(parts_.begin() + first, parts_.end(), {},
        [](const Part &own) { return std::pair(own.to - own.from, own.from); });
    Outcome outcome = Outcome::solved;
    for (std::size_t i = first; i < end && outcome == Outcome::solved; ++i)
        outcome = solve(Part(parts_[i]));
    parts_.resize(first);
    return outcome;
}

Outcome Search::run(
    std::int64_t capacity, const BranchingHeuristic &heuristic, Allowance &allowance) {
    heuristic_ = &heuristic;
    allowance_ = &allowance;
    if (!reset(capacity)) return Outcome::failed;
    return solve_rest({0, model_.count, 0, model_.slots}, -1);
}

} // namespace loadmaster::allocation
