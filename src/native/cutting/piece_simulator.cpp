#include "cutting/piece_simulator.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace loadmaster::cutting {

namespace {

constexpr double margin = 1e-6; // share by which a run may seem to end later than it does
constexpr double rounding =
    1e-9; // share of a step by which what ends at once may seem to end later
constexpr std::size_t checkpoints = 16; // of a run; each is a few bytes for every piece

} // namespace

PieceSimulator::PieceSimulator(const Network &network)
    : network_(network), uses_(network.operators), reader_(network.source.size()),
      edge_(network.source.size(), nullptr), edge_options_(network.source.size()),
      kept_(checkpoints), recent_(checkpoints) {
    find_gates();
    find_shares();
    find_places();
    for (std::size_t op = 0; op < network.operators; ++op)
        for (std::int64_t at = network.source_first[op]; at < network.source_first[op + 1]; ++at) {
            uses_[network.source[at]].push_back(at);
            reader_[at] = op;
        }
}

void PieceSimulator::find_gates() {
    gate_.resize(network_.operators);
    std::int64_t all = 0, used = 0;
    std::size_t freed = 0;
    for (std::size_t op = 0; op < network_.operators; ++op) {
        all += network_.given[op];
        while (freed < op && used < all - network_.room[freed]) used += network_.given[freed++];
        gate_[op] = freed > 0 && network_.given[op] > 0 ? freed - 1 : op;
    }
}

// Cores have prices that add up to one, lower for slower ones. What each piece costs on the core
// where it is cheapest adds up to no more than any run takes.
void PieceSimulator::find_shares() {
    const std::size_t cores = network_.cores;
    std::vector<double> price(cores, 0.0);
    for (std::size_t i = 0; i < network_.alone.size(); ++i) price[i % cores] += network_.alone[i];
    double sum = 0.0;
    for (double &own : price)
        own = 1.0 / std::max(own, std::numeric_limits<double>::min()), sum += own;
    share_.assign(network_.link.size(), std::numeric_limits<double>::infinity());
    for (std::size_t i = 0; i < network_.alone.size(); ++i)
        share_[i / cores] = std::min(share_[i / cores], network_.alone[i] * price[i % cores] / sum);
}

void PieceSimulator::find_places() {
    for (std::size_t op = 0; op < network_.operators; ++op) {
        std::size_t most = 0;
        for (std::int64_t own = network_.option_first[op]; own < network_.option_first[op + 1];
            ++own)
            most = std::max(most, tiles(own));
        first_.push_back(place_.size());
        most_tiles_.push_back(most);
        for (std::size_t batch = 0; batch < network_.mini_batches; ++batch)
            for (std::size_t tile = 0; tile < most; ++tile) place_.push_back({op, batch, tile});
    }
}

Outcome PieceSimulator::run(std::span<const std::int64_t> option, const Limits &limits) {
    begin(option);
    const double last = limits.end * (1.0 + margin);
    while (true) {
        if (state_.now + std::max(state_.rest, state_.to_fetch) > last)
            return {std::numeric_limits<double>::infinity(), state_.work};
        take_checkpoint();
        fetch_next();
        dispatch();
        if (state_.running.empty()) return {state_.now, state_.work};
        advance();
        for (const Running &run : ended_) {
            if (run.piece < 0) {
                fetched();
            } else {
                state_.busy[run.core] = 0, ++state_.idle;
                finish(static_cast<std::size_t>(run.piece));
            }
        }
        if (falls_behind(limits)) return {std::numeric_limits<double>::infinity(), state_.work};
    }
}

// From the latest checkpoint that holds for these options too, or from nothing.
void PieceSimulator::begin(std::span<const std::int64_t> option) {
    for (State &state : recent_) state.option.clear();
    resumed_ = checkpoints;
    while (resumed_ > 0 && !resume(kept_[resumed_ - 1], option)) --resumed_;
    if (resumed_ == 0) {
        const std::size_t operators = network_.operators;
        state_.option.resize(operators), state_.left.resize(operators);
        state_.passed.resize(operators);
        state_.waiting.resize(place_.size());
        state_.ended.assign(place_.size(), 0);
        state_.reached.assign(operators, 0);
        state_.ready.clear(place_.size());
        state_.busy.assign(network_.cores, 0);
        state_.running.clear();
        state_.reaches = state_.fetch_op = state_.fetch_tile = state_.begun = 0;
        state_.idle = network_.cores;
        state_.started = state_.size = 0;
        state_.fetching = false;
        state_.now = state_.work = state_.rest = state_.to_fetch = 0.0;
        for (std::size_t op = 0; op < operators; ++op) {
            state_.option[op] = network_.option_first[op] + option[op];
            account(op, state_.option[op], 1);
            set_up(op);
        }
    }
    find_edges();
}

// Before a piece of an operator could start, nothing depends on its option but what is fetched for
// it, and how much its readers wait for.
bool PieceSimulator::resume(const State &checkpoint, std::span<const std::int64_t> option) {
    if (checkpoint.option.empty()) return false;
    changed_.clear();
    for (std::size_t op = 0; op < network_.operators; ++op) {
        const std::int64_t own = network_.option_first[op] + option[op];
        if (own == checkpoint.option[op]) continue;
        if (checkpoint.reached[op] ||
            (checkpoint.fetch_op >= op && !fetches_alike(own, checkpoint.option[op])))
            return false;
        changed_.push_back(op);
    }
    state_ = checkpoint;

    for (const std::size_t op : changed_) {
        account(op, state_.option[op], -1);
        state_.option[op] = network_.option_first[op] + option[op];
        account(op, state_.option[op], 1);
    }
    for (const std::size_t op : changed_) {
        if (op == state_.fetch_op) {
            std::size_t tile = next_fetch(op, 0);
            for (std::size_t before = 0; before < state_.fetch_tile; ++before)
                if (network_.fetch[network_.piece_first[checkpoint.option[op]] + before] > 0.0)
                    tile = next_fetch(op, tile + 1);
            state_.fetch_tile = std::min(tile, tiles(state_.option[op]));
        }
        set_up(op);
        if (state_.reached[op]) return false;
        for (const std::int64_t at : uses_[op]) {
            const std::int64_t reader = state_.option[reader_[at]];
            if (reader != checkpoint.option[reader_[at]]) continue;
            const Edge &before = edge(at, reader, checkpoint.option[op]),
                       &after = edge(at, reader, state_.option[op]);
            for (std::size_t tile = 0; tile < tiles(reader); ++tile) {
                if ((before.needs[tile] == 0) != (after.needs[tile] == 0)) return false;
                for (std::size_t batch = 0; batch < network_.mini_batches; ++batch)
                    state_.waiting[piece_of(reader_[at], batch, tile)] +=
                        after.needs[tile] - before.needs[tile];
            }
        }
    }
    return true;
}

// Adds the pieces of an option to what is left, or takes them away.
void PieceSimulator::account(std::size_t op, std::int64_t option, int sign) {
    const auto batches = static_cast<std::int64_t>(network_.mini_batches);
    const std::int64_t first = network_.piece_first[option],
                       last = network_.piece_first[option + 1];
    state_.left[op] = static_cast<std::size_t>((last - first) * batches);
    state_.size += sign * (last - first) * batches;
    for (std::int64_t number = first; number < last; ++number) {
        state_.rest += sign * share_[number] * static_cast<double>(batches);
        state_.to_fetch += sign * network_.fetch[number];
    }
}

// Pieces wait for others and, from the first on that something is fetched for, for a fetch.
void PieceSimulator::set_up(std::size_t op) {
    const std::int64_t option = state_.option[op];
    const double *fetch = &network_.fetch[network_.piece_first[option]];
    const std::size_t count = tiles(option);
    const std::size_t fetched = state_.fetch_op > op ? count
        : state_.fetch_op == op                      ? state_.fetch_tile
                                                     : 0;
    for (std::size_t batch = 0; batch < network_.mini_batches; ++batch) {
        std::int32_t waits = 0, *waiting = &state_.waiting[piece_of(op, batch, 0)];
        for (std::size_t tile = 0; tile < count; ++tile) {
            if (fetch[tile] > 0.0) waits = tile >= fetched ? 1 : 0;
            waiting[tile] = waits;
            state_.ended[piece_of(op, batch, tile)] = 0;
        }
        for (std::int64_t at = network_.source_first[op]; at < network_.source_first[op + 1];
            ++at) {
            const std::size_t source = network_.source[at];
            const Edge &own = edge(at, option, state_.option[source]);
            for (std::size_t tile = 0; tile < count; ++tile) waiting[tile] += own.needs[tile];
            for (std::size_t made = 0; made < tiles(state_.option[source]); ++made)
                if (state_.ended[piece_of(source, batch, made)])
                    for (std::int32_t i = own.first[made]; i < own.first[made + 1]; ++i)
                        --waiting[own.reader[i]];
        }
        for (std::size_t tile = 0; tile < count; ++tile)
            if (waiting[tile] == 0) make_ready(op, piece_of(op, batch, tile));
    }
}

// Most operators have the options of the run before.
void PieceSimulator::find_edges() {
    for (std::size_t at = 0; at < edge_.size(); ++at) {
        const std::int64_t option = state_.option[reader_[at]],
                           source = state_.option[network_.source[at]];
        if (edge_[at] != nullptr && edge_options_[at] == std::pair(option, source)) continue;
        edge_[at] = &edge(static_cast<std::int64_t>(at), option, source);
        edge_options_[at] = {option, source};
    }
}

const PieceSimulator::Edge &PieceSimulator::edge(
    std::int64_t at, std::int64_t option, std::int64_t source) {
    const std::uint64_t options = network_.piece_first.size();
    const std::uint64_t key =
        (static_cast<std::uint64_t>(at) * options + option) * options + source;
    const auto [found, is_new] = edges_.try_emplace(key);
    if (is_new) found->second = made_edge(at, option, source);
    return found->second;
}

PieceSimulator::Edge PieceSimulator::made_edge(
    std::int64_t at, std::int64_t option, std::int64_t source) const {
    const std::int64_t first = network_.piece_first[option],
                       last = network_.piece_first[option + 1];
    Edge edge;
    edge.needs.assign(last - first, 0);
    for (std::int64_t made = network_.piece_first[source]; made < network_.piece_first[source + 1];
        ++made) {
        edge.first.push_back(static_cast<std::int32_t>(edge.reader.size()));
        for (std::int64_t piece = first; piece < last; ++piece) {
            const std::int64_t need =
                network_.need_first[piece] + at - network_.source_first[reader_[at]];
            if (!overlap(static_cast<std::size_t>(need), static_cast<std::size_t>(made))) continue;
            edge.reader.push_back(static_cast<std::int32_t>(piece - first));
            ++edge.needs[piece - first];
        }
    }
    edge.first.push_back(static_cast<std::int32_t>(edge.reader.size()));
    return edge;
}

bool PieceSimulator::falls_behind(const Limits &limits) {
    const std::size_t before = state_.begun;
    while (state_.begun < network_.operators && state_.left[state_.begun] == 0)
        state_.passed[state_.begun++] = state_.now;
    return state_.begun > before && state_.begun > limits.from && !limits.passed.empty() &&
        state_.now > limits.passed[state_.begun - 1] + limits.most;
}

// Lets time pass until something ends. As in simulation/event_engine.hpp, what uses a link of which
// more is demanded than it has goes so much slower.
void PieceSimulator::advance() {
    double near = 0.0, main = 0.0, step = std::numeric_limits<double>::infinity();
    for (const Running &run : state_.running) near += run.near, main += run.main;
    near = std::max(1.0, near), main = std::max(1.0, main);
    for (Running &run : state_.running) {
        run.slowness = std::max(run.near > 0.0 ? near : 1.0, run.main > 0.0 ? main : 1.0);
        step = std::min(step, run.left * run.slowness);
    }
    state_.now += step;
    ended_.clear();
    std::size_t kept = 0;
    double work = state_.work;
    for (const Running &run : state_.running) {
        if (run.piece >= 0) work += step;
        const double left = run.left - step / run.slowness;
        if (left <= rounding * step) {
            ended_.push_back(run);
        } else {
            state_.running[kept] = run;
            state_.running[kept++].left = left;
        }
    }
    state_.work = work;
    state_.running.resize(kept);
}

bool PieceSimulator::overlap(std::size_t need, std::size_t made) const {
    const std::int64_t *one = &network_.needed[need * 2 * network_.rank],
                       *other = &network_.made[made * 2 * network_.rank];
    for (std::size_t d = 0; d < 2 * network_.rank; d += 2)
        if (std::max(one[d], other[d]) >= std::min(one[d + 1], other[d + 1])) return false;
    return true;
}

// The piece of an operator, from a tile on, that something is fetched for.
std::size_t PieceSimulator::next_fetch(std::size_t op, std::size_t tile) const {
    const std::int64_t option = state_.option[op];
    const double *fetch = &network_.fetch[network_.piece_first[option]];
    while (tile < tiles(option) && !(fetch[tile] > 0.0)) ++tile;
    return tile < tiles(option) ? tile : IndexSet::none;
}

// Whether the same is fetched for an operator in one option as in another, one time after the
// other.
bool PieceSimulator::fetches_alike(std::int64_t option, std::int64_t other) const {
    const auto next = [&](std::int64_t &number, std::int64_t own) {
        while (number < network_.piece_first[own + 1] && !(network_.fetch[number] > 0.0)) ++number;
        return number < network_.piece_first[own + 1] ? network_.fetch[number++] : 0.0;
    };
    std::int64_t one = network_.piece_first[option], two = network_.piece_first[other];
    while (true) {
        const double seconds = next(one, option);
        if (seconds != next(two, other)) return false;
        if (!(seconds > 0.0)) return true;
    }
}

void PieceSimulator::make_ready(std::size_t op, std::size_t piece) {
    state_.ready.insert(piece);
    state_.reaches += !state_.reached[op];
    state_.reached[op] = 1;
}

void PieceSimulator::take_checkpoint() {
    if (network_.operators == 0) return;
    const std::size_t slot = state_.reaches * checkpoints / network_.operators;
    if (slot < checkpoints && slot >= resumed_ && recent_[slot].option.empty())
        recent_[slot] = state_;
}

void PieceSimulator::keep() {
    for (std::size_t slot = resumed_; slot < checkpoints; ++slot)
        std::swap(kept_[slot], recent_[slot]);
}

void PieceSimulator::fetch_next() {
    for (; !state_.fetching && state_.fetch_op < network_.operators;
        ++state_.fetch_op, state_.fetch_tile = 0) {
        const std::size_t op = state_.fetch_op, tile = next_fetch(op, state_.fetch_tile);
        if (tile == IndexSet::none) continue;
        if (gate_[op] != op && state_.left[gate_[op]] > 0) return;
        const double seconds = network_.fetch[network_.piece_first[state_.option[op]] + tile];
        state_.fetch_tile = tile, state_.fetching = true;
        state_.to_fetch -= seconds;
        state_.running.push_back({-1, 0, seconds, network_.copied, 1.0, 1.0});
        return;
    }
}

// The piece that something was fetched for, and those after it that read the same, need not wait
// for it any more.
void PieceSimulator::fetched() {
    const std::size_t op = state_.fetch_op, next = next_fetch(op, state_.fetch_tile + 1);
    const std::size_t last = std::min(next, tiles(state_.option[op]));
    for (std::size_t tile = state_.fetch_tile; tile < last; ++tile)
        for (std::size_t batch = 0; batch < network_.mini_batches; ++batch)
            enable(op, piece_of(op, batch, tile));
    state_.fetching = false;
    ++state_.fetch_tile;
}

void PieceSimulator::dispatch() {
    std::size_t piece = state_.ready.from(0);
    if (state_.idle == 0 || piece == IndexSet::none) return;
    expected_.assign(network_.cores, state_.now);
    for (const Running &run : state_.running)
        if (run.piece >= 0) expected_[run.core] += run.left * run.slowness;
    // As in simulation/dispatch.cpp: looking at a few pieces a core bounds the work of an event.
    for (std::size_t looks = 4 * network_.cores;
        looks > 0 && state_.idle > 0 && piece != IndexSet::none;
        --looks, piece = state_.ready.from(piece + 1)) {
        const double *alone = &network_.alone[number_of(place_[piece]) * network_.cores];
        std::size_t core = 0;
        double end = expected_[0] + alone[0];
        for (std::size_t c = 1; c < network_.cores; ++c) {
            const double other = expected_[c] + alone[c];
            core = other < end ? c : core;
            end = std::min(end, other);
        }
        expected_[core] = end;
        if (state_.busy[core]) continue;
        state_.ready.erase(piece);
        start(piece, core);
    }
}

void PieceSimulator::start(std::size_t piece, std::size_t core) {
    const std::size_t number = number_of(place_[piece]);
    const double alone = network_.alone[number * network_.cores + core];
    const double per_second = alone > 0.0 ? 1.0 / alone : 0.0;
    state_.busy[core] = 1, --state_.idle, ++state_.started;
    state_.rest -= share_[number];
    state_.running.push_back({static_cast<std::int64_t>(piece), core, alone,
        network_.link[number] * per_second, network_.stream[number] * per_second, 1.0});
}

void PieceSimulator::finish(std::size_t piece) {
    const Place &place = place_[piece];
    --state_.left[place.op];
    state_.ended[piece] = 1;
    for (const std::int64_t at : uses_[place.op]) {
        const Edge &edge = *edge_[at];
        const std::size_t base = piece_of(reader_[at], place.mini_batch, 0);
        for (std::int32_t i = edge.first[place.tile]; i < edge.first[place.tile + 1]; ++i)
            enable(reader_[at], base + static_cast<std::size_t>(edge.reader[i]));
    }
}

void PieceSimulator::enable(std::size_t op, std::size_t piece) {
    if (--state_.waiting[piece] == 0) make_ready(op, piece);
}

} // namespace loadmaster::cutting
