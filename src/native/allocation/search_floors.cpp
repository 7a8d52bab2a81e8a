// How placing a buffer, or deciding that none starts on a floor, raises the places of others; and
// how that is undone.
#include "allocation/search.hpp"

#include <algorithm>
#include <numeric>

namespace loadmaster::allocation {

bool Search::reset(Int capacity) {
    capacity_ = capacity;
    offset_.assign(model_.count, -1);
    lowest_.assign(model_.count, 0);
    for (auto *column : {&unplaced_, &floor_}) column->assign(model_.slots, 0);
    for (auto *column : {&witness_, &crossing_, &valley_}) column->assign(model_.slots, 0);
    change_.assign(model_.slots + 1, 0);
    candidates_.clear();
    parts_.clear();
    levels_.clear();
    order_.resize(model_.count);
    std::iota(order_.begin(), order_.end(), 0);
    for (std::int32_t b : indices(model_.count)) {
        if (model_.pin[b] >= 0) lowest_[b] = model_.pin[b];
        if (lowest_[b] + model_.size[b] > capacity_) return false;
        take(b, -1);
    }
    for (std::int32_t s : indices(model_.slots))
        if (!update_floor(s)) return false;
    undo_.clear();
    return true;
}

// Move a buffer out of what is still to come, or with a negative sign into it.
void Search::take(std::int32_t buffer, int sign) {
    for (const Span &span : model_.spans_of(buffer)) {
        for (std::int32_t s = span.begin; s < span.end; ++s)
            unplaced_[s] -= sign * (span.high - span.low);
    }
    for (std::int32_t s = model_.hull_begin[buffer]; s + 1 < model_.hull_end[buffer]; ++s)
        crossing_[s] -= sign;
}

// Computes the floor of a slot; false if the unplaced buffers of the slot do not fit above it.
bool Search::update_floor(std::int32_t slot) {
    Int floor = kPlaced;
    std::int32_t witness = model_.slot_first[slot];
    for (std::int32_t k = witness; k < model_.slot_first[slot + 1]; ++k) {
        const Int at = lowest_[model_.slot_buffer[k]] + model_.slot_low[k];
        if (at < floor) floor = at, witness = k;
        if (at <= floor_[slot]) break; // lowest places only rise
    }
    floor = std::min(floor, kPlaced);
    undo_.push_back({Undo::kFloor, slot, witness_[slot], floor_[slot]});
    floor_[slot] = floor;
    witness_[slot] = witness;
    return floor == kPlaced || floor + unplaced_[slot] <= capacity_;
}

// Updates the floors after lowest places have changed; false if some slot can no longer hold its
// unplaced buffers.
bool Search::update_floors(const Part &part) {
    for (std::int32_t s = std::max(touched_from_, part.slot_from);
        s < std::min(touched_to_, part.slot_to); ++s) {
        if (floor_[s] == kPlaced) continue;
        const std::int32_t k = witness_[s];
        if (lowest_[model_.slot_buffer[k]] + model_.slot_low[k] != floor_[s] && !update_floor(s))
            return false;
    }
    return true;
}

// Raises the lowest place of an unplaced buffer to `to`, aligned; false if the buffer then ends
// past the capacity.
bool Search::raise_lowest(std::int32_t buffer, Int to) {
    const Int raised = align_up(to, model_.alignment[buffer]);
    if (raised + model_.size[buffer] > capacity_ || model_.pin[buffer] >= 0) return false;
    undo_.push_back({Undo::kLowest, buffer, 0, lowest_[buffer]});
    lowest_[buffer] = raised;
    touched_from_ = std::min(touched_from_, model_.hull_begin[buffer]);
    touched_to_ = std::max(touched_to_, model_.hull_end[buffer]);
    return true;
}

// Places a buffer at its lowest place; false if the unplaced buffers no longer fit.
bool Search::place(std::int32_t buffer, const Part &part) {
    const Int at = lowest_[buffer];
    offset_[buffer] = at;
    take(buffer, 1);
    undo_.push_back({Undo::kLowest, buffer, 0, at});
    lowest_[buffer] = kPlaced;
    touched_from_ = model_.hull_begin[buffer];
    touched_to_ = model_.hull_end[buffer];
    for (std::int64_t k : row_of(model_.near_first, buffer)) {
        const Int above = at + model_.rise[k];
        if (lowest_[model_.neighbour[k]] < above && !raise_lowest(model_.neighbour[k], above))
            return false;
    }
    return update_floors(part);
}

// Decides that no buffer of the slot starts below `to`; false if the unplaced buffers then no
// longer fit.
bool Search::raise_floor(std::int32_t slot, Int to, const Part &part) {
    touched_from_ = slot;
    touched_to_ = slot + 1;
    for (std::int32_t k : row_of(model_.slot_first, slot)) {
        const Int lowest = lowest_[model_.slot_buffer[k]];
        if (lowest < kPlaced && lowest + model_.slot_low[k] < to &&
            !raise_lowest(model_.slot_buffer[k], to - model_.slot_low[k]))
            return false;
    }
    return update_floors(part);
}

void Search::rewind(std::size_t mark) {
    for (; undo_.size() > mark; undo_.pop_back()) {
        const Undo &step = undo_.back();
        if (step.kind == Undo::kLowest)
            lowest_[step.index] = step.value;
        else
            floor_[step.index] = step.value, witness_[step.index] = step.witness;
    }
}

// The next offset at which a buffer of the slot could start if none starts on the floor: the lowest
// place of one of them, or the top of an unplaced buffer. The latter is not alive in the slot
// itself, or it would start there first.
Search::Int Search::next_level(const Part &part, const Valley &valley) const {
    Int next = kPlaced;
    for (std::int32_t k : row_of(model_.slot_first, valley.slot)) {
        const Int at = lowest_[model_.slot_buffer[k]] + model_.slot_low[k];
        if (at > valley.floor) next = std::min(next, at);
    }
    for (std::int32_t i = part.from; i < part.to; ++i) {
        const std::int32_t b = order_[i];
        if (local_valleys_) {
            if (model_.hull_end[b] <= valley.from || model_.hull_begin[b] >= valley.to) continue;
            if (model_.hull_begin[b] <= valley.slot && valley.slot < model_.hull_end[b]) continue;
        }
        for (const Span &span : model_.spans_of(b)) {
            const Int top = lowest_[b] + span.high;
            if (top > valley.floor) next = std::min(next, top);
        }
    }
    return next;
}

} // namespace loadmaster::allocation
