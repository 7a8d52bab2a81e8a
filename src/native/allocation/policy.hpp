// Everything from what a caller asks for to a checked answer: groups and reserved ranges are
// reduced away, the portfolio searches, and only what an independent check confirms is handed out.
#pragma once

#include "allocation/bounds.hpp"
#include "allocation/demands.hpp"
#include "allocation/portfolio.hpp"
#include "allocation/reduction.hpp"
#include "allocation/solver.hpp"

#include <cstdint>
#include <functional>
#include <string>
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

struct Searched {
    std::vector<std::int64_t> offset; // of the reduced buffers; empty without a packing
    std::int64_t peak = 0;
    std::int64_t floor = 0; // bytes that any packing needs, as far as a search has shown
    bool interrupted = false;
    Counters counters = {};
};

// How packings are looked for: by a search of the portfolio, or by one of the caller's own, which
// sees buffers and in-place pairs without other demands.
struct Strategy {
    std::string name = "auto";
    std::function<Searched(const Reduced &, const Bound &, std::int64_t capacity)> own = {};
};

// Demands that were checked, and conflicts on a clock where they can be.
class Clocked {
  public:
    explicit Clocked(const Demands &demands);
    Clocked(const Clocked &) = delete;
    const Demands &demands() const { return demands_; }

  private:
    Demands demands_;
    std::optional<OwnedBuffers> made_;
};

// `capacity`: bytes that any packing may use, or -1 for the lowest peak. The demands were checked.
// Throws std::invalid_argument if pins overlap, and std::logic_error if a packing does not hold.
Allocation allocate(const Demands &demands, std::int64_t capacity, const Effort &effort,
    const Strategy &strategy = {});

// Only the bound: `load`, `witnesses`, and of which kind it is as `proof`.
Allocation bound_of(const Demands &demands, std::int64_t capacity);

} // namespace loadmaster::allocation
