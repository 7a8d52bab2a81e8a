// Of several ways to cut every operator of a network, those that end early together: a beam search over the operators in their order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace loadmaster::cutting {

// A few thousand operators at most, in an order in which they can run; each has options, and each option pieces. `*_first[i]` up to
// `*_first[i + 1]` belong to `i`. A box is `rank` pairs of a first element and the one after the last. Piece `p` makes `made[p]`; of the result of the k-th source of its
// operator it needs `needed[need_first[p] + k]`.
struct Network {
    std::size_t operators, cores, rank;
    std::span<const std::int64_t> option_first, piece_first, need_first;
    std::span<const double> alone;                // seconds (pieces x cores)
    std::span<const double> link;                 // seconds of the near memory's link that each piece takes at least
    std::span<const std::int64_t> made, needed;   // boxes
    std::span<const std::int64_t> source_first, source;  // operator -> operators whose results it reads, all before it
    std::span<const double> fetch;                // seconds of the main link for what each piece, and none before it, needs to begin
    std::span<const double> stream;               // seconds of the main link that each piece takes while it runs
    double copied;                                // seconds of the near link that each second of fetching takes
    std::span<const std::int64_t> given;          // bytes of weights and inputs of each operator
    std::span<const std::int64_t> room;           // bytes of such that can be there while each operator runs
};

struct Choice {
    std::vector<std::int64_t> option;  // of every operator, counted from its first
    double makespan;                   // seconds, by this model
};

// Each operator's pieces go, one after the other, to the core where they end first, once what they read exists. Of all ways to go on, the
// `width` best are kept: by the end of all pieces, `patience` times, and the mean time at which cores are free. O(operators x width x
// pieces of all options of an operator x (cores + pieces that they read)).
Choice choose(const Network &network, std::size_t width, double patience);

// The same after changing the option of one operator after the other as long as all then ends earlier, or with less work. About `most` operators
// are run for it, at most.
Choice improve(const Network &network, std::span<const std::int64_t> option, std::int64_t most);

// Seconds until all ends with an option for every operator, each counted from its first, by the same model.
double makespan(const Network &network, std::span<const std::int64_t> option);

}  // namespace loadmaster::cutting
