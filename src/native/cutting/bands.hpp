// Operators of a network in bands of rows or of columns: where bands end, and what they need.
#pragma once

#include "common/rows.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace loadmaster::cutting {

using Ends = std::vector<std::int64_t>;

enum Kind : std::int64_t { other, weight, input };

// A network seen along its rows, or along its columns.
struct Axis {
    // Rows of each operator's result, 0 where it cannot be cut along them; the rows of its pieces
    // are multiples of `step`.
    std::span<const std::int64_t> extent, step;
    std::span<const std::int64_t> rows; // of each storage
    // Of each read, where the rows that it needs begin in `edges`: for each row of the result where
    // they begin, and one more; then for each row where those of all rows before it end. -1: none.
    std::span<const std::int64_t> edge, edges;
};

// Operators in an order in which they can run. `*_first[i]` up to `*_first[i + 1]` belong to `i`.
struct BandNetwork {
    BandNetwork(std::span<const std::int64_t> read_first, std::span<const std::int64_t> read,
        std::span<const std::int64_t> read_bytes, std::span<const std::int64_t> write_first,
        std::span<const std::int64_t> write, std::span<const std::int64_t> bytes,
        std::span<const std::int64_t> kind, std::span<const std::int64_t> output, Axis rows,
        Axis columns);

    struct Use {
        std::size_t op, read;
    };

    std::span<const std::int64_t> read_first, read, read_bytes, write_first, write;
    std::span<const std::int64_t> bytes, kind, output; // of each storage
    Axis axes[2];                                      // rows, columns
    std::size_t operators;
    std::vector<std::int64_t> home;     // of each storage, the operator that writes it, or -1
    std::vector<std::vector<Use>> uses; // of each storage, in the order of operators

    // Whether operators from `last` on, or the caller, need a storage.
    bool leaves(std::int64_t storage, std::size_t last) const {
        return output[storage] != 0 || (!uses[storage].empty() && uses[storage].back().op >= last);
    }

    // The rows that row `row` of a reader's result needs begin at `low`; those of all rows before
    // it end at `high`.
    std::int64_t low(const Axis &axis, Use use, std::int64_t row) const {
        return axis.edges[axis.edge[use.read] + row];
    }
    std::int64_t high(const Axis &axis, Use use, std::int64_t row) const {
        return axis.edges[axis.edge[use.read] + axis.extent[use.op] + 1 + row];
    }

    // Where the steps of an operator end: as far as those of its readers before `last` need, evenly
    // where there are none. `ends[last - 1 - op]` are those of the readers.
    Ends ends_of(const Axis &axis, std::size_t op, std::size_t last, std::int64_t bands,
        std::int64_t steps, std::span<const Ends> ends) const;
    // Where the part of each column tile ends that no later column tile needs; what follows is its
    // halo.
    Ends own_of(
        const Axis &across, std::size_t op, std::size_t last, std::span<const Ends> ends) const;
};

// Bands, and steps before them in which the operators at the beginning of a stack get ahead of
// those at its end: an operator needs a few rows more than it makes, which add up over a stack.
// Without them the first band would make all of these at once, and need more room than any other.
std::int64_t steps_of(std::int64_t bands);

} // namespace loadmaster::cutting
