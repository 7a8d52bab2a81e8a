#include "cutting/stacks.hpp"

#include "common/limits.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <tuple>

namespace loadmaster::cutting {

namespace {

constexpr std::int64_t longest = 8;  // operators in a stack; longer ones have too much halo to pay
constexpr std::size_t most_kept = 3; // results kept between two stacks; of more, the smallest
constexpr double less = 1 - 1e-9;    // share of a cost below which another is less

// A weight, or a halo between column tiles: the room that it takes to stay, and what crosses if it
// does, and if it does not.
struct Stay {
    double room, once, streamed;
    std::int64_t storage;
    // Most that crosses again for each byte of room comes first.
    auto rank() const {
        return std::tuple((once - streamed) / std::max(1.0, once > 0 ? once : room), -once);
    }
};

struct Stream {
    std::int64_t storage;
    double bytes;
};

struct Made {
    std::int64_t storage;
    std::vector<double> bytes; // of it that there are in each turn
};

// A stack in so many bands: what lies inside it in each turn, and what it reads and writes.
struct BandedStack {
    Stack stack;
    std::vector<double> inside;
    std::vector<Stream> streams;
    std::vector<Made> made;
    std::vector<Stay> stays; // by rank
    double pieces, seconds;
};

void add_stay(std::vector<Stay> &stays, Stay own) {
    const auto same = std::ranges::find(stays, own.storage, &Stay::storage);
    if (same != stays.end()) {
        own.once = std::max(own.once, same->once);
        own.streamed += same->streamed;
        stays.erase(same);
    }
    const auto before = [](const Stay &a, const Stay &b) { return a.rank() < b.rank(); };
    stays.insert(std::ranges::upper_bound(stays, own, before), own);
}

void add_stream(std::vector<Stream> &streams, std::int64_t storage, double bytes) {
    const auto same = std::ranges::find(streams, storage, &Stream::storage);
    if (same == streams.end())
        streams.push_back({storage, bytes});
    else
        same->bytes += bytes;
}

// Where a step's rows begin: where those of the step before end.
std::int64_t begin_of(const Ends &ends, std::size_t i) { return i == 0 ? 0 : ends[i - 1]; }

class Costs {
  public:
    Costs(const BandNetwork &network, const StackModel &model) : network(network), model(model) {
        for (int axis : indices(2)) {
            const WayCosts &ways = model.ways[axis];
            refill_first_[axis].assign(1, 0);
            for (std::size_t op : indices(network.operators))
                for (std::int64_t w = ways.first[op]; w < ways.first[op + 1]; ++w)
                    refill_first_[axis].push_back(refill_first_[axis].back() + reads(op));
        }
    }

    std::int64_t reads(std::size_t op) const {
        return network.read_first[op + 1] - network.read_first[op];
    }

    double padded(double bytes) const {
        const double unit = static_cast<double>(model.alignment);
        return std::ceil(bytes / unit) * unit;
    }

    // Times that a read crosses a port in one way to cut its operator.
    double refill(int axis, std::size_t op, std::int64_t way, std::int64_t read) const {
        return model.ways[axis].refill[refill_first_[axis][way] + read - network.read_first[op]];
    }

    // The way to cut an operator into so many bands, or -1; and seconds in as many as it can have.
    std::pair<std::int64_t, double> in_bands(int axis, std::size_t op, std::int64_t bands) const {
        const WayCosts &ways = model.ways[axis];
        double seconds = 0.0;
        for (std::int64_t w : row_of(ways.first, op)) {
            if (ways.channels[w] != 1 || ways.bands[w] > bands) break;
            seconds = ways.beside[w];
            if (ways.bands[w] == bands) return {w, seconds};
        }
        return {-1, seconds};
    }

    const BandNetwork &network;
    const StackModel &model;

  private:
    std::array<std::vector<std::int64_t>, 2> refill_first_;
};

// Times that an operator's bands together read the rows of a storage: what two bands need counts
// twice. An input comes in bands of its own, of which the next band of the reader takes its halo.
double times_read(
    const BandNetwork &network, const Axis &axis, BandNetwork::Use use, const Ends &ends) {
    const std::int64_t storage = network.read[use.read];
    std::int64_t needed = 0, begin = 0;
    for (const std::int64_t end : ends) {
        if (end > begin) needed += network.high(axis, use, end) - network.low(axis, use, begin);
        begin = end;
    }
    if (network.kind[storage] == input) needed = std::min(needed, axis.rows[storage]);
    return static_cast<double>(needed) / static_cast<double>(axis.rows[storage]);
}

// One operator in one way to cut it: each part of its channels in all bands before the next, so
// that its weights may stay.
BandedStack single(const Costs &costs, int axis, std::size_t op, std::int64_t way) {
    const auto &[network, model] = std::tie(costs.network, costs.model);
    const WayCosts &ways = model.ways[axis];
    const std::int64_t bands = ways.bands[way], channels = ways.channels[way];
    const bool whole = bands == 1 && channels == 1;
    const std::int64_t number = op;
    BandedStack found{{number, number + 1, bands, axis, channels, 1}, {0.0}, {}, {}, {}, 0.0, 0.0};
    const Ends ends = bands > 1
        ? network.ends_of(network.axes[axis], op, op + 1, bands, steps_of(bands), {})
        : Ends{};
    for (std::int64_t k : row_of(network.read_first, op)) {
        const std::int64_t storage = network.read[k], own = model.by_channel[k] != 0 ? channels : 1;
        const auto bytes = static_cast<double>(network.read_bytes[k]);
        double moved = bytes * costs.refill(axis, op, way, k);
        if (network.kind[storage] == weight) {
            moved *= whole ? model.plain_times[k] : static_cast<double>(bands * channels / own);
            // While the last pieces of a part run, the first of the next ones do.
            const std::int64_t at_once = std::min(own, 1 + (model.cores - 2 + bands) / bands);
            add_stay(found.stays,
                {costs.padded(bytes / static_cast<double>(own)) * static_cast<double>(at_once),
                    bytes, moved, storage});
            continue;
        }
        if (whole) moved *= model.plain_times[k];
        if (bands > 1)
            moved *=
                times_read(network, network.axes[axis], {op, static_cast<std::size_t>(k)}, ends);
        add_stream(found.streams, storage, moved * static_cast<double>(channels / own));
    }
    for (std::int64_t k : row_of(network.write_first, op))
        found.made.push_back(
            {network.write[k], {static_cast<double>(network.bytes[network.write[k]])}});
    const std::int64_t pieces = whole ? model.plain_pieces[op] : bands * channels;
    // Pieces for the cores end together, so that all of these have work.
    found.seconds = whole && pieces > 1 ? costs.in_bands(axis, op, 1).second : ways.alone[way];
    found.pieces = static_cast<double>(pieces) * model.bytes_of_piece;
    return found;
}

// Stacks that end with one operator, in so many bands, and column tiles across them. A turn has a
// step for each operator; an operator that is put in front adds what it reads and writes and
// changes nothing else. All column tiles take as much as the widest; a halo between them stays or
// goes out and comes back.
class Bands {
  public:
    Bands(const Costs &costs, int axis, std::size_t last, std::int64_t bands,
        std::int64_t column_tiles)
        : costs_(costs), network_(costs.network), model_(costs.model), axis_(axis), last_(last),
          turns_(steps_of(bands) + (model_.pipelined ? longest : 0)),
          change_(turns_ * longest + 1, 0),
          found_{{0, static_cast<std::int64_t>(last), bands, axis, 1, column_tiles},
              std::vector<double>(turns_), {}, {}, {}, 0.0, 0.0} {}

    // Puts an operator in front; false once what lies inside exceeds the room.
    bool add(std::size_t op, std::int64_t room) {
        const Axis &along = network_.axes[axis_], &across = network_.axes[1 - axis_];
        const std::int64_t bands = found_.stack.bands, column_tiles = found_.stack.column_tiles;
        found_.stack.first = op;
        ends_.push_back(network_.ends_of(along, op, last_, bands, steps_of(bands), ends_));
        const Ends &ends = ends_.back();
        std::int64_t busy = 0;
        for (std::size_t i : indices(ends.size())) busy += ends[i] > begin_of(ends, i);
        std::int64_t pieces = busy, widest = 1, widest_halo = 0, halos = 0;
        if (column_tiles > 1) {
            across_.push_back(
                network_.ends_of(across, op, last_, column_tiles, column_tiles, across_));
            const Ends own = network_.own_of(across, op, last_, across_), &stop = across_.back();
            std::int64_t each = 0;
            for (std::size_t i : indices(own.size())) {
                const std::int64_t begin = begin_of(stop, i);
                each += (own[i] > begin) + (stop[i] > own[i]);
                widest = std::max(widest, stop[i] - begin);
                widest_halo = std::max(widest_halo, stop[i] - own[i]);
                halos += stop[i] - own[i];
            }
            pieces *= each;
        }
        found_.pieces += static_cast<double>(pieces) * model_.bytes_of_piece;
        const auto [way, seconds] = costs_.in_bands(axis_, op, bands);
        found_.seconds += seconds;
        for (std::int64_t k : row_of(network_.write_first, op)) {
            const std::int64_t storage = network_.write[k];
            std::erase_if(found_.streams, [&](const Stream &s) { return s.storage == storage; });
            if (network_.leaves(storage, last_)) {
                keep(op, storage);
                continue;
            }
            std::int64_t size = network_.bytes[storage];
            if (column_tiles > 1) {
                const std::int64_t extent = across_.back().back();
                const auto share = static_cast<double>(size) / static_cast<double>(extent);
                if (widest_halo > 0)
                    add_stay(found_.stays,
                        {costs_.padded(share * static_cast<double>(widest_halo)), 0.0,
                            2 * share * static_cast<double>(halos), storage});
                size = (size * widest + extent - 1) / extent;
            }
            hold(op, storage, size);
        }
        for (std::int64_t k : row_of(network_.read_first, op)) {
            const std::int64_t storage = network_.read[k];
            const BandNetwork::Use use{op, static_cast<std::size_t>(k)};
            const auto bytes = static_cast<double>(network_.read_bytes[k]);
            const double moved = bytes * (way < 0 ? 1.0 : costs_.refill(axis_, op, way, k));
            if (network_.kind[storage] == weight) {
                add_stay(found_.stays,
                    {costs_.padded(bytes), bytes, moved * static_cast<double>(busy * column_tiles),
                        storage});
                continue;
            }
            double times = times_read(network_, along, use, ends);
            if (column_tiles > 1) {
                std::int64_t needed = 0, begin = 0;
                for (const std::int64_t end : across_.back()) {
                    needed += network_.high(across, use, end) - network_.low(across, use, begin);
                    begin = end;
                }
                times *= static_cast<double>(needed) / static_cast<double>(across.rows[storage]);
            }
            add_stream(found_.streams, storage, moved * times);
        }
        std::int64_t inside = 0, most = 0;
        for (std::int64_t turn : indices(turns_)) {
            std::int64_t highest = 0;
            for (std::int64_t step = turn * longest; step < (turn + 1) * longest; ++step) {
                inside += change_[step];
                highest = std::max(highest, inside);
            }
            found_.inside[turn] = static_cast<double>(highest);
            most = std::max(most, highest);
        }
        return most <= room;
    }

    const BandedStack &stack() const { return found_; }

  private:
    // Operators by their distance from the end; in a pipelined stack one starts a turn later than
    // the one before it.
    std::int64_t place(std::size_t op) const {
        return static_cast<std::int64_t>(op) - static_cast<std::int64_t>(last_) + longest;
    }
    std::int64_t behind(std::size_t op) const { return model_.pipelined ? place(op) : 0; }
    std::int64_t step(std::int64_t band, std::size_t op) const {
        return (band + behind(op)) * longest + place(op);
    }

    // What there is in each turn of a result that is needed behind the stack. Of one in column
    // tiles all but the one at work may lie there.
    void keep(std::size_t op, std::int64_t storage) {
        const Ends &ends = ends_.back();
        const auto size = static_cast<double>(network_.bytes[storage]);
        std::vector<double> there(turns_, size);
        if (found_.stack.column_tiles == 1)
            for (std::int64_t turn : indices(turns_)) {
                const std::int64_t band =
                    std::clamp<std::int64_t>(turn - behind(op), 0, std::ssize(ends) - 1);
                there[turn] *= static_cast<double>(ends[band]) / static_cast<double>(ends.back());
            }
        found_.made.push_back({storage, std::move(there)});
    }

    // What lies inside the stack of a result that is not: each band of it from when it is made to
    // the last band of a reader that needs it.
    void hold(std::size_t op, std::int64_t storage, std::int64_t size) {
        const Axis &along = network_.axes[axis_];
        const Ends &ends = ends_.back();
        const std::int64_t unit = model_.alignment, whole = along.extent[op] * unit;
        std::vector<std::int64_t> until(ends.size());
        for (std::size_t i : indices(ends.size()))
            until[i] = step(static_cast<std::int64_t>(i), op);
        for (const BandNetwork::Use use : network_.uses[storage]) {
            const Ends &theirs = ends_[last_ - 1 - use.op];
            std::int64_t band = -1, next = 0, begins = 0, reaches = 0; // the last busy band so far
            for (std::size_t i : indices(ends.size())) {
                // Bands whose rows begin before this one ends may need it.
                for (; next < std::ssize(theirs); ++next) {
                    const std::int64_t from = begin_of(theirs, next);
                    if (theirs[next] == from) continue;
                    begins = network_.low(along, use, from);
                    if (begins >= ends[i]) break;
                    band = next;
                    reaches = network_.high(along, use, theirs[next]);
                }
                if (band >= 0 && begin_of(ends, i) < reaches)
                    until[i] = std::max(until[i], step(band, use.op));
            }
        }
        for (std::size_t i : indices(ends.size())) {
            const std::int64_t rows = ends[i] - begin_of(ends, i);
            const std::int64_t share = (size * rows + whole - 1) / whole * unit;
            change_[step(static_cast<std::int64_t>(i), op)] += share;
            change_[until[i] + 1] -= share;
        }
    }

    const Costs &costs_;
    const BandNetwork &network_;
    const StackModel &model_;
    int axis_;
    std::size_t last_;
    std::int64_t turns_;
    std::vector<std::int64_t> change_; // of what lies inside, at each step
    std::vector<Ends> ends_, across_;  // of each operator, the last first
    BandedStack found_;
};

// What may be kept between two operators: sets of these are bit masks.
using Keepable = std::vector<std::int64_t>;

// The least cost of stacks that cover the operators up to each, by the set that is kept behind it.
class Cover {
  public:
    Cover(const BandNetwork &network, const StackModel &model, std::int64_t room,
        const std::vector<Keepable> &keepable)
        : network_(network), model_(model), room_(room), keepable_(keepable) {
        for (const Keepable &own : keepable) states_.emplace_back(std::size_t{1} << own.size());
        states_[0][0].cost = 0.0;
    }

    // Of both sides of the stack what does not depend on the other is summed once.
    void extend(const BandedStack &own) {
        const auto first = static_cast<std::size_t>(own.stack.first);
        const auto last = static_cast<std::size_t>(own.stack.last);
        const double work = model_.price * own.seconds, least = own.pieces + work;
        const double cheapest = std::ranges::min(states_[first], {}, &State::cost).cost;
        std::array<Behind, std::size_t{1} << most_kept> behind;
        for (std::size_t after : indices(states_[last].size()))
            if (least < (states_[last][after].cost - cheapest) * less)
                behind[after] = behind_of(own, after);
        for (std::size_t before : indices(states_[first].size())) {
            const State &start = states_[first][before];
            if (start.cost == kInfinite) continue;
            const Before front = before_of(own, before);
            for (std::size_t after : indices(states_[last].size())) {
                const Behind &back = behind[after];
                const double left = back.left - front.held;
                if (left < 0 || (back.carried & ~front.there) != 0) continue;
                State &state = states_[last][after];
                const double below = (state.cost - start.cost) * less;
                double cost = least + front.moved + back.moved;
                for (std::size_t i : indices(keepable_[last].size()))
                    if ((front.unwritten & ~after) >> i & 1) cost += bytes(keepable_[last][i]);
                if (cost >= below) continue;
                cost += stays(own, left);
                if (cost < below)
                    state = {start.cost + cost, cost - work, own.seconds, own.stack, before};
            }
        }
    }

    StackChoice best() const {
        StackChoice found{{}, states_.back()[0].cost, 0.0, 0.0};
        const State *at = &states_.back()[0];
        while (at != &states_[0][0]) {
            found.stacks.push_back(at->stack);
            found.bytes += at->bytes;
            found.seconds += at->seconds;
            at = &states_[at->stack.first][at->before];
        }
        std::ranges::reverse(found.stacks);
        return found;
    }

  private:
    struct State {
        double cost = kInfinite, bytes = 0.0, seconds = 0.0;
        Stack stack{};
        std::size_t before = 0; // what is kept in front of the stack
    };

    // In front of a stack: bytes kept, and bytes that cross because others are not. Of what may be
    // kept behind it: which are there, and which were never written and are needed later.
    struct Before {
        double held = 0.0, moved = 0.0;
        std::size_t there = 0, unwritten = 0;
    };

    // Behind a stack: the room left beside the stack and what it makes and is kept (negative:
    // none), bytes written, and what must have been kept in front.
    struct Behind {
        double left = -1.0, moved = 0.0;
        std::size_t carried = 0;
    };

    double bytes(std::int64_t storage) const {
        return static_cast<double>(network_.bytes[storage]);
    }

    static bool among(const Keepable &able, std::size_t set, std::int64_t storage) {
        for (std::size_t i : indices(able.size()))
            if (able[i] == storage) return (set >> i & 1) != 0;
        return false;
    }

    Before before_of(const BandedStack &own, std::size_t set) const {
        const Keepable &earlier = keepable_[own.stack.first], &later = keepable_[own.stack.last];
        Before found;
        for (std::size_t i : indices(earlier.size())) {
            if ((set >> i & 1) == 0) continue;
            const std::int64_t storage = earlier[i];
            // How soon parts of it are done with depends on how it was cut: it counts to the end.
            found.held += bytes(storage);
            const auto at = std::ranges::find(later, storage);
            const std::size_t bit = at == later.end() ? 0 : std::size_t{1} << (at - later.begin());
            found.there |= bit;
            // What was not written when it was made, and is needed but not kept, is written now.
            if (network_.output[storage] != 0 || !network_.leaves(storage, own.stack.last))
                continue;
            found.unwritten |= bit;
            if (bit == 0) found.moved += bytes(storage);
        }
        for (const Stream &stream : own.streams)
            if (!among(earlier, set, stream.storage)) found.moved += stream.bytes;
        return found;
    }

    Behind behind_of(const BandedStack &own, std::size_t set) const {
        const Keepable &later = keepable_[own.stack.last];
        Behind found;
        double kept = 0.0;
        for (std::size_t i : indices(later.size()))
            if ((set >> i & 1) != 0) {
                kept += bytes(later[i]);
                if (network_.home[later[i]] < own.stack.first) found.carried |= std::size_t{1} << i;
            }
        std::array<const Made *, most_kept> staying{};
        std::size_t count = 0;
        for (const Made &made : own.made) {
            const bool stays = among(later, set, made.storage);
            if (stays) staying[count++] = &made;
            if (network_.leaves(made.storage, own.stack.last) &&
                (!stays || network_.output[made.storage] != 0))
                found.moved += bytes(made.storage);
        }
        double most = 0.0;
        for (std::size_t turn : indices(own.inside.size())) {
            double now = own.inside[turn];
            for (std::size_t i : indices(count)) now += staying[i]->bytes[turn];
            most = std::max(most, now);
        }
        const auto room = static_cast<double>(room_);
        if (kept <= room) found.left = room - most;
        return found;
    }

    // Bytes of weights and halos that cross, of which some stay in the room that is left.
    static double stays(const BandedStack &own, double left) {
        double moved = 0.0;
        for (const Stay &stay : own.stays) {
            const bool stays = stay.room <= left && stay.streamed > stay.once;
            if (stays) left -= stay.room;
            moved += stays ? stay.once : stay.streamed;
        }
        return moved;
    }

    const BandNetwork &network_;
    const StackModel &model_;
    std::int64_t room_;
    const std::vector<Keepable> &keepable_;
    std::vector<std::vector<State>> states_; // by operator, then set
};

std::vector<Keepable> what_may_be_kept(const BandNetwork &network, std::int64_t room) {
    std::vector<Keepable> found(network.operators + 1);
    for (std::size_t storage : indices(network.bytes.size()))
        if (network.home[storage] >= 0 && network.bytes[storage] <= room &&
            !network.uses[storage].empty())
            for (std::size_t place = network.home[storage] + 1;
                place <= network.uses[storage].back().op; ++place)
                found[place].push_back(storage);
    for (Keepable &own : found) {
        std::ranges::stable_sort(own, {}, [&](std::int64_t s) { return network.bytes[s]; });
        own.resize(std::min(own.size(), most_kept));
    }
    return found;
}

} // namespace

std::vector<StackChoice> best_stacks(const BandNetwork &network, const StackModel &model,
    std::span<const std::int64_t> rooms, std::span<const std::int64_t> column_tiles) {
    const std::int64_t most = *std::ranges::max_element(rooms);
    const std::vector<Keepable> keepable = what_may_be_kept(network, most);
    const Costs costs(network, model);
    std::vector<Cover> covers;
    for (const std::int64_t room : rooms) covers.emplace_back(network, model, room, keepable);
    const auto extend = [&](const BandedStack &stack) {
        for (Cover &cover : covers) cover.extend(stack);
    };
    // All stacks of several operators in so many bands and column tiles that end with one operator.
    const auto end_with = [&](std::size_t last, int axis, std::int64_t bands, std::int64_t across) {
        Bands found(costs, axis, last, bands, across);
        for (std::size_t op = last; op-- > 0 && last - op <= longest;) {
            if (network.axes[axis].extent[op] == 0) return;
            if (across > 1 && network.axes[1 - axis].extent[op] < across) return;
            if (!found.add(op, most)) return;
            if (op + 1 < last) extend(found.stack());
        }
    };
    for (std::size_t last = 1; last <= network.operators; ++last) {
        const std::size_t op = last - 1;
        bool weights = false;
        for (std::int64_t k : row_of(network.read_first, op))
            weights |= network.kind[network.read[k]] == weight && network.read_bytes[k] > 0;
        for (int axis : indices(2)) {
            const WayCosts &ways = model.ways[axis];
            for (std::int64_t w : row_of(ways.first, op)) {
                if ((axis == 1 && ways.bands[w] == 1) || (ways.channels[w] > 1 && !weights))
                    continue;
                extend(single(costs, axis, op, w));
                if (ways.channels[w] > 1 || ways.bands[w] == 1) continue;
                end_with(last, axis, ways.bands[w], 1);
            }
        }
        for (int axis : indices(2))
            for (const std::int64_t across : column_tiles)
                for (std::int64_t w = model.ways[axis].first[op];
                    w < model.ways[axis].first[op + 1]; ++w)
                    if (model.ways[axis].channels[w] == 1 && model.ways[axis].bands[w] > 1)
                        end_with(last, axis, model.ways[axis].bands[w], across);
    }
    std::vector<StackChoice> found;
    for (const Cover &cover : covers) found.push_back(cover.best());
    return found;
}

} // namespace loadmaster::cutting
