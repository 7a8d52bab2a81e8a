#include "allocation/model.hpp"

#include <algorithm>
#include <map>
#include <numeric>

namespace loadmaster::allocation {

namespace {

struct Event {
    std::int64_t when;
    bool starts;
    std::int64_t bytes;
};

// Ends before starts at the same instant.
std::vector<Event> events_of(const Buffers &buffers) {
    std::vector<Event> events;
    for (std::int64_t s : indices(std::ssize(buffers.begin)))
        if (buffers.occupies(s)) {
            const std::int64_t bytes = buffers.high[s] - buffers.low[s];
            events.push_back({buffers.begin[s], true, bytes});
            events.push_back({buffers.end[s], false, bytes});
        }
    std::ranges::sort(
        events, {}, [](const Event &event) { return std::pair(event.when, event.starts); });
    return events;
}

// First instants of the slots that are kept. A slot at whose start nothing starts is part of the
// one before, a slot at whose end nothing ends is part of the one after.
std::vector<std::int64_t> slot_starts(const Buffers &buffers) {
    const std::vector<Event> events = events_of(buffers);
    std::vector<std::int64_t> kept;
    bool started = false;
    std::int64_t since = 0, live = 0;
    for (std::size_t i = 0; i < events.size();) {
        const std::int64_t now = events[i].when;
        bool ends = false, starts = false;
        const bool anyone = live > 0;
        for (; i < events.size() && events[i].when == now; ++i) {
            (events[i].starts ? starts : ends) = true;
            live += events[i].starts ? 1 : -1;
        }
        if (anyone && started && ends) kept.push_back(since);
        since = now;
        started = starts;
    }
    return kept;
}

void add_slots(const Buffers &buffers, const std::vector<std::int64_t> &starts, Model &model) {
    const auto slot_of = [&](std::int64_t when) {
        return static_cast<std::int32_t>(std::ranges::lower_bound(starts, when) - starts.begin());
    };
    model.slots = static_cast<std::int32_t>(starts.size());
    model.first.push_back(0);
    for (std::int64_t b : model.buffer) {
        double length = 0;
        for (std::int64_t s : buffers.occupied(b)) {
            length += static_cast<double>(buffers.end[s]) - static_cast<double>(buffers.begin[s]);
            const Span span{slot_of(buffers.begin[s]), slot_of(buffers.end[s]),
                buffers.low[s] / model.unit, buffers.high[s] / model.unit};
            model.windows |= span.low != 0 || buffers.high[s] != buffers.size[b];
            model.orderly &= span.low == 0;
            model.spans.push_back(span);
        }
        const auto mine = model.spans.begin() + model.first.back();
        std::ranges::sort(mine, model.spans.end(), {}, &Span::begin);
        model.hull_begin.push_back(mine->begin);
        model.hull_end.push_back(model.spans.back().end);
        model.length.push_back(length);
        model.first.push_back(static_cast<std::int32_t>(model.spans.size()));
    }
}

void list_slots(Model &model) {
    std::vector<std::int32_t> counts(model.slots + 1, 0);
    for (const Span &span : model.spans)
        for (std::int32_t s = span.begin; s < span.end; ++s) ++counts[s + 1];
    add_up(counts);
    model.slot_first = counts;
    model.slot_buffer.resize(counts.back());
    model.slot_low.resize(counts.back());
    std::vector<std::int64_t> load(model.slots, 0);
    for (std::int32_t b : indices(model.count))
        for (const Span &span : model.spans_of(b))
            for (std::int32_t s = span.begin; s < span.end; ++s) {
                model.slot_buffer[counts[s]] = b;
                model.slot_low[counts[s]++] = span.low;
                load[s] += span.high - span.low;
            }
    for (std::int32_t b : indices(model.count)) {
        std::int64_t most = 0;
        for (const Span &span : model.spans_of(b))
            for (std::int32_t s = span.begin; s < span.end; ++s) most = std::max(most, load[s]);
        model.contention.push_back(most);
        model.load =
            std::max({model.load, most, model.size[b] + std::max<std::int64_t>(model.pin[b], 0)});
        model.total += model.size[b] + model.alignment[b] - 1;
    }
    for (std::int32_t b : indices(model.count))
        if (model.pin[b] >= 0) model.total = std::max(model.total, model.pin[b]) + model.size[b];
}

bool list_neighbours(Model &model, std::int64_t limit) {
    std::vector<std::int32_t> seen(model.count, -1);
    std::vector<std::int64_t> rise(model.count, 0);
    std::vector<std::int32_t> found;
    std::int64_t looks = 0;
    model.near_first.push_back(0);
    for (std::int32_t b : indices(model.count)) {
        found.clear();
        if (looks > 8 * limit) return false;
        for (const Span &span : model.spans_of(b))
            for (std::int32_t s = span.begin; s < span.end; ++s)
                for (std::int32_t k : row_of(model.slot_first, s)) {
                    const std::int32_t other = model.slot_buffer[k];
                    ++looks;
                    if (other == b) continue;
                    const std::int64_t up = span.high - model.slot_low[k];
                    if (seen[other] != b) {
                        seen[other] = b;
                        rise[other] = up;
                        found.push_back(other);
                    } else {
                        rise[other] = std::max(rise[other], up);
                    }
                }
        if (static_cast<std::int64_t>(model.neighbour.size() + found.size()) > limit) return false;
        for (std::int32_t other : found) {
            model.neighbour.push_back(other);
            model.rise.push_back(rise[other]);
        }
        model.near_first.push_back(std::ssize(model.neighbour));
    }
    return true;
}

void link_identical(Model &model) {
    std::map<std::vector<std::int64_t>, std::int32_t> last;
    for (std::int32_t b : indices(model.count)) {
        if (model.pin[b] >= 0) continue;
        std::vector<std::int64_t> key{model.size[b], model.alignment[b]};
        for (const Span &span : model.spans_of(b)) {
            key.insert(key.end(), {span.begin, span.end, span.low, span.high});
        }
        const auto [at, fresh] = last.try_emplace(std::move(key), b);
        if (!fresh) {
            model.previous_identical[b] = at->second;
            at->second = b;
        }
    }
}

} // namespace

Load load_bound(const Buffers &buffers) {
    Load best;
    std::int64_t live = 0;
    for (const Event &event : events_of(buffers)) {
        live += event.starts ? event.bytes : -event.bytes;
        if (live > best.bytes) best = {live, event.when};
    }
    return best;
}

std::int64_t common_unit(const Buffers &buffers) {
    std::int64_t unit = 0;
    for (std::int64_t b : indices(buffers.count())) {
        if (!buffers.matters(b)) continue;
        unit = std::gcd(unit, buffers.size[b]);
        if (buffers.pin[b] > 0) unit = std::gcd(unit, buffers.pin[b]);
        for (std::int64_t s : buffers.occupied(b))
            unit = std::gcd(std::gcd(unit, buffers.low[s]), buffers.high[s]);
    }
    if (unit == 0) return 1;
    // An alignment that divides the unit asks for nothing; others must be whole units, too.
    for (bool changed = true; changed;) {
        changed = false;
        for (std::int64_t b : indices(buffers.count())) {
            const std::int64_t alignment = buffers.alignment[b];
            if (!buffers.matters(b) || buffers.pin[b] >= 0 || unit % alignment == 0 ||
                alignment % unit == 0)
                continue;
            unit = std::gcd(unit, alignment);
            changed = true;
        }
    }
    return unit;
}

Model make_model(const Buffers &buffers, std::int64_t pairs_limit) {
    Model model;
    model.unit = common_unit(buffers);
    for (std::int64_t b : indices(buffers.count()))
        if (buffers.matters(b)) model.buffer.push_back(b);
    model.count = static_cast<std::int32_t>(model.buffer.size());
    for (std::int64_t b : model.buffer) {
        const bool pinned = buffers.pin[b] >= 0;
        model.size.push_back(buffers.size[b] / model.unit);
        model.alignment.push_back(pinned || model.unit % buffers.alignment[b] == 0
                ? 1
                : buffers.alignment[b] / model.unit);
        model.pin.push_back(pinned ? buffers.pin[b] / model.unit : -1);
    }
    add_slots(buffers, slot_starts(buffers), model);
    std::int64_t cells = 0;
    for (const Span &span : model.spans) cells += span.end - span.begin;
    if (cells > pairs_limit) {
        model.count = -1;
        return model;
    }
    list_slots(model);
    model.previous_identical.assign(model.count, -1);
    link_identical(model);
    if (!list_neighbours(model, pairs_limit)) model.count = -1;
    return model;
}

} // namespace loadmaster::allocation
