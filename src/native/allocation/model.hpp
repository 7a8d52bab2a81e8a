// The problem as the search wants it: time cut into slots with a constant live set, bytes divided
// by what divides them all.
#pragma once

#include "allocation/buffers.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace loadmaster::allocation {

// Units of bytes are exact: with all sizes, pins, windows and alignments multiples of it, every
// offset that a buffer gets by resting on another one is, too.
std::int64_t common_unit(const Buffers &buffers);

struct Span {
    std::int32_t begin, end; // slots
    std::int64_t low, high;  // units in use
};

struct Model {
    std::int32_t count = 0, slots = 0;
    std::int64_t unit = 1;
    std::int64_t total = 0; // no packing needs more units than this
    std::int64_t load =
        0; // lower bound on the peak, in units: load, largest size, highest pinned top
    bool windows = false; // some section uses part of its buffer only
    bool orderly = true; // no section leaves the low bytes of its buffer free, so that offsets tell
                         // which of two buffers lies above the other
    std::vector<std::int64_t> buffer; // index of each among the caller's buffers
    std::vector<std::int64_t> size, alignment, pin;
    std::vector<std::int32_t> first; // of `spans`
    std::vector<Span> spans;
    std::vector<std::int32_t> hull_begin, hull_end;
    std::vector<double> length;                   // of the lifetime, in the caller's time
    std::vector<std::int64_t> contention;         // highest load during the lifetime, in units
    std::vector<std::int32_t> previous_identical; // the identical buffer before this one, or -1
    // The buffers alive in each slot.
    std::vector<std::int32_t> slot_first, slot_buffer;
    std::vector<std::int64_t> slot_low;
    // Pairs of buffers alive together: `neighbour` must start `rise` above `b`'s offset if it lies
    // above `b`.
    std::vector<std::int64_t> near_first;
    std::vector<std::int32_t> neighbour;
    std::vector<std::int64_t> rise;

    std::span<const Span> spans_of(std::int32_t b) const {
        return {spans.data() + first[b], spans.data() + first[b + 1]};
    }
};

// `pairs_limit`: give up (count = -1) rather than hold more than so many overlapping pairs.
Model make_model(const Buffers &buffers, std::int64_t pairs_limit);

} // namespace loadmaster::allocation
