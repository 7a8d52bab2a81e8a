// The problem as callers state it: arrays, checked by the bindings, bytes and instants as they
// come.
#pragma once

#include <cstdint>
#include <span>

namespace loadmaster::allocation {

struct Buffers {
    std::span<const std::int64_t> size, alignment, pin; // pin: a fixed offset, or -1
    std::span<const std::int64_t> first;      // sections of buffer i: first[i] .. first[i + 1] - 1
    std::span<const std::int64_t> begin, end; // lifetime of a section, half-open
    std::span<const std::int64_t> low, high;  // bytes of the buffer in use during it
    // Which buffers must be apart, where lifetimes do not say: near[near_first[i]] and so on for
    // buffer i. Empty: lifetimes do.
    std::span<const std::int64_t> near_first = {}, near = {};

    std::int64_t count() const { return static_cast<std::int64_t>(size.size()); }
    bool occupies(std::int64_t section) const {
        return begin[section] < end[section] && low[section] < high[section];
    }
    // Whether the buffer is ever alive with bytes in use; else it conflicts with no other buffer.
    bool matters(std::int64_t buffer) const {
        for (std::int64_t s = first[buffer]; s < first[buffer + 1]; ++s)
            if (occupies(s)) return true;
        return false;
    }
};

inline std::int64_t align_up(std::int64_t offset, std::int64_t alignment) {
    if (alignment == 1) return offset;
    const std::int64_t over = offset % alignment;
    return over ? offset + (alignment - over) : offset;
}

struct Load {
    std::int64_t bytes = 0, instant = 0;
};

// Most bytes in use at once, and the first instant at which they are.
Load load_bound(const Buffers &buffers);

} // namespace loadmaster::allocation
