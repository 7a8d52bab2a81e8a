// Ways to cut the operators of networks.
#pragma once

#include "common/rows.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace loadmaster::cutting {

// A few thousand operators at most, in an order in which they can run, each for several
// mini-batches; each has options, and each option pieces.
// `*_first[i]` up to `*_first[i + 1]` belong to `i`. A box is `rank` pairs of a first element and
// the one after the last. Piece `p` makes `made[p]`; of the result of the k-th source of its
// operator it needs `needed[need_first[p] + k]`.
struct Network {
    std::size_t operators, cores, rank, mini_batches;
    std::span<const std::int64_t> option_first, piece_first, need_first;
    std::span<const double> alone; // seconds (pieces x cores)
    std::span<const double>
        link; // seconds of the near memory's link that each piece takes at least
    std::span<const std::int64_t> made, needed; // boxes
    std::span<const std::int64_t> source_first,
        source; // operator -> operators whose results it reads, all before it
    std::span<const double>
        fetch; // seconds of the main link for what each piece, and none before it, needs to begin
    std::span<const double> stream; // seconds of the main link that each piece takes while it runs
    double copied;                  // seconds of the near link that each second of fetching takes
    std::span<const std::int64_t> given; // bytes of weights and inputs of each operator
    std::span<const std::int64_t> room;  // bytes of such that can be there while each operator runs
};

} // namespace loadmaster::cutting
