// Packs blocks in place of buffers, joined in one way and another.
#pragma once

#include "allocation/bounds.hpp"
#include "allocation/effort.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace loadmaster::allocation {

struct BlockAttempt {
    double most_empty; // part of a block that may be empty
    std::uint64_t seed;
    double work; // per cent of the default budgets, less than 100
};

struct PackedBlocks {
    std::vector<std::int64_t> offset; // of the buffers; empty without a packing
    std::size_t attempt = 0;          // that made it
    bool interrupted = false;
    Counters counters;
};

// The lowest of the packings that the attempts make, on so many threads as `effort` allows; none
// after one that needs no more than `enough` bytes counts.
PackedBlocks pack_blocks(const Buffers &buffers, const Bound &bound, std::int64_t capacity,
    std::int64_t enough, std::span<const BlockAttempt> attempts, const Effort &effort);

} // namespace loadmaster::allocation
