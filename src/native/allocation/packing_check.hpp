// Whether a packing of plain buffers holds: every pair compared, nothing shared with what makes
// packings.
#pragma once

#include <cstddef>
#include <cstdint>

namespace loadmaster::allocation {

// No two that are alive together overlap, no number is negative, and the highest top of what is
// ever alive is `peak`. O(n^2).
inline bool packing_holds(const std::int64_t *lower, const std::int64_t *upper,
    const std::int64_t *size, const std::int64_t *offset, std::size_t count, std::int64_t peak) {
    const auto empty = [&](std::size_t i) { return lower[i] >= upper[i] || size[i] == 0; };
    const auto overlap = [&](std::size_t i, std::size_t j) {
        return (lower[i] < upper[j]) & (lower[j] < upper[i]) & (offset[i] < offset[j] + size[j]) &
            (offset[j] < offset[i] + size[i]);
    };
    std::int64_t highest = 0;
    for (std::size_t i = 0; i < count; ++i) {
        if (lower[i] < 0 || size[i] < 0 || offset[i] < 0) return false;
        if (empty(i)) continue;
        if (offset[i] > peak - size[i]) return false;
        highest = offset[i] + size[i] > highest ? offset[i] + size[i] : highest;
        bool clash = false;
        for (std::size_t j = 0; j < i; ++j) clash |= overlap(i, j);
        // That counts empty buffers too, which conflict with none.
        for (std::size_t j = 0; clash && j < i; ++j)
            if (overlap(i, j) && !empty(j)) return false;
    }
    return highest == peak;
}

} // namespace loadmaster::allocation
