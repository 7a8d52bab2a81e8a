// In-place pairs: which of them share an address is tried case by case, each a problem of its own
// with the sharing buffers as one.
#pragma once

#include "allocation/bounds.hpp"
#include "allocation/reduction.hpp"

#include <cstdint>
#include <vector>

namespace loadmaster::allocation {

// A reduced problem with the buffers that share merged.
struct Case {
    Merged merged;
    Reduced reduced;
    Bound bound;
    bool apart; // only those share that are pinned so
};

struct Cases {
    std::vector<Case> cases; // the one of the lowest bound first
    bool complete = true;    // whether any packing is one of one of them
};

// Up to `most` cases, or two: as many pairs share as can, and only those that are pinned so. None
// where pins overlap.
Cases cases_of(const Reduced &reduced, std::size_t most);

// Bytes that must be apart at one instant, with as much sharing as the pairs of those alive then
// permit; `high` stands for the highest byte of each section. Instants are tried where the bytes
// alive exceed what is known, until five million buffers have been looked at.
Bound shared_load(
    const Buffers &buffers, std::span<const std::int64_t> high, std::span<const InPlace> in_place);

} // namespace loadmaster::allocation
