// Everything from what a caller asks for to a checked answer: groups and reserved ranges are
// reduced away, the portfolio searches, and only what an independent check confirms is handed out.
#pragma once

#include "allocation/bounds.hpp"
#include "allocation/demands.hpp"
#include "allocation/portfolio.hpp"
#include "allocation/solver.hpp"

#include <cstdint>
#include <vector>

namespace loadmaster::allocation {

enum class Proof { none, load, pairs, exhausted };

struct Allocation {
    Status status = Status::unknown;
    std::vector<std::int64_t> offset; // of each buffer; empty without a packing
    std::int64_t peak = 0;            // highest address in use
    std::int64_t bound = 0;           // bytes that any packing needs, proven
    Proof proof = Proof::none;        // what shows `optimal` or `infeasible`
    Bound load;                       // its instant; `buffer` means nothing
    std::vector<std::int64_t>
        witnesses; // the original buffers that the load or the pairs are made of, then ranges
    bool interrupted = false;
    Counters counters;
};

// `capacity`: bytes that any packing may use, or -1 for the lowest peak. Throws what `check`
// throws, std::invalid_argument if pins overlap, and std::logic_error if a packing does not hold.
Allocation allocate(const Demands &demands, std::int64_t capacity, const Effort &effort);

} // namespace loadmaster::allocation
