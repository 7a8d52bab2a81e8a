#include "cutting/piece_simulator.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace loadmaster::cutting {

namespace {

constexpr double slight = 1e-9; // what of a link's time is none
constexpr double margin = 1e-6; // share by which a run may seem to end later than it does
constexpr double rounding =
    1e-9; // share of a step by which what ends at once may seem to end later

} // namespace

PieceSimulator::PieceSimulator(const Network &network)
    : network_(network), uses_(network.operators), reader_(network.source.size()),
      edge_(network.source.size(), nullptr), edge_key_(network.source.size(), 0) {
    find_gates();
    find_shares();
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

Outcome PieceSimulator::run(std::span<const std::int64_t> option, const Limits &limits) {
    set_up(option);
    const double last = limits.end * (1.0 + margin);
    while (true) {
        if (now_ + std::max(rest_, to_fetch_) > last)
            return {std::numeric_limits<double>::infinity(), work_};
        fetch_next();
        dispatch();
        if (running_.empty()) return {now_, work_};
        advance();
        for (const std::int64_t piece : ended_) {
            if (piece < 0)
                fetched();
            else
                finish(static_cast<std::size_t>(piece));
        }
        if (falls_behind(limits)) return {std::numeric_limits<double>::infinity(), work_};
    }
}

bool PieceSimulator::falls_behind(const Limits &limits) {
    const std::size_t before = begun_;
    while (begun_ < network_.operators && left_[begun_] == 0) passed_[begun_++] = now_;
    return begun_ > before && begun_ > limits.from && !limits.passed.empty() &&
        now_ > limits.passed[begun_ - 1] + limits.most;
}

// Lets time pass until something ends. As in simulation/event_engine.hpp, what uses a link of which
// more is demanded than it has goes so much slower.
void PieceSimulator::advance() {
    double near = 0.0, main = 0.0, step = std::numeric_limits<double>::infinity();
    for (const Running &run : running_) near += run.near, main += run.main;
    near = std::max(1.0, near), main = std::max(1.0, main);
    for (Running &run : running_) {
        run.slowness = std::max(run.near > 0.0 ? near : 1.0, run.main > 0.0 ? main : 1.0);
        step = std::min(step, run.left * run.slowness);
    }
    now_ += step;
    ended_.clear();
    std::size_t kept = 0;
    double work = work_;
    for (const Running &run : running_) {
        if (run.piece >= 0) work += step;
        const double left = run.left - step / run.slowness;
        if (left <= rounding * step) {
            ended_.push_back(run.piece);
        } else {
            running_[kept] = run;
            running_[kept++].left = left;
        }
    }
    work_ = work;
    running_.resize(kept);
}

void PieceSimulator::set_up(std::span<const std::int64_t> option) {
    const std::size_t operators = network_.operators;
    option_.resize(operators), first_.resize(operators), left_.resize(operators);
    place_.clear(), waiting_.clear(), fetches_.clear(), running_.clear();
    fetched_ = 0, idle_ = network_.cores, begun_ = 0, started_ = 0, fetching_ = false;
    passed_.resize(operators);
    now_ = work_ = 0.0;
    busy_.assign(network_.cores, 0);
    for (std::size_t op = 0; op < operators; ++op) {
        option_[op] = network_.option_first[op] + option[op];
        set_up(op);
    }
    core_.assign(place_.size(), -1);
    rest_ = to_fetch_ = 0.0;
    for (const std::size_t piece : fetches_) to_fetch_ += network_.fetch[place_[piece].number];
    for (const Place &place : place_) rest_ += share_[place.number];
    ready_.clear(place_.size());
    for (std::size_t piece = 0; piece < place_.size(); ++piece) enable(piece);
}

void PieceSimulator::set_up(std::size_t op) {
    const std::size_t count = tiles(op),
                      number = static_cast<std::size_t>(network_.piece_first[option_[op]]);
    first_[op] = place_.size();
    left_[op] = count * network_.mini_batches;
    for (std::int64_t at = network_.source_first[op]; at < network_.source_first[op + 1]; ++at)
        find_edge(op, at);
    for (std::size_t batch = 0; batch < network_.mini_batches; ++batch) {
        bool waits = false;
        for (std::size_t tile = 0; tile < count; ++tile) {
            const bool fetches = network_.fetch[number + tile] > 0.0;
            if (fetches && batch == 0) fetches_.push_back(place_.size());
            waits |= fetches;
            std::int32_t waiting = 1 + waits;
            for (std::int64_t at = network_.source_first[op]; at < network_.source_first[op + 1];
                ++at)
                waiting += edge_[at]->needs[tile];
            place_.push_back({op, batch, number + tile});
            waiting_.push_back(waiting);
        }
    }
}

std::size_t PieceSimulator::tiles(std::size_t op) const {
    return static_cast<std::size_t>(
        network_.piece_first[option_[op] + 1] - network_.piece_first[option_[op]]);
}

// Most operators have the options of the run before.
void PieceSimulator::find_edge(std::size_t op, std::int64_t at) {
    const std::uint64_t options = network_.piece_first.size();
    const std::uint64_t key = (static_cast<std::uint64_t>(at) * options + option_[op]) * options +
        option_[network_.source[at]];
    if (edge_[at] != nullptr && edge_key_[at] == key) return;
    const auto [found, is_new] = edges_.try_emplace(key);
    if (is_new) found->second = made_edge(op, at);
    edge_[at] = &found->second, edge_key_[at] = key;
}

PieceSimulator::Edge PieceSimulator::made_edge(std::size_t op, std::int64_t at) const {
    const std::int64_t first = network_.piece_first[option_[op]],
                       last = network_.piece_first[option_[op] + 1];
    const std::int64_t source = option_[network_.source[at]];
    Edge edge;
    edge.needs.assign(last - first, 0);
    for (std::int64_t made = network_.piece_first[source]; made < network_.piece_first[source + 1];
        ++made) {
        edge.first.push_back(static_cast<std::int32_t>(edge.reader.size()));
        for (std::int64_t piece = first; piece < last; ++piece) {
            const std::int64_t need = network_.need_first[piece] + at - network_.source_first[op];
            if (!overlap(static_cast<std::size_t>(need), static_cast<std::size_t>(made))) continue;
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

void PieceSimulator::fetch_next() {
    if (fetching_ || fetched_ == fetches_.size()) return;
    const Place &place = place_[fetches_[fetched_]];
    if (gate_[place.op] != place.op && left_[gate_[place.op]] > 0) return;
    fetching_ = true;
    to_fetch_ -= network_.fetch[place.number];
    running_.push_back({-1, network_.fetch[place.number], network_.copied, 1.0, 1.0});
}

// The piece that something was fetched for, and those after it that read the same, need not wait
// for it any more.
void PieceSimulator::fetched() {
    fetching_ = false;
    const std::size_t piece = fetches_[fetched_++], op = place_[piece].op, count = tiles(op);
    for (std::size_t tile = piece - first_[op]; tile < count; ++tile) {
        if (first_[op] + tile != piece && network_.fetch[place_[first_[op] + tile].number] > 0.0)
            break;
        for (std::size_t batch = 0; batch < network_.mini_batches; ++batch)
            enable(piece_of(op, batch, tile));
    }
}

void PieceSimulator::dispatch() {
    std::size_t piece = ready_.from(0);
    if (idle_ == 0 || piece == IndexSet::none) return;
    expected_.assign(network_.cores, now_);
    for (const Running &run : running_)
        if (run.piece >= 0) expected_[core_[run.piece]] += run.left * run.slowness;
    // As in simulation/dispatch.cpp: looking at a few pieces a core bounds the work of an event.
    for (std::size_t looks = 4 * network_.cores; looks > 0 && idle_ > 0 && piece != IndexSet::none;
        --looks, piece = ready_.from(piece + 1)) {
        const double *alone = &network_.alone[place_[piece].number * network_.cores];
        std::size_t core = 0;
        double end = expected_[0] + alone[0];
        for (std::size_t c = 1; c < network_.cores; ++c) {
            const double other = expected_[c] + alone[c];
            core = other < end ? c : core;
            end = std::min(end, other);
        }
        expected_[core] = end;
        if (busy_[core]) continue;
        ready_.erase(piece);
        start(piece, core);
    }
}

void PieceSimulator::start(std::size_t piece, std::size_t core) {
    const std::size_t number = place_[piece].number;
    const double alone = network_.alone[number * network_.cores + core];
    const double per_second = alone > 0.0 ? 1.0 / alone : 0.0;
    core_[piece] = static_cast<std::int32_t>(core);
    busy_[core] = 1, --idle_, ++started_;
    rest_ -= share_[number];
    running_.push_back({static_cast<std::int64_t>(piece), alone, network_.link[number] * per_second,
        network_.stream[number] * per_second, 1.0});
}

void PieceSimulator::finish(std::size_t piece) {
    const Place &place = place_[piece];
    const std::size_t tile = piece - piece_of(place.op, place.mini_batch, 0);
    busy_[core_[piece]] = 0, ++idle_, --left_[place.op];
    for (const std::int64_t at : uses_[place.op])
        for (std::int32_t i = edge_[at]->first[tile]; i < edge_[at]->first[tile + 1]; ++i)
            enable(piece_of(
                reader_[at], place.mini_batch, static_cast<std::size_t>(edge_[at]->reader[i])));
}

void PieceSimulator::enable(std::size_t piece) {
    if (--waiting_[piece] == 0) ready_.insert(piece);
}

} // namespace loadmaster::cutting
