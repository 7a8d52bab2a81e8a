// The allocator for C++ (from C++17): <loadmaster/allocate.h> with vectors, and exceptions for
// problems that make no sense.
#pragma once

#include <loadmaster/allocate.h>

#include <cstdint>
#include <functional>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace loadmaster {

constexpr std::int64_t anywhere = -1;

struct Buffer {
    std::int64_t size = 0, alignment = 1, start = 0, end = 0;
    std::int64_t offset = anywhere; // or where it is pinned
    std::int64_t
        group = 0,
        shift = 0; // not 0: buffers of one group move as one, each so far above the group's address
};

using Gap = loadmaster_gap;
using AddressRange = loadmaster_range;
using Pair = loadmaster_pair;

struct Limits {
    double seconds = 0; // see the C header, also for the others
    std::int64_t work = 0;
    std::uint64_t seed = 0;
    std::int64_t threads = 0;
    // Asked about 20 times a second, in a thread of the library; must not throw.
    std::function<bool()> cancel = nullptr;
};

// See the C header for what each field means.
struct PackingProblem {
    std::vector<Buffer> buffers;
    std::vector<Gap> gaps;
    std::vector<AddressRange> reserved;
    std::int64_t alignment = 1;
    std::int64_t capacity = 0;
    std::vector<Pair> in_place = {};
    std::optional<std::vector<Pair>> conflicts = {}; // instead of lifetimes
};

// A problem as C takes it, which views this one.
class ProblemView {
  public:
    explicit ProblemView(const PackingProblem &problem) : problem_(problem) {
        for (const Buffer &b : problem.buffers)
            buffers_.push_back({b.size, b.alignment, b.start, b.end, b.offset != anywhere, b.offset,
                b.group, b.shift});
    }
    loadmaster_problem get() const {
        static const std::vector<Pair> none;
        const std::vector<Pair> &conflicts = problem_.conflicts ? *problem_.conflicts : none;
        return {buffers_.data(), buffers_.size(), problem_.gaps.data(), problem_.gaps.size(),
            problem_.reserved.data(), problem_.reserved.size(), problem_.alignment,
            problem_.capacity, problem_.in_place.data(), problem_.in_place.size(),
            problem_.conflicts.has_value(), conflicts.data(), conflicts.size()};
    }

  private:
    const PackingProblem &problem_;
    std::vector<loadmaster_buffer> buffers_;
};

struct Packing {
    loadmaster_status status = LOADMASTER_UNKNOWN;
    loadmaster_proof proof = LOADMASTER_NO_PROOF;
    std::vector<std::int64_t> offsets;  // one for each buffer; empty without a packing
    std::int64_t peak = 0, bound = 0;   // bytes
    std::int64_t instant = 0;           // of a proof by load,
    std::vector<std::size_t> witnesses; // and the buffers that it, or one by pairs, speaks of
    bool interrupted = false;

    explicit operator bool() const { return !offsets.empty() || status == LOADMASTER_OPTIMAL; }
    bool optimal() const { return status == LOADMASTER_OPTIMAL; }
};

// Throws std::invalid_argument for a problem that makes no sense, std::bad_alloc, and
// std::logic_error for a defect of the library.
inline Packing allocate(const PackingProblem &problem, const Limits &limits = {}) {
    Packing packing;
    packing.offsets.resize(problem.buffers.size());
    std::vector<unsigned char> named(problem.buffers.size());
    const ProblemView all(problem);
    const loadmaster_problem view = all.get();
    loadmaster_result result;
    loadmaster_limits raw{
        limits.seconds, limits.work, limits.seed, limits.threads, nullptr, nullptr};
    std::function<bool()> cancel = limits.cancel;
    if (cancel) {
        raw.cancel = [](void *asked) {
            return (*static_cast<std::function<bool()> *>(asked))() ? 1 : 0;
        };
        raw.context = &cancel;
    }
    loadmaster_allocate(&view, &raw, packing.offsets.data(), named.data(), &result);
    if (result.status == LOADMASTER_INVALID) throw std::invalid_argument(result.message);
    if (result.status == LOADMASTER_NO_MEMORY) throw std::bad_alloc();
    if (result.status == LOADMASTER_ERROR) throw std::logic_error(result.message);
    if (result.status != LOADMASTER_OPTIMAL && result.status != LOADMASTER_FEASIBLE)
        packing.offsets.clear();
    for (std::size_t b = 0; b < named.size(); ++b)
        if (named[b]) packing.witnesses.push_back(b);
    packing.status = result.status, packing.proof = result.proof, packing.peak = result.peak,
    packing.bound = result.bound;
    packing.instant = result.instant, packing.interrupted = result.interrupted != 0;
    return packing;
}

// What is wrong with offsets; empty if they hold.
inline std::string verify(const PackingProblem &problem, const std::vector<std::int64_t> &offsets) {
    if (offsets.size() != problem.buffers.size()) return "not as many offsets as buffers";
    const ProblemView all(problem);
    const loadmaster_problem view = all.get();
    char message[160] = "";
    return loadmaster_verify(&view, offsets.data(), message) ? std::string() : std::string(message);
}

} // namespace loadmaster
