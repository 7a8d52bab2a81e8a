// How the pieces of all operators run, in a simple model of the machine.
#pragma once

#include "common/index_set.hpp"
#include "common/limits.hpp"
#include "cutting/network.hpp"
#include "simulation/event_engine.hpp"

#include <array>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace loadmaster::cutting {

struct Outcome {
    double end;  // seconds until all pieces have ended
    double work; // picoseconds that cores spend on them

    bool operator<(const Outcome &other) const {
        return end != other.end ? end < other.end : work < other.work;
    }
};

// Runs a network for one choice of options after another. Of the pieces that could start, those of
// earlier operators go first, each to the core where it ends first; a piece that would rather wait
// for a busy core does. What operators are given is fetched in their order, once for all
// mini-batches, as early as there is room for it.
class PieceSimulator {
  public:
    explicit PieceSimulator(const Network &network);

    // The option of every operator is counted from its first. A run that certainly ends after
    // `limit` is given up, and said never to end. O(pieces x (cores + log pieces) + pairs of pieces
    // that depend on one another).
    Outcome run(std::span<const std::int64_t> option, double limit = kInfinite);

    // Pieces of the options of the last run.
    std::int64_t pieces() const { return pieces_; }

  private:
    // For an option of a reader and of its source: which of the reader's pieces need each of the
    // source's, and how many each needs.
    struct Edge {
        std::vector<std::int32_t> first, reader, needs;
    };
    struct Place {
        std::size_t op, mini_batch, tile;
    };
    using Demand = std::array<double, 2>; // of the near link's time, and of the main one's

    void find_gates();
    void find_shares();
    void find_places();
    void begin(std::span<const std::int64_t> option);
    void set_up(std::size_t op);
    std::size_t next_fetch(std::size_t op, std::size_t tile) const;
    const Edge &edge(std::int64_t at);
    Edge made_edge(std::int64_t at, std::int64_t option, std::int64_t source) const;
    bool overlap(std::size_t need, std::size_t made) const;
    std::size_t tiles(std::int64_t option) const {
        return static_cast<std::size_t>(
            network_.piece_first[option + 1] - network_.piece_first[option]);
    }
    std::size_t piece_of(std::size_t op, std::size_t mini_batch, std::size_t tile) const {
        return first_[op] + mini_batch * most_tiles_[op] + tile;
    }
    std::size_t number_of(const Place &place) const {
        return static_cast<std::size_t>(network_.piece_first[option_[place.op]]) + place.tile;
    }
    void fetch_next(EventEngine &engine);
    void fetched();
    void dispatch(EventEngine &engine);
    void start(EventEngine &engine, std::size_t piece, std::size_t core);
    void finish(std::size_t piece);
    void enable(std::size_t piece) {
        if (--waiting_[piece] == 0) ready_.insert(piece);
    }

    const Network &network_;
    std::vector<std::size_t> gate_; // the operator that must have ended before there is room for
                                    // what each is given; itself: none
    std::vector<std::vector<std::int64_t>>
        uses_;                           // of each operator's result: indices into `source`
    std::vector<std::size_t> reader_;    // the operator that each such index belongs to
    std::vector<std::int64_t> duration_; // picoseconds (pieces x cores)
    std::vector<double> share_; // of each piece: picoseconds that it adds to any run at least
    std::vector<double> work_, fetch_; // of each option: the sum of these, and what it fetches
    // Pieces are numbered by operator, mini-batch and tile, with room for the tiles of any option:
    // so they keep their numbers whatever is chosen.
    std::vector<std::size_t> first_, most_tiles_; // of every operator
    std::vector<Place> place_;                    // of every piece
    std::unordered_map<std::uint64_t, Edge> edges_;

    // Of the last run, and of the next where nothing changes.
    std::vector<std::int64_t> option_; // of every operator, counted over all
    std::vector<const Edge *> edge_;   // by index into `source`
    std::vector<std::int32_t> waits_;  // of every piece: for so many pieces and fetches at first
    IndexSet free_;                    // pieces that wait for nothing
    std::vector<char> changed_;        // of every operator: itself, or what it reads

    // Of the last run.
    std::vector<std::int32_t> waiting_; // of every piece: for so many pieces and fetches
    std::vector<std::size_t> left_;     // of every operator: pieces that still have to run
    IndexSet ready_;
    std::vector<char> busy_;
    std::vector<Demand> demand_; // of what runs on every core, then of what is fetched
    std::vector<double> expected_;
    std::size_t fetch_op_ = 0, fetch_tile_ = 0; // where to look for the next piece to fetch for
    std::size_t idle_ = 0;
    std::int64_t pieces_ = 0;
    bool fetching_ = false;
    // Picoseconds at least that pieces and fetches which have not begun will take.
    double rest_ = 0.0, to_fetch_ = 0.0;
};

} // namespace loadmaster::cutting
