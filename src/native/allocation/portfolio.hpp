// The strategy `auto`: orders, a short exact search, then three engines in turn (exact search,
// blocks, ejections) with slices of work that grow, until a bound is met or the budget is spent.
//
// Only ever a lower peak is kept, so that the answer is never worse than that of any search alone.
#pragma once

#include "allocation/bounds.hpp"
#include "allocation/effort.hpp"
#include "allocation/lower_ceilings.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace loadmaster::allocation {

class Portfolio {
  public:
    // `capacity`: -1 for the lowest peak. `hint`: empty, or an offset for each buffer, -1 for none.
    Portfolio(const Buffers &buffers, std::span<const std::int64_t> hint, const Bound &bound,
        std::int64_t capacity, const Effort &effort);

    void run();
    // One of "auto", "best-fit", "greedy", "exact", "telamalloc" and "local-search"; throws
    // std::invalid_argument for others.
    void run(std::string_view strategy);
    // The searches, each of which offers what it finds.
    void best_fit();
    void local_search();
    void telamalloc(std::int64_t steps);

    bool found() const { return peak_ >= 0; }
    const std::vector<std::int64_t> &offset() const { return offset_; }
    std::int64_t peak() const { return peak_; }
    // Bytes that any packing needs, as far as an exhausted search has shown.
    std::int64_t floor() const { return floor_; }
    bool interrupted() const { return interrupted_; }
    const Counters &counters() const { return counters_; }

  private:
    bool done() const;
    bool over();
    bool far_from_bound() const;
    std::int64_t fewer_where_slow(std::int64_t steps) const;
    bool offer(std::vector<std::int64_t> &&offset);
    void first_fits();
    // Searches for a proof; whether it was cut short.
    bool search(std::int64_t nodes);
    enum class Engine { blocks, exact, ejections, strategy };
    struct Turn {
        Engine engine;
        std::uint64_t seed;
        double share;               // of the engine's budget; of blocks in per cent of all budgets
        double most_empty;          // part of a block that may be empty
        std::string_view name = {}; // of a strategy
    };
    void begin();
    void search_on();
    void search_until_deadline();
    bool small() const;
    bool searchable() const;
    std::vector<Turn> simple_strategies() const;
    void take_turns();
    std::optional<Engine> play(const std::vector<Turn> &turns);
    void play(const Turn &turn, const Portfolio &from);
    void pack_blocks(const Turn &turn);
    void sink();
    std::vector<std::int64_t> upwards() const; // the order of the best packing's addresses
    void eject(Ejections ejections, double share);
    std::int64_t exact_nodes() const;
    std::int64_t scaled(std::int64_t work) const;
    void note(const Budget &budget);
    std::vector<std::int64_t> placed(std::span<const std::int64_t> order, bool best_fit) const;

    const Buffers buffers_;
    const std::vector<std::int64_t> hint_;
    const Bound bound_;
    const std::int64_t capacity_;
    const Effort effort_;
    const bool orderly_;
    const bool plain_;
    std::vector<std::int64_t> offset_;
    std::int64_t peak_ = -1, floor_ = 0;
    double most_empty_ = 0; // part of the blocks that did best
    std::uint64_t block_attempts_ = 0;
    bool interrupted_ = false;
    bool open_ = true; // exact search was cut short, and may find more
    Counters counters_;
};

} // namespace loadmaster::allocation
