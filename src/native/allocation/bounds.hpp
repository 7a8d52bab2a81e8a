// Bytes that any packing needs, and what says so.
#pragma once

#include "allocation/demands.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace loadmaster::allocation {

struct Bound {
    std::int64_t bytes = 0, instant = 0;
    std::int64_t buffer = -1; // the one that ends highest, if that alone says so; -1: all that are
                              // alive at the instant
    std::vector<std::int64_t>
        pairwise; // or those of which each two are alive together; the instant then means nothing
};

// Most bytes that must be apart at one instant. Where all alignments share a divisor, sizes count
// rounded up to it, but for what the topmost buffer may save. The largest buffer and the highest
// pin bound the peak as well, and so do buffers that are alive together two by two; these are
// looked for only while the bound does not exceed `enough`. With in-place pairs as many buffers
// share as may; where pairs say who must be apart, it is a heavy clique. O(n log n), and what
// `alive_in_pairs` takes; with in-place pairs that much for each instant that looks fuller than it
// is.
Bound lower_bound(const Buffers &buffers, std::span<const InPlace> in_place, std::int64_t enough);

// Whether a buffer occupies any bytes at an instant.
bool is_alive(const Buffers &buffers, std::int64_t b, std::int64_t instant);

// The buffers that a bound speaks of, ascending.
std::vector<std::int64_t> witnesses(const Buffers &buffers, const Bound &bound);

// Whether of two buffers that are alive together one must lie above the other throughout, so that
// an exhausted search is a proof: no section leaves low bytes of its buffer free.
bool orderly(const Buffers &buffers);

} // namespace loadmaster::allocation
