// How the pieces of all operators run, in a simple model of the machine.
#pragma once

#include "common/index_set.hpp"
#include "cutting/network.hpp"

#include <cstdint>
#include <limits>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace loadmaster::cutting {

struct Outcome {
    double end, work; // seconds until all pieces have ended, and those that cores spend on them

    bool operator<(const Outcome &other) const {
        return end != other.end ? end < other.end : work < other.work;
    }
};

// What a run is given up by: that it certainly ends after `end`, or, of operators of which the
// first had ended by `passed` in another run, that it is more than `most` seconds behind once it is
// beyond operator `from`.
struct Limits {
    double end = std::numeric_limits<double>::infinity();
    std::span<const double> passed = {};
    std::size_t from = 0;
    double most = 0.0;
};

// Runs a network for one choice of options after another. Of the pieces that could start, those of
// earlier operators go first, each to the core where it ends first; a piece that would rather wait
// for a busy core does. What runs at once shares the links as in a plan
// (simulation/event_engine.hpp), and what operators are given is fetched in their order, once for
// all mini-batches, as early as there is room for it.
class PieceSimulator {
  public:
    explicit PieceSimulator(const Network &network);

    // The option of every operator is counted from its first. A run that is given up is said never
    // to end. O(pieces x (cores + log pieces) + pairs of pieces that depend on one another), of
    // what comes after the last checkpoint that no changed operator has had a part in.
    Outcome run(std::span<const std::int64_t> option, const Limits &limits = {});

    // Later runs may begin at the checkpoints of the last one, which has come to its end.
    void keep();

    // Pieces that the last run started, and those that it would have come to.
    std::int64_t pieces() const { return state_.started; }
    std::int64_t size() const { return state_.size; }

    // For every operator, when it and all before it had ended in the last run; of one that was
    // given up only the first are known.
    const std::vector<double> &passed() const { return state_.passed; }

  private:
    // For an option of a reader and of its source: which of the reader's pieces need each of the
    // source's, and how many each needs.
    struct Edge {
        std::vector<std::int32_t> first, reader, needs;
    };
    struct Place {
        std::size_t op, mini_batch, tile;
    };
    // A piece, or -1 for what is fetched, on a core: seconds that it still takes alone, the share
    // of each link that it demands, and how many times slower it is now.
    struct Running {
        std::int64_t piece;
        std::size_t core;
        double left, near, main, slowness;
    };
    // What a run has come to.
    struct State {
        std::vector<std::int64_t> option;  // of every operator, counted over all
        std::vector<std::int32_t> waiting; // of every piece: for so many pieces and fetches
        std::vector<char> ended;           // pieces that have
        std::vector<std::size_t> left;     // of every operator: pieces that still have to run
        std::vector<char> reached;         // operators of which a piece could start, or has
        std::size_t reaches = 0;
        IndexSet ready;
        std::vector<char> busy;
        std::vector<Running> running;
        std::vector<double> passed;
        std::size_t fetch_op = 0, fetch_tile = 0; // where to look for the next piece to fetch for
        std::size_t idle = 0, begun = 0;          // `begun`: the first operator that has not ended
        std::int64_t started = 0, size = 0;       // pieces
        bool fetching = false;
        double now = 0.0, work = 0.0;
        // Seconds at least that pieces and fetches which have not begun will take.
        double rest = 0.0, to_fetch = 0.0;
    };

    void find_gates();
    void find_shares();
    void find_places();
    void begin(std::span<const std::int64_t> option);
    bool resume(const State &checkpoint, std::span<const std::int64_t> option);
    void set_up(std::size_t op);
    void account(std::size_t op, std::int64_t option, int sign);
    void take_checkpoint();
    void find_edges();
    std::size_t next_fetch(std::size_t op, std::size_t tile) const;
    const Edge &edge(std::int64_t at, std::int64_t option, std::int64_t source);
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
        return static_cast<std::size_t>(network_.piece_first[state_.option[place.op]]) + place.tile;
    }
    bool fetches_alike(std::int64_t option, std::int64_t other) const;
    void make_ready(std::size_t op, std::size_t piece);
    void fetch_next();
    void fetched();
    void dispatch();
    void advance();
    bool falls_behind(const Limits &limits);
    void start(std::size_t piece, std::size_t core);
    void finish(std::size_t piece);
    void enable(std::size_t op, std::size_t piece);

    const Network &network_;
    std::vector<std::size_t> gate_; // the operator that must have ended before there is room for
                                    // what each is given; itself: none
    std::vector<std::vector<std::int64_t>>
        uses_;                        // of each operator's result: indices into `source`
    std::vector<std::size_t> reader_; // the operator that each such index belongs to
    std::vector<double> share_;       // of each piece: seconds that it adds to any run at least
    // Pieces are numbered by operator, mini-batch and tile, with room for the tiles of any option:
    // so they keep their numbers whatever is chosen.
    std::vector<std::size_t> first_, most_tiles_; // of every operator
    std::vector<Place> place_;                    // of every piece
    std::unordered_map<std::uint64_t, Edge> edges_;
    std::vector<const Edge *> edge_; // by index into `source`: as in the last run
    std::vector<std::pair<std::int64_t, std::int64_t>> edge_options_; // of reader and source

    State state_;
    std::vector<double> expected_;
    std::vector<Running> ended_;
    std::vector<std::size_t> changed_;
    // States of the run that was kept, and those of the last, after equal shares of operators were
    // reached; without options where there is none.
    std::vector<State> kept_, recent_;
    std::size_t resumed_ = 0; // checkpoints that the last run has in common with the kept one
};

} // namespace loadmaster::cutting
