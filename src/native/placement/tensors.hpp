// The placement problem as plain arrays: tensors with their uses in order, kernels with their
// algorithms and operands.
#pragma once

#include "common/limits.hpp"
#include "common/rows.hpp"

#include <algorithm>
#include <cstdint>
#include <span>

namespace loadmaster::placement {

enum class LiveRange : std::uint8_t {
    cyclic,
    input,
    inner,
    output
}; // StoredKind: weight, input, intermediate, output

struct Tensors {
    std::span<const std::int64_t> first; // uses of tensor t: first[t] to first[t + 1] - 1
    std::span<const std::uint8_t> live_range;
    std::span<const std::int64_t> size; // bytes that it takes in the fast memory
    // Uses, tensor by tensor, in order of time.
    std::span<const std::int64_t> kernel,
        operand; // operand: position among all operands, kernel by kernel
    std::span<const std::uint8_t> reads, writes;
    std::span<const double> fast,
        slow; // seconds of the memory that the operand is in; slow may be infinite
    std::span<const double> to_fast,
        to_slow; // what a copy back before the use costs, and a copy out after it, in seconds
    std::int64_t count() const { return std::ssize(size); }
    LiveRange range(std::int64_t t) const { return static_cast<LiveRange>(live_range[t]); }
};

struct Kernels {
    std::span<const std::int64_t> limit; // bytes of fast memory
    std::span<const std::int64_t>
        first_operand; // operands of kernel k: first_operand[k] to first_operand[k + 1] - 1
    std::span<const std::int64_t> use; // use of every operand
    std::span<const std::int64_t> first_algorithm;
    std::span<const double> seconds; // of every algorithm
    std::span<const std::int64_t> workspace;
    // Measured seconds of kernel k, algorithm by algorithm: table[first_entry[k]] to
    // table[first_entry[k + 1] - 1]; none: computed.
    std::span<const std::int64_t> first_entry;
    std::span<const double> table;
    std::int64_t count() const { return std::ssize(limit); }
    std::int64_t algorithms(std::int64_t k) const {
        return first_algorithm[k + 1] - first_algorithm[k];
    }
    bool measured(std::int64_t k) const { return first_entry[k + 1] > first_entry[k]; }
    // Combinations of places that the table of kernel k distinguishes, for each algorithm.
    std::int64_t entries(std::int64_t k) const {
        return (first_entry[k + 1] - first_entry[k]) / algorithms(k);
    }
};

struct KernelTime {
    double seconds = kInfinite;
    std::int64_t algorithm = -1; // among those of all kernels
};

// The fastest algorithm of kernel k with at most `free` bytes of workspace, of equal ones the one
// with less; none if it cannot run. `in_slow`: for every operand whether it is in the slow memory.
// As `Kernel.seconds` in loadmaster/placement/sequence.py; tests/test_twins.py holds the two
// together.
inline KernelTime kernel_time(const Tensors &tensors, const Kernels &kernels,
    std::span<const std::uint8_t> in_slow, std::int64_t k, std::int64_t free) {
    const std::int64_t first = kernels.first_operand[k], last = kernels.first_operand[k + 1];
    double operands = 0;
    std::span<const double> table;
    if (kernels.measured(k)) {
        std::int64_t index = 0;
        for (std::int64_t o = 0; (std::int64_t{1} << o) < kernels.entries(k); ++o)
            index |= std::int64_t{in_slow[first + o]} << o;
        table = kernels.table.subspan(kernels.first_entry[k] + index);
    } else {
        double fast = 0, slow = 0;
        for (std::int64_t o = first; o < last; ++o)
            (in_slow[o] ? slow : fast) +=
                (in_slow[o] ? tensors.slow : tensors.fast)[kernels.use[o]];
        operands = std::max(fast, slow);
    }
    KernelTime best;
    const std::int64_t begin = kernels.first_algorithm[k];
    for (std::int64_t a = begin; a < kernels.first_algorithm[k + 1]; ++a) {
        if (kernels.workspace[a] > free) continue;
        const double seconds = kernels.measured(k) ? table[(a - begin) * kernels.entries(k)]
                                                   : std::max(kernels.seconds[a], operands);
        if (seconds < best.seconds ||
            (seconds == best.seconds && best.algorithm >= 0 &&
                kernels.workspace[a] < kernels.workspace[best.algorithm]))
            best = {seconds, a};
    }
    return best;
}

// What the path of one tensor is: for each of its uses whether the tensor is in the fast memory,
// and whether it stays there in the gap before the use. A cyclic tensor's gap before the first use
// goes round the end of time; `tail` is the gap after the last one.
struct Path {
    std::span<std::uint8_t> fast, stays;
    std::uint8_t &tail;
};

} // namespace loadmaster::placement
