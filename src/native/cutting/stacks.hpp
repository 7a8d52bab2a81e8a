// Stacks of operators that run band by band, so that what lies between them stays in a small memory
// (fuse depth and tile size as in DeFiNES, HPCA 2023, with a cache along one axis).
//
// Over all ways to cover the operators in order by stacks s, each in so many bands, and the results
// k(s) that are kept in the memory between them:
//
//     minimise    sum over s of  bytes(s, k) + price x seconds(s)
//     subject to  inside(s, step) + kept + weights that stay <= room    at every step of every s
//
// where bytes cross the main link and seconds are of all cores together. Exact for this model, by
// dynamic programming over (operator, what is kept behind it).
// O(operators x stacks' lengths x bands x pairs of sets of kept results).
#pragma once

#include "cutting/bands.hpp"

namespace loadmaster::cutting {

// What pieces of single operators take in each way to cut them, along one axis.
struct WayCosts {
    // Each operator's numbers of bands and of parts of its output channels; those of one number of
    // parts together, ascending.
    std::span<const std::int64_t> first, bands, channels;
    std::span<const double> beside; // seconds of all cores if there is other work beside it
    std::span<const double> alone;  // until all pieces have ended if there is none
    std::span<const double> refill; // times that each read crosses a port (ways x reads)
};

struct StackModel {
    WayCosts ways[2];                         // along rows, columns
    std::span<const std::int64_t> by_channel; // of each read: a part of the channels needs its own
    // Pieces of each operator where it is not in bands, and how often these read each operand.
    std::span<const std::int64_t> plain_pieces;
    std::span<const double> plain_times;
    std::int64_t cores, alignment;
    double bytes_of_piece, price; // what starting a piece counts in bytes; bytes a second
    bool pipelined;               // an operator is a band behind the one before it
};

struct Stack {
    std::int64_t first, last, bands, columns, channels, column_tiles;
};

struct StackChoice {
    std::vector<Stack> stacks;
    double cost, bytes, seconds;
};

// The stacks of least cost for each room, in bytes. Stacks of several operators are tried in each
// number of `column_tiles` too: cut across their bands, all bands of one column tile before the
// next.
std::vector<StackChoice> best_stacks(const BandNetwork &network, const StackModel &model,
    std::span<const std::int64_t> rooms, std::span<const std::int64_t> column_tiles);

} // namespace loadmaster::cutting
