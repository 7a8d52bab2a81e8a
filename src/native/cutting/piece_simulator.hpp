// How the pieces of all operators run, in a simple model of the machine.
#pragma once

#include "common/index_set.hpp"
#include "cutting/network.hpp"

#include <cstdint>
#include <limits>
#include <span>
#include <unordered_map>
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
    // to end. O(pieces x (cores + log pieces) + pairs of pieces that depend on one another).
    Outcome run(std::span<const std::int64_t> option, const Limits &limits = {});

    // Pieces that the last run started, and those that it would have come to.
    std::int64_t pieces() const { return started_; }
    std::int64_t size() const { return static_cast<std::int64_t>(place_.size()); }

    // For every operator, when it and all before it had ended in the last run; of one that was
    // given up only the first are known.
    const std::vector<double> &passed() const { return passed_; }

  private:
    // For an option of a reader and of its source: which of the reader's pieces need each of the
    // source's, and how many each needs.
    struct Edge {
        std::vector<std::int32_t> first, reader, needs;
    };
    // A piece of an operator for a mini-batch; `number` counts those of all options.
    struct Place {
        std::size_t op, mini_batch, number;
    };
    // A piece, or -1 for what is fetched: seconds that it still takes alone, the share of each link
    // that it demands, and how many times slower it is now.
    struct Running {
        std::int64_t piece;
        double left, near, main, slowness;
    };

    void find_gates();
    void set_up(std::span<const std::int64_t> option);
    void set_up(std::size_t op);
    void find_edge(std::size_t op, std::int64_t at);
    Edge made_edge(std::size_t op, std::int64_t at) const;
    bool overlap(std::size_t need, std::size_t made) const;
    std::size_t tiles(std::size_t op) const;
    std::size_t piece_of(std::size_t op, std::size_t mini_batch, std::size_t tile) const {
        return first_[op] + mini_batch * tiles(op) + tile;
    }
    void find_shares();
    void fetch_next();
    void fetched();
    void dispatch();
    void advance();
    bool falls_behind(const Limits &limits);
    void start(std::size_t piece, std::size_t core);
    void finish(std::size_t piece);
    void enable(std::size_t piece);

    const Network &network_;
    std::vector<std::size_t> gate_; // the operator that must have ended before there is room for
                                    // what each is given; itself: none
    std::vector<std::vector<std::int64_t>>
        uses_;                        // of each operator's result: indices into `source`
    std::vector<std::size_t> reader_; // the operator that each such index belongs to
    std::vector<double> share_;       // of each piece: seconds that it adds to any run at least
    std::unordered_map<std::uint64_t, Edge> edges_;
    std::vector<const Edge *> edge_;      // by index into `source`: as in the last run
    std::vector<std::uint64_t> edge_key_; // of each of these in `edges_`

    // Of the run.
    std::vector<std::int64_t> option_; // of every operator, counted over all
    std::vector<std::size_t> first_,
        left_;                 // of every operator: its first piece, and how many still have to run
    std::vector<Place> place_; // of every piece
    std::vector<std::int32_t> waiting_, core_;
    std::vector<std::size_t> fetches_; // pieces of first mini-batches that something is fetched for
    IndexSet ready_;
    std::vector<double> expected_;
    std::vector<char> busy_;
    std::vector<Running> running_;
    std::vector<std::int64_t> ended_;
    std::vector<double> passed_;
    std::size_t fetched_ = 0, idle_ = 0,
                begun_ = 0; // `begun_`: the first operator that has not ended
    std::int64_t started_ = 0;
    bool fetching_ = false;
    double now_ = 0.0, work_ = 0.0;
    double rest_ = 0.0,
           to_fetch_ =
               0.0; // seconds at least that pieces and fetches which have not begun will take
};

} // namespace loadmaster::cutting
