#include "cutting/piece_simulator.hpp"

#include "common/limits.hpp"

#include <algorithm>
#include <cmath>

namespace loadmaster::cutting {

namespace {

constexpr double kMargin = 1e-6;    // share by which a run may seem to end later than it does
constexpr std::int64_t kFetch = -1; // the task that is no piece

// Seconds that all that takes longer is taken to last, on its links too: no such network is
// planned, and sums stay in range.
constexpr double kLongest = 60.0;

std::int64_t whole(double seconds) {
    return static_cast<std::int64_t>(
        std::ceil(std::clamp(seconds, 1 / kPicoseconds, kLongest) * kPicoseconds));
}

} // namespace

PieceSimulator::PieceSimulator(const Network &network)
    : network_(network), uses_(network.operators), reader_(network.source.size()),
      option_(network.operators, -1), edge_(network.source.size()), left_(network.operators),
      demand_(network.cores + 1, Demand{network.copied, 1.0}) {
    for (const double seconds : network.alone) duration_.push_back(whole(seconds));
    find_gates();
    find_shares();
    find_places();
    for (std::size_t op : indices(network.operators))
        for (std::int64_t at : row_of(network.source_first, op)) {
            uses_[network.source[at]].push_back(at);
            reader_[at] = op;
        }
}

void PieceSimulator::find_gates() {
    gate_.resize(network_.operators);
    std::int64_t all = 0, used = 0;
    std::size_t freed = 0;
    for (std::size_t op : indices(network_.operators)) {
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
    for (std::size_t i : indices(duration_.size()))
        price[i % cores] += static_cast<double>(duration_[i]);
    double sum = 0.0;
    for (double &own : price) own = 1.0 / own, sum += own;
    share_.assign(network_.link.size(), kInfinite);
    for (std::size_t i : indices(duration_.size()))
        share_[i / cores] =
            std::min(share_[i / cores], static_cast<double>(duration_[i]) * price[i % cores] / sum);
    for (std::size_t own = 0; own + 1 < network_.piece_first.size(); ++own) {
        double work = 0.0, fetch = 0.0;
        for (std::int64_t i : row_of(network_.piece_first, own))
            work += share_[i], fetch += network_.fetch[i];
        work_.push_back(work * static_cast<double>(network_.mini_batches));
        fetch_.push_back(fetch * kPicoseconds);
    }
}

void PieceSimulator::find_places() {
    for (std::size_t op : indices(network_.operators)) {
        std::size_t most = 0;
        for (std::int64_t own : row_of(network_.option_first, op))
            most = std::max(most, tiles(own));
        first_.push_back(place_.size());
        most_tiles_.push_back(most);
        for (std::size_t batch : indices(network_.mini_batches))
            for (std::size_t tile : indices(most)) place_.push_back({op, batch, tile});
    }
    waits_.resize(place_.size());
    free_.clear(place_.size());
}

Outcome PieceSimulator::run(std::span<const std::int64_t> option, double limit) {
    begin(option);
    EventEngine engine(2, 2);
    double work = 0.0;
    bool late = false;
    const auto start = [&] {
        const double least = static_cast<double>(engine.now()) + std::max(rest_, to_fetch_);
        late = least / kPicoseconds > limit * (1.0 + kMargin);
        if (late) return engine.stop();
        fetch_next(engine);
        dispatch(engine);
    };
    const auto pass = [&](std::int64_t step) {
        work += static_cast<double>(step) * static_cast<double>(network_.cores - idle_);
    };
    const auto end = [&](const Running &run) {
        if (run.task == kFetch) return fetched();
        busy_[run.resource] = 0, ++idle_;
        finish(run.task);
    };
    engine.run(start, [] { return kNever; }, pass, end);
    const double ended = static_cast<double>(engine.now()) / kPicoseconds;
    return {late ? kInfinite : ended, work};
}

void PieceSimulator::begin(std::span<const std::int64_t> option) {
    changed_.assign(network_.operators, 0);
    for (std::size_t op : indices(network_.operators)) {
        const std::int64_t now = network_.option_first[op] + option[op];
        if (now == option_[op]) continue;
        option_[op] = now;
        changed_[op] = 1;
        for (const std::int64_t at : uses_[op]) changed_[reader_[at]] = 1;
    }
    pieces_ = 0;
    rest_ = to_fetch_ = 0.0;
    for (std::size_t op : indices(network_.operators)) {
        if (changed_[op]) set_up(op);
        left_[op] = tiles(option_[op]) * network_.mini_batches;
        pieces_ += static_cast<std::int64_t>(left_[op]);
        rest_ += work_[option_[op]], to_fetch_ += fetch_[option_[op]];
    }
    waiting_ = waits_;
    ready_ = free_;
    busy_.assign(network_.cores, 0);
    fetch_op_ = fetch_tile_ = 0;
    idle_ = network_.cores;
    fetching_ = false;
}

// Pieces wait for others and, from the first on that something is fetched for, for a fetch.
void PieceSimulator::set_up(std::size_t op) {
    const std::size_t number = network_.piece_first[option_[op]],
                      most = most_tiles_[op] * network_.mini_batches;
    const std::int64_t first = network_.source_first[op], last = network_.source_first[op + 1];
    for (std::int64_t at = first; at < last; ++at) edge_[at] = &edge(at);
    for (std::size_t i : indices(most)) free_.erase(first_[op] + i);
    std::int32_t fetch = 0;
    for (std::size_t tile = 0; tile < tiles(option_[op]); ++tile) {
        if (network_.fetch[number + tile] > 0.0) fetch = 1;
        std::int32_t waits = fetch;
        for (std::int64_t at = first; at < last; ++at) waits += edge_[at]->needs[tile];
        for (std::size_t batch : indices(network_.mini_batches)) {
            const std::size_t piece = piece_of(op, batch, tile);
            waits_[piece] = waits;
            if (waits == 0) free_.insert(piece);
        }
    }
}

// That of a reader and one of its sources as they are cut now.
const PieceSimulator::Edge &PieceSimulator::edge(std::int64_t at) {
    const std::int64_t option = option_[reader_[at]], source = option_[network_.source[at]];
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
    for (std::int64_t made : row_of(network_.piece_first, source)) {
        edge.first.push_back(static_cast<std::int32_t>(edge.reader.size()));
        for (std::int64_t piece = first; piece < last; ++piece) {
            const std::int64_t need =
                network_.need_first[piece] + at - network_.source_first[reader_[at]];
            if (!overlap(need, static_cast<std::size_t>(made))) continue;
            edge.reader.push_back(static_cast<std::int32_t>(piece - first));
            ++edge.needs[piece - first];
        }
    }
    edge.first.push_back(static_cast<std::int32_t>(edge.reader.size()));
    return edge;
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
    const std::int64_t option = option_[op];
    const double *fetch = &network_.fetch[network_.piece_first[option]];
    while (tile < tiles(option) && !(fetch[tile] > 0.0)) ++tile;
    return tile < tiles(option) ? tile : IndexSet::none;
}

void PieceSimulator::fetch_next(EventEngine &engine) {
    for (; !fetching_ && fetch_op_ < network_.operators; ++fetch_op_, fetch_tile_ = 0) {
        const std::size_t op = fetch_op_, tile = next_fetch(op, fetch_tile_);
        if (tile == IndexSet::none) continue;
        if (gate_[op] != op && left_[gate_[op]] > 0) return;
        const double seconds = network_.fetch[network_.piece_first[option_[op]] + tile];
        fetch_tile_ = tile, fetching_ = true;
        to_fetch_ -= seconds * kPicoseconds;
        demand_.back()[0] = std::min(network_.copied, kLongest / seconds);
        engine.add(kFetch, 0, whole(seconds), demand_.back().data());
        return;
    }
}

// The piece that something was fetched for, and those after it that read the same, need not wait
// for it any more.
void PieceSimulator::fetched() {
    const std::size_t op = fetch_op_, next = next_fetch(op, fetch_tile_ + 1);
    const std::size_t last = std::min(next, tiles(option_[op]));
    for (std::size_t tile = fetch_tile_; tile < last; ++tile)
        for (std::size_t batch : indices(network_.mini_batches)) enable(piece_of(op, batch, tile));
    fetching_ = false;
    ++fetch_tile_;
}

void PieceSimulator::dispatch(EventEngine &engine) {
    std::size_t piece = ready_.from(0);
    if (idle_ == 0 || piece == IndexSet::none) return;
    expected_.assign(network_.cores, 0.0);
    for (const Running &run : engine.running())
        if (run.task != kFetch) expected_[run.resource] += run.remaining / run.speed;
    // As in simulation/dispatch.cpp: looking at a few pieces a core bounds the work of an event.
    for (std::size_t looks = 4 * network_.cores; looks > 0 && idle_ > 0 && piece != IndexSet::none;
        --looks, piece = ready_.from(piece + 1)) {
        const std::int64_t *duration = &duration_[number_of(place_[piece]) * network_.cores];
        std::size_t core = 0;
        double end = expected_[0] + static_cast<double>(duration[0]);
        for (std::size_t c = 1; c < network_.cores; ++c) {
            const double other = expected_[c] + static_cast<double>(duration[c]);
            core = other < end ? c : core;
            end = std::min(end, other);
        }
        expected_[core] = end;
        if (busy_[core]) continue;
        ready_.erase(piece);
        start(engine, piece, core);
    }
}

void PieceSimulator::start(EventEngine &engine, std::size_t piece, std::size_t core) {
    const std::size_t number = number_of(place_[piece]);
    const std::int64_t duration = duration_[number * network_.cores + core];
    const double per_second = kPicoseconds / static_cast<double>(duration);
    busy_[core] = 1, --idle_;
    rest_ -= share_[number];
    demand_[core] = {std::min(network_.link[number], kLongest) * per_second,
        std::min(network_.stream[number], kLongest) * per_second};
    engine.add(static_cast<std::int64_t>(piece), static_cast<std::int32_t>(core), duration,
        demand_[core].data());
}

void PieceSimulator::finish(std::size_t piece) {
    const Place &place = place_[piece];
    --left_[place.op];
    for (const std::int64_t at : uses_[place.op]) {
        const Edge &edge = *edge_[at];
        const std::size_t base = piece_of(reader_[at], place.mini_batch, 0);
        for (std::int32_t i : row_of(edge.first, place.tile))
            enable(base + static_cast<std::size_t>(edge.reader[i]));
    }
}

} // namespace loadmaster::cutting
