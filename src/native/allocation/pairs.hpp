// A bound above the load, where buffers have gaps: each two of some buffers are alive together at
// some instant, though not all of them at one.
#pragma once

#include "allocation/buffers.hpp"

#include <cstdint>
#include <vector>

namespace loadmaster::allocation {

struct Together {
    std::int64_t bytes = 0;
    std::vector<std::int64_t> buffers; // ascending
};

// The heaviest such set that a limited search finds, if it has more bytes than `enough`, else
// nothing. No two of them may share an address, so that a packing holds all their bytes. Only
// instants count at which a buffer occupies itself whole. Without gaps the load says as much
// already, and nothing is searched.
//
// Lifetimes from birth to death that meet pairwise have an instant in common. So the search goes
// from instant to instant, from the one at which such lifetimes are heaviest on; at each, a tabu
// search takes in the buffer that gains most and drops those that never meet it. O(n log n), and
// O(k^2) for k lifetimes at each of a few instants.
Together alive_in_pairs(const Buffers &buffers, std::int64_t enough);

} // namespace loadmaster::allocation
