#include "allocation/portfolio.hpp"

#include "common/limits.hpp"

#include "allocation/blocks.hpp"
#include "allocation/first_fit.hpp"
#include "common/random.hpp"
#include "allocation/plain.hpp"
#include "allocation/solver.hpp"
#include "allocation/telamalloc.hpp"
#include "common/deep_thread.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <optional>
#include <stdexcept>
#include <utility>

namespace loadmaster::allocation {

namespace {

// With more buffers than this, searches that visit all pairs are left out.
constexpr std::int64_t kLarge = 2'000;
// With more buffers than this, exact search has no chance, and would not fit the stack.
constexpr std::int64_t kHuge = 10'000;
// Nodes of the exact search.
constexpr std::int64_t kNodes = 4'000'000;
// A node or step of a set with more lifetimes than this takes longer, and such sets are rarely
// searched through.
constexpr std::int64_t kFullBudgetLifetimes = 450;
// Nodes where low bytes are free, so that the search cannot complete a proof, and of the short
// search, some ten milliseconds.
constexpr std::int64_t kNodesWithoutProof = 20'000, kShortNodes = 10'000;
// Neighbours that are looked at, for each buffer and in all, to lower the peak of a large set; sets
// with gaps, windows or pins gain little from more.
constexpr std::int64_t kNeighboursPerBuffer = 4'000, kNeighbours = 40'000'000;
constexpr std::int64_t kPlainNeighboursPerBuffer = 16'000, kPlainNeighbours = 100'000'000;
// The same for few buffers at random.
constexpr std::int64_t kRandomNeighboursPerBuffer = 200'000, kRandomNeighbours = 200'000'000;
// Plain sets so near to their bound, as a fraction of it, are left as packing at scale made them;
// the second is for sets beyond `kAcceptNearBoundFrom`.
constexpr double kNearBound = 0.005, kNearBoundHuge = 0.02;
// How much of a block may be empty, as fractions of it: what does best differs from set to set by
// far.
constexpr std::array kMostEmpty{0.003, 0.01, 0.03, 0.1, 0.3};
// Per cent of the usual budgets for the blocks of a first attempt and of further ones, and how many
// of these there are where each engine has its whole budget.
constexpr double kSurveyWork = 2, kBlockWork = 12, kBlockAttempts = 9;
// The first slices of the engines' budgets, and how much larger the next is of the engine that made
// the best packing; or, where none made a better one, of all.
constexpr double kFirstSlice = 0.125, kFirstEjections = 0.03125, kWinnerGrowth = 4, kGrowth = 2;
// TelaMalloc: steps for each capacity, and attempts at ever higher capacities that may fail.
constexpr std::int64_t kSteps = 20'000, kCapacities = 8;
// Local search: buffers placed over all samples, and samples for every pair of buffers, because
// small sets have few orders.
constexpr std::int64_t kPlacements = 250'000, kSamplesPerPair = 16;

} // namespace

Budget Effort::budget(std::int64_t nodes) const {
    double seconds = kInfinite;
    if (timed())
        seconds =
            std::max(0.0, std::chrono::duration<double>(deadline - Budget::Clock::now()).count());
    return Budget(nodes, seconds, poll);
}

Portfolio::Portfolio(const Buffers &buffers, std::span<const std::int64_t> hint, const Bound &bound,
    std::int64_t capacity, const Effort &effort)
    : buffers_(buffers), hint_(hint.begin(), hint.end()), bound_(bound), capacity_(capacity),
      effort_(effort), orderly_(orderly(buffers)), plain_(Plain::possible(buffers)) {}

bool Portfolio::done() const {
    if (capacity_ >= 0 && floor_ > capacity_) return true;
    return found() && peak_ <= std::max({capacity_, bound_.bytes, floor_});
}

bool Portfolio::over() {
    if (effort_.timed() && Budget::Clock::now() >= effort_.deadline) interrupted_ = true;
    return interrupted_ || done();
}

void Portfolio::note(const Budget &budget) {
    interrupted_ |= budget.interrupted() || budget.stopped();
}

bool Portfolio::offer(std::vector<std::int64_t> &&offset) {
    const std::int64_t peak = peak_of(buffers_, offset);
    if (found() && peak >= peak_) return false;
    peak_ = peak;
    offset_ = std::move(offset);
    return true;
}

std::int64_t Portfolio::scaled(std::int64_t work) const {
    return std::max<std::int64_t>(1, std::llround(static_cast<double>(work) * effort_.work / 100));
}

std::vector<std::int64_t> Portfolio::placed(
    std::span<const std::int64_t> order, bool best_fit) const {
    return place_in_order(buffers_, order, best_fit, kUnlimited).offset;
}

void Portfolio::run() {
    if (!buffers_.near_first.empty()) { // no lifetimes, of which the others think
        first_fits();
        if (!over()) best_fit();
        if (!over()) local_search();
        return;
    }
    begin();
    const bool in_turns = small() && !(effort_.in_passing && orderly_);
    if (in_turns && effort_.work >= 100)
        take_turns();
    else if (search_on(); in_turns && (open_ || !orderly_) && !over())
        play(simple_strategies());
    search_until_deadline();
}

// What takes little time: orders, and a short search.
void Portfolio::begin() {
    const bool whole = !effort_.in_passing;
    first_fits();
    if (small() && whole && !over()) search(kShortNodes);
    if (whole && !over()) best_fit();
    if (whole && !small() && !over() && far_from_bound()) eject(Ejections::largest_first, 1);
}

void Portfolio::search_on() {
    if (searchable() && !over()) open_ = search(exact_nodes());
}

void Portfolio::search_until_deadline() {
    while (effort_.goes_on() && searchable() && open_ && !over()) open_ = search(-1);
}

bool Portfolio::small() const { return buffers_.count() <= kLarge; }

bool Portfolio::searchable() const { return buffers_.count() <= kHuge; }

// Where they run too, none is better than what is found. Exact search is one where it proves
// nothing; elsewhere it has gone on from what the others found.
std::vector<Portfolio::Turn> Portfolio::simple_strategies() const {
    std::vector<Turn> turns;
    for (const std::string_view name : {"telamalloc", "local-search", "exact"})
        if (!orderly_ || name != "exact")
            turns.push_back({Engine::strategy, effort_.seed, 1, 0, name});
    return turns;
}

// The engines work side by side, each with a slice of its budget from the best packing so far. The
// slices grow: that of the engine which made it, or all of them if none did. Of the limits on what
// may be empty in a block the one goes on that did best. Where an exhausted search proves nothing,
// simple strategies have one turn.
void Portfolio::take_turns() {
    std::vector<Turn> turns;
    if (!orderly_) turns = simple_strategies();
    for (const double most_empty : kMostEmpty)
        turns.push_back({Engine::blocks, effort_.seed, kSurveyWork, most_empty});
    std::array<double, 3> slice{kFirstSlice, kFirstSlice, kFirstEjections}, left{1, 1, 1};
    for (std::uint64_t round = 0; open_ && !over(); ++round) {
        for (std::size_t e : indices(slice.size())) {
            const auto engine = static_cast<Engine>(e);
            const double share = effort_.goes_on() ? slice[e] : std::min(slice[e], left[e]);
            left[e] -= share;
            if (engine == Engine::blocks)
                for (auto n = most_empty_ > 0 ? std::lround(kBlockAttempts * share) : 0; n > 0; --n)
                    turns.push_back(
                        {engine, effort_.seed + ++block_attempts_, kBlockWork, most_empty_});
            else if (share > 0)
                turns.push_back({engine, effort_.seed + round, share, 0});
        }
        if (turns.empty()) return;
        const auto winner = play(turns);
        turns.clear();
        for (std::size_t e : indices(slice.size()))
            slice[e] *= winner == static_cast<Engine>(e) ? kWinnerGrowth : winner ? 1 : kGrowth;
    }
}

// Turns run on so many threads as there may be. The first, by number, that leaves nothing to gain
// is the last that counts, so that the number of threads changes nothing. Returns the engine that
// made a lower packing, if one did.
std::optional<Portfolio::Engine> Portfolio::play(const std::vector<Turn> &turns) {
    const auto count = std::ssize(turns);
    std::vector<std::optional<Portfolio>> played(turns.size());
    std::atomic<std::int64_t> settled = count;
    std::atomic<bool> signalled = false;
    // Side by side the longest, which are the last, begin first.
    until_settled(count, effort_.threads, true, settled, [&](std::int64_t i, bool own) {
        if (signalled) return false;
        Effort effort = effort_;
        effort.threads = 1, effort.seed = turns[i].seed;
        effort.poll = [&, i, own] {
            if (own && effort_.poll && effort_.poll()) signalled = true;
            return signalled || settled < i;
        };
        played[i].emplace(buffers_, hint_, bound_, capacity_, effort);
        played[i]->play(turns[i], *this);
        return played[i]->done();
    });
    std::optional<Engine> winner;
    std::int64_t lowest = kUnlimited; // of the blocks
    for (std::int64_t i = 0; i < count && i <= settled; ++i) {
        if (!played[i]) continue;
        Portfolio &part = *played[i];
        counters_ += part.counters_;
        interrupted_ |= part.interrupted_;
        floor_ = std::max(floor_, part.floor_);
        if (turns[i].engine == Engine::exact) open_ = part.open_;
        if (!part.found()) continue;
        if (turns[i].engine == Engine::blocks && part.peak_ < lowest)
            lowest = part.peak_, most_empty_ = turns[i].most_empty;
        if (offer(std::move(part.offset_))) winner = turns[i].engine;
    }
    interrupted_ |= signalled;
    sink();
    return winner;
}

// Each buffer in turn, from the lowest up, falls as far as it can.
void Portfolio::sink() {
    while (offer(placed(upwards(), false))) {
    }
}

void Portfolio::play(const Turn &turn, const Portfolio &from) {
    if (turn.engine == Engine::blocks) return pack_blocks(turn);
    if (turn.engine == Engine::strategy) return run(turn.name);
    offset_ = from.offset_, peak_ = from.peak_, floor_ = from.floor_;
    if (turn.engine == Engine::exact)
        open_ = search(std::max<std::int64_t>(
            1, std::llround(static_cast<double>(exact_nodes()) * turn.share)));
    else
        eject(Ejections::at_random, turn.share);
}

// Packs blocks in place of buffers, with few of them left.
void Portfolio::pack_blocks(const Turn &turn) {
    const Blocks blocks(buffers_, {std::max(bound_.bytes, capacity_), turn.most_empty, turn.seed});
    if (blocks.buffers().count() == buffers_.count()) return;
    Effort effort = effort_;
    effort.work = turn.share;
    Portfolio packed(blocks.buffers(), {}, bound_, capacity_, effort);
    packed.begin();
    packed.search_on();
    packed.search_until_deadline();
    interrupted_ = packed.interrupted_, counters_ = packed.counters_;
    if (packed.found()) offer(blocks.offsets(packed.offset_));
}

void Portfolio::first_fits() {
    Budget budget = effort_.budget(-1);
    Greedy greedy = best_first_fit(buffers_, hint_, std::max(bound_.bytes, capacity_), budget);
    if (greedy.packed) offer(std::move(greedy.offset));
    note(budget);
}

void Portfolio::run(std::string_view strategy) {
    if (!buffers_.near_first.empty() && (strategy == "exact" || strategy == "telamalloc"))
        throw std::invalid_argument(
            "conflicts: too many for this strategy: use auto, or a simple one");
    if (strategy == "auto")
        run();
    else if (strategy == "best-fit")
        best_fit();
    else if (strategy == "greedy")
        first_fits();
    else if (strategy == "exact")
        search(effort_.goes_on() ? -1 : exact_nodes());
    else if (strategy == "telamalloc")
        best_fit(), telamalloc(scaled(kSteps * kCapacities));
    else if (strategy == "local-search")
        local_search();
    else
        throw std::invalid_argument("strategy: none of this name");
}

std::int64_t Portfolio::fewer_where_slow(std::int64_t steps) const {
    const double share = std::min(1.0,
        static_cast<double>(kFullBudgetLifetimes) /
            static_cast<double>(std::max<std::size_t>(1, buffers_.begin.size())));
    return static_cast<std::int64_t>(static_cast<double>(steps) * std::pow(share, 1.5));
}

std::int64_t Portfolio::exact_nodes() const {
    return scaled(fewer_where_slow(orderly_ ? kNodes : kNodesWithoutProof));
}

bool Portfolio::search(std::int64_t nodes) {
    Budget budget = effort_.budget(nodes);
    const Settings settings{effort_.seed, effort_.threads, bound_.bytes};
    const std::span<const std::int64_t> start =
        found() ? std::span<const std::int64_t>(offset_) : std::span<const std::int64_t>(hint_);
    Answer answer = capacity_ < 0 ? minimise(buffers_, start, settings, budget)
                                  : fit(buffers_, start, capacity_, settings, budget);
    counters_.nodes += budget.nodes();
    if (answer.status == Status::optimal || answer.status == Status::feasible)
        offer(std::move(answer.offset));
    if (orderly_) {
        floor_ = std::max(floor_, answer.bound);
        if (capacity_ >= 0 && answer.status == Status::infeasible)
            floor_ = std::max(floor_, capacity_ + 1);
    }
    note(budget);
    return budget.spent();
}

// Packing at scale brings only plain sets near to their bound.
bool Portfolio::far_from_bound() const {
    const double near = buffers_.count() > kAcceptNearBoundFrom ? kNearBoundHuge : kNearBound;
    return !plain_ ||
        static_cast<double>(peak_) >
        (1 + near) * static_cast<double>(std::max(bound_.bytes, capacity_));
}

void Portfolio::eject(Ejections ejections, double share) {
    if (!found()) return;
    const bool at_random = ejections == Ejections::at_random;
    const std::int64_t each = at_random ? kRandomNeighboursPerBuffer
        : plain_                        ? kPlainNeighboursPerBuffer
                                        : kNeighboursPerBuffer,
                       most = at_random ? kRandomNeighbours
        : plain_                        ? kPlainNeighbours
                                        : kNeighbours;
    const double work = share * static_cast<double>(std::min(most, each * buffers_.count()));
    Budget budget = effort_.budget(-1);
    offer(lower_ceilings(buffers_, offset_, std::max(bound_.bytes, capacity_), ejections,
        effort_.seed, scaled(std::llround(work)), budget));
    note(budget);
}

std::vector<std::int64_t> Portfolio::upwards() const {
    return sorted_by(offset_.size(), [&](std::int64_t b) { return offset_[b]; });
}

// By birth; of those born together, the largest first.
void Portfolio::best_fit() {
    const auto birth = [&](std::int64_t b) {
        const std::int64_t first = buffers_.first[b];
        return first < buffers_.first[b + 1] ? buffers_.begin[first] : 0;
    };
    const auto order = sorted_by(buffers_.size.size(),
        [&](std::int64_t b) { return std::pair(birth(b), -buffers_.size[b]); });
    offer(placed(order, true));
}

// Asks for the bound first, then for ever more, up to just below the best so far.
void Portfolio::telamalloc(std::int64_t steps) {
    if (!found()) best_fit();
    const std::int64_t low = capacity_ < 0 ? bound_.bytes : capacity_;
    for (std::int64_t failures = 0; failures < kCapacities && steps > 0 && !over();) {
        Budget budget = effort_.budget(-1);
        TelamallocOptions options;
        options.steps = std::min(kSteps, steps);
        const double share = static_cast<double>(failures) / kCapacities;
        const std::int64_t capacity =
            low + static_cast<std::int64_t>(static_cast<double>(peak_ - 1 - low) * share);
        Telamalloc search(buffers_, capacity, options, budget);
        const bool packed = search.run();
        counters_ += search.counts();
        steps -= search.counts().steps;
        note(budget);
        if (packed)
            offer(search.offsets());
        else if (capacity_ >= 0)
            break;
        else
            ++failures;
    }
}

// Starts from the best of the family; a buffer that reaches the peak moves forward in the order,
// sometimes any two change places, and what is no worse is kept.
void Portfolio::local_search() {
    if (!found()) first_fits();
    if (!found()) return;
    Budget budget = effort_.budget(-1);
    std::vector<std::int64_t> order = upwards(), offset = offset_;
    std::int64_t peak = peak_;
    const std::int64_t count = buffers_.count();
    Random random(effort_.seed);
    std::vector<std::int64_t> tops(offset.size());
    std::vector<std::size_t> high;
    for (std::int64_t left =
             scaled(std::min(kPlacements / count + 1, kSamplesPerPair * count * count));
        left > 0 && !done() && budget.look(); --left) {
        for (std::size_t b : indices(tops.size())) tops[b] = offset[b] + buffers_.size[b];
        std::vector<std::int64_t> sorted = tops;
        const auto rank =
            sorted.begin() + static_cast<std::ptrdiff_t>(0.95 * static_cast<double>(count - 1));
        std::nth_element(sorted.begin(), rank, sorted.end());
        high.clear();
        for (std::size_t i : indices(order.size()))
            if (tops[order[i]] >= *rank) high.push_back(i);
        std::vector<std::int64_t> moved = order;
        const std::size_t at = high[random.index(high.size())], to = random.index(at + 1);
        std::rotate(moved.begin() + to, moved.begin() + at, moved.begin() + at + 1);
        if (random.uniform() < 0.5)
            std::swap(moved[random.index(moved.size())], moved[random.index(moved.size())]);
        std::vector<std::int64_t> there = placed(moved, false);
        ++counters_.samples;
        if (peak_of(buffers_, there) > peak) continue;
        peak = peak_of(buffers_, there), offset = there, order = std::move(moved);
        offer(std::move(there));
    }
    note(budget);
}

} // namespace loadmaster::allocation
