#include "search.hpp"

#include <algorithm>
#include <numeric>

namespace loadmaster::allocation {

namespace {

constexpr std::int64_t kPlaced = std::int64_t{1} << 62;

std::uint64_t mix(std::uint64_t x) {
    x = (x ^ (x >> 31)) * 0x7fb5d329728ea185ULL;
    x = (x ^ (x >> 27)) * 0x81dadef4bc2dd44dULL;
    return x ^ (x >> 33);
}

}  // namespace

Search::Search(const Model &model, std::int64_t rules, Budget &budget) : model_(model), rules_(rules), budget_(budget) {
    if (has(kMemory)) failed_.resize(14);
}

bool Search::reset(Int capacity) {
    capacity_ = capacity;
    offset_.assign(model_.count, -1);
    lowest_.assign(model_.count, 0);
    unplaced_.assign(model_.slots, 0);
    bottom_.assign(model_.slots, 0);
    witness_.assign(model_.slots, 0);
    crossing_.assign(model_.slots, 0);
    undo_.clear();
    candidates_.clear();
    parts_.clear();
    order_.resize(model_.count);
    std::iota(order_.begin(), order_.end(), 0);
    for (std::int32_t b = 0; b < model_.count; ++b) {
        if (model_.pin[b] >= 0) lowest_[b] = model_.pin[b];
        if (lowest_[b] + model_.size[b] > capacity_) return false;
        for (std::int32_t i = model_.first[b]; i < model_.first[b + 1]; ++i)
            for (std::int32_t s = model_.spans[i].begin; s < model_.spans[i].end; ++s) unplaced_[s] += model_.spans[i].high - model_.spans[i].low;
        for (std::int32_t s = model_.hull_begin[b]; s + 1 < model_.hull_end[b]; ++s) ++crossing_[s];
    }
    for (std::int32_t s = 0; s < model_.slots; ++s)
        if (!refresh(s)) return false;
    undo_.clear();
    return true;
}

// Look for the lowest place of any unplaced buffer in the slot; false if what is to come does not fit above it.
bool Search::refresh(std::int32_t slot) {
    Int lowest = kPlaced;
    std::int32_t witness = model_.slot_first[slot];
    for (std::int32_t k = witness; k < model_.slot_first[slot + 1]; ++k) {
        const Int at = lowest_[model_.slot_buffer[k]] + model_.slot_low[k];
        if (at < lowest) lowest = at, witness = k;
        if (at <= bottom_[slot]) break;  // lowest places only rise
    }
    undo_.push_back({~slot, witness_[slot], bottom_[slot]});
    bottom_[slot] = lowest;
    witness_[slot] = witness;
    return lowest >= kPlaced || !has(kSections) || lowest + unplaced_[slot] <= capacity_;
}

bool Search::slots_hold(const Part &part, Int base) {
    const Int floor = has(kMonotonic) ? base : 0;
    for (std::int32_t s = part.slot_from; s < part.slot_to; ++s) {
        if (bottom_[s] < kPlaced) {
            const std::int32_t k = witness_[s];
            if (lowest_[model_.slot_buffer[k]] + model_.slot_low[k] != bottom_[s] && !refresh(s)) return false;
        }
        if (has(kSections) && bottom_[s] < kPlaced && std::max(bottom_[s], floor) + unplaced_[s] > capacity_) return false;
    }
    return true;
}

bool Search::place(std::int32_t buffer, Int at, const Part &part) {
    offset_[buffer] = at;
    for (std::int32_t i = model_.first[buffer]; i < model_.first[buffer + 1]; ++i) {
        const Span &span = model_.spans[i];
        for (std::int32_t s = span.begin; s < span.end; ++s) unplaced_[s] -= span.high - span.low;
    }
    for (std::int32_t s = model_.hull_begin[buffer]; s + 1 < model_.hull_end[buffer]; ++s) --crossing_[s];
    undo_.push_back({buffer, 0, lowest_[buffer]});
    lowest_[buffer] = kPlaced;
    for (std::int64_t k = model_.near_first[buffer]; k < model_.near_first[buffer + 1]; ++k) {
        const std::int32_t other = model_.neighbour[k];
        if (lowest_[other] >= at + model_.rise[k]) continue;
        const Int raised = align_up(at + model_.rise[k], model_.alignment[other]);
        if (raised + model_.size[other] > capacity_ || model_.pin[other] >= 0) return false;
        undo_.push_back({other, 0, lowest_[other]});
        lowest_[other] = raised;
    }
    return slots_hold(part, model_.windows ? 0 : at);
}

void Search::unplace(std::int32_t buffer, std::size_t mark) {
    for (std::int32_t i = model_.first[buffer]; i < model_.first[buffer + 1]; ++i) {
        const Span &span = model_.spans[i];
        for (std::int32_t s = span.begin; s < span.end; ++s) unplaced_[s] += span.high - span.low;
    }
    for (std::int32_t s = model_.hull_begin[buffer]; s + 1 < model_.hull_end[buffer]; ++s) ++crossing_[s];
    for (; undo_.size() > mark; undo_.pop_back()) {
        const Undo &step = undo_.back();
        if (step.index >= 0) lowest_[step.index] = step.value;
        else bottom_[~step.index] = step.value, witness_[~step.index] = step.witness;
    }
}

FailedStates::Key Search::key_of(const Part &part, Int base, std::int32_t last) const {
    FailedStates::Key key{static_cast<std::uint64_t>(part.to - part.from), 0};
    for (std::int32_t i = part.from; i < part.to; ++i) {
        const std::int32_t b = order_[i];
        const auto who = static_cast<std::uint64_t>(b) * 2 + (passed_over(b, base, last) ? 1 : 0);
        const std::uint64_t code = mix(static_cast<std::uint64_t>(lowest_[b]) * 0x9e3779b97f4a7c15ULL + who);
        key.a += code;
        key.b += mix(code ^ 0xd1b54a32d192ed03ULL);
    }
    return key;
}

// Whoever was passed over waits for a neighbour that comes no lower than `base`, and below its own top: else it could have stayed
// where it is. So it lies at least the smallest size above `base`. False if it waits in vain, or if a slot is too full for that.
bool Search::supported(const Part &part, Int base, std::int32_t last, Int top) const {
    Int smallest = kPlaced;
    for (std::int32_t i = part.from; i < part.to; ++i) smallest = std::min(smallest, model_.size[order_[i]]);
    const auto soonest = [&](std::int32_t b) { return passed_over(b, base, last) ? base + smallest : lowest_[b]; };
    for (std::int32_t i = part.from; i < part.to; ++i) {
        const std::int32_t b = order_[i];
        if (!passed_over(b, base, last)) continue;
        const Int before = std::min(top, lowest_[b] + model_.size[b]);
        const auto lifts = [&](std::int32_t other) { return lowest_[other] < kPlaced && soonest(other) < before; };
        if (std::none_of(model_.neighbour.begin() + model_.near_first[b], model_.neighbour.begin() + model_.near_first[b + 1], lifts)) return false;
    }
    if (!has(kSections)) return true;
    for (std::int32_t s = part.slot_from; s < part.slot_to; ++s) {
        if (bottom_[s] > base || base + smallest + unplaced_[s] <= capacity_) continue;
        Int lowest = kPlaced;
        for (std::int32_t k = model_.slot_first[s]; k < model_.slot_first[s + 1]; ++k) {
            const std::int32_t b = model_.slot_buffer[k];
            if (lowest_[b] < kPlaced) lowest = std::min(lowest, soonest(b));
        }
        if (lowest + unplaced_[s] > capacity_) return false;
    }
    return true;
}

// Puts on `candidates_` who may come next: nobody, if there is no hope.
void Search::find_candidates(const Part &part, Int base, std::int32_t last) {
    Int top = kPlaced;
    // Where an unplaced buffer would fit whole, nothing may start: it could sink there.
    for (std::int32_t i = part.from; i < part.to; ++i) top = std::min(top, lowest_[order_[i]] + model_.size[order_[i]]);
    if (!has(kDominance) || model_.windows) top = kPlaced;
    // Nor may it start where a slot could not hold what is still to come above it.
    if (has(kSections) && has(kMonotonic) && !model_.windows)
        for (std::int32_t s = part.slot_from; s < part.slot_to; ++s)
            if (unplaced_[s] > 0) top = std::min(top, capacity_ - unplaced_[s] + 1);
    if (has(kSupport) && !model_.windows && !supported(part, base, last, top)) return;
    for (std::int32_t i = part.from; i < part.to; ++i) {
        const std::int32_t b = order_[i];
        // Whoever was passed over must not come until something lifts it: it would leave room below itself.
        const bool twin_first = model_.twin[b] >= 0 && lowest_[model_.twin[b]] < kPlaced;
        if ((passed_over(b, base, last) && has(kSupport)) || twin_first) continue;
        const Int at = align_up(std::max(lowest_[b], base), model_.alignment[b]);
        if (at < top && at + model_.size[b] <= capacity_ && (model_.pin[b] < 0 || at == model_.pin[b])) candidates_.push_back({at, rank_[b], b});
    }
}

Outcome Search::solve(const Part &part, Int base, std::int32_t last) {
    // What is alone may go where it fits, canonical or not.
    if (part.to - part.from == 1) {
        const std::int32_t b = order_[part.from];
        offset_[b] = lowest_[b];
        return Outcome::solved;
    }
    FailedStates::Key key{0, 0};
    const bool remember = has(kMemory) && part.to - part.from >= 4;
    if (remember) {
        key = key_of(part, base, last);
        if (failed_.knows(key, capacity_)) return Outcome::failed;
    }
    const std::size_t from = candidates_.size();
    find_candidates(part, base, last);
    std::sort(candidates_.begin() + static_cast<std::ptrdiff_t>(from), candidates_.end());
    for (std::size_t i = from; i < candidates_.size(); ++i) {
        if (budget_.nodes() >= limit_ || !budget_.spend()) return Outcome::aborted;
        const Candidate chosen = candidates_[i];
        const std::size_t mark = undo_.size();
        if (place(chosen.buffer, chosen.at, part)) {
            std::iter_swap(order_.begin() + part.from, std::find(order_.begin() + part.from, order_.begin() + part.to, chosen.buffer));
            // With windows no order of offsets says who lies above whom: then any order goes.
            const Outcome outcome = model_.windows ? solve_parts(part, 0, -1, chosen.buffer) : solve_parts(part, chosen.at, chosen.rank, chosen.buffer);
            if (outcome != Outcome::failed) return outcome;
        }
        unplace(chosen.buffer, mark);
    }
    candidates_.resize(from);
    if (remember) failed_.add(key, capacity_);
    return Outcome::failed;
}

// Solve what is left of a part once order_[part.from] is placed: apart, where it falls apart.
Outcome Search::solve_parts(const Part &part, Int base, std::int32_t last, std::int32_t placed) {
    const Part rest{part.from + 1, part.to, part.slot_from, part.slot_to};
    if (rest.from == rest.to) return Outcome::solved;
    bool splits = placed < 0;
    for (std::int32_t s = placed < 0 ? 0 : model_.hull_begin[placed]; placed >= 0 && s < model_.hull_end[placed]; ++s)
        splits |= s + 1 < part.slot_to && crossing_[s] == 0;
    if (placed >= 0 && model_.hull_begin[placed] > part.slot_from) splits |= crossing_[model_.hull_begin[placed] - 1] == 0;
    if (!splits || !has(kDecomposition)) return solve(rest, base, last);

    std::sort(order_.begin() + rest.from, order_.begin() + rest.to, [&](std::int32_t a, std::int32_t b) {
        return model_.hull_begin[a] != model_.hull_begin[b] ? model_.hull_begin[a] < model_.hull_begin[b] : a < b;
    });
    const std::size_t first = parts_.size();
    std::int32_t reach = -1;
    for (std::int32_t i = rest.from; i < rest.to; ++i) {
        const std::int32_t b = order_[i];
        if (model_.hull_begin[b] >= reach) parts_.push_back({i, i, model_.hull_begin[b], 0});
        reach = std::max(reach, model_.hull_end[b]);
        parts_.back().to = i + 1;
        parts_.back().slot_to = reach;
    }
    // The smallest first: a part that fails spares the others.
    const std::size_t end = parts_.size();
    std::sort(parts_.begin() + static_cast<std::ptrdiff_t>(first), parts_.end(), [](const Part &a, const Part &b) {
        return a.to - a.from != b.to - b.from ? a.to - a.from < b.to - b.from : a.from < b.from;
    });
    Outcome outcome = Outcome::solved;
    for (std::size_t i = first; i < end && outcome == Outcome::solved; ++i) outcome = solve(Part(parts_[i]), base, last);
    parts_.resize(first);
    return outcome;
}

Outcome Search::run(std::int64_t capacity, const std::vector<std::int32_t> &rank, std::int64_t nodes) {
    rank_ = rank;
    limit_ = budget_.nodes() + nodes;
    if (!reset(capacity)) return Outcome::failed;
    if (model_.count == 0) return Outcome::solved;
    return solve_parts({-1, model_.count, 0, model_.slots}, 0, -1, -1);
}

}  // namespace loadmaster::allocation
