// The problem as callers state it: arrays, checked by the bindings, bytes and instants as they
// come.
#pragma once

#include "common/rows.hpp"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

namespace loadmaster::allocation {

struct Buffers {
    std::span<const std::int64_t> size, alignment, pin; // pin: a fixed offset, or -1
    std::span<const std::int64_t> first;      // sections of buffer i: first[i] .. first[i + 1] - 1
    std::span<const std::int64_t> begin, end; // lifetime of a section, half-open
    std::span<const std::int64_t> low, high;  // bytes of the buffer in use during it
    // Which buffers must be apart, where lifetimes do not say: near[near_first[i]] and so on for
    // buffer i. Empty: lifetimes do.
    std::span<const std::int64_t> near_first = {}, near = {};

    std::int64_t count() const { return std::ssize(size); }
    bool occupies(std::int64_t section) const {
        return begin[section] < end[section] && low[section] < high[section];
    }
    auto sections(std::int64_t buffer) const { return row_of(first, buffer); }
    // Those of its sections that take space.
    auto occupied(std::int64_t buffer) const {
        return sections(buffer) |
            std::views::filter([this](std::int64_t section) { return occupies(section); });
    }
    // Whether its buffer is alive during a section with all its bytes.
    bool whole(std::int64_t buffer, std::int64_t section) const {
        return occupies(section) && low[section] == 0 && high[section] == size[buffer];
    }
    // Whether the buffer is ever alive with bytes in use; else it conflicts with no other buffer.
    bool matters(std::int64_t buffer) const { return !occupied(buffer).empty(); }
};

inline std::int64_t align_up(std::int64_t offset, std::int64_t alignment) {
    if (alignment == 1) return offset;
    const std::int64_t over = offset % alignment;
    return over ? offset + (alignment - over) : offset;
}

// The largest `offset + size` among buffers that are ever alive.
inline std::int64_t peak_of(const Buffers &buffers, std::span<const std::int64_t> offset) {
    std::int64_t peak = 0;
    for (std::int64_t b : indices(buffers.count()))
        if (buffers.matters(b)) peak = std::max(peak, offset[b] + buffers.size[b]);
    return peak;
}

// The numbers below `count`, those of the least key first; of equals the lower number.
template <typename Number = std::int64_t, typename Key>
std::vector<Number> sorted_by(std::size_t count, const Key &key) {
    std::vector<Number> order(count);
    std::iota(order.begin(), order.end(), Number{0});
    std::ranges::stable_sort(order, {}, key);
    return order;
}

// In order, each value once.
template <typename Value> void sort_distinct(std::vector<Value> &values) {
    std::ranges::sort(values);
    values.erase(std::ranges::unique(values).begin(), values.end());
}

struct Load {
    std::int64_t bytes = 0, instant = 0;
};

// Most bytes in use at once, and the first instant at which they are.
Load load_bound(const Buffers &buffers);

} // namespace loadmaster::allocation
