#include "allocation/bounds.hpp"

#include "allocation/pairs.hpp"
#include "allocation/sharing.hpp"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

namespace loadmaster::allocation {

namespace {

bool has_windows(const Buffers &buffers) {
    for (std::int64_t b : indices(buffers.count()))
        for (std::int64_t s : buffers.occupied(b))
            if (!buffers.whole(b, s)) return true;
    return false;
}

// The load when every section takes whole steps, less the most that a buffer alive at that instant
// takes beyond its bytes.
Bound load_in_steps(const Buffers &buffers, std::span<const InPlace> in_place, std::int64_t step) {
    std::vector<std::int64_t> high(buffers.high.begin(), buffers.high.end());
    for (std::size_t s : indices(high.size()))
        high[s] = buffers.low[s] + align_up(high[s] - buffers.low[s], step);
    if (!in_place.empty()) return shared_load(buffers, high, in_place);
    const Load load = load_bound({buffers.size, buffers.alignment, buffers.pin, buffers.first,
        buffers.begin, buffers.end, buffers.low, high});
    std::int64_t slack = 0;
    for (std::size_t s : indices(high.size()))
        if (buffers.occupies(static_cast<std::int64_t>(s)) && buffers.begin[s] <= load.instant &&
            load.instant < buffers.end[s])
            slack = std::max(slack, high[s] - buffers.high[s]);
    return {load.bytes - slack, load.instant, -1, {}};
}

// The heaviest set of buffers that must be apart two by two which growing one from each of the
// largest finds; those that may share need not be apart.
Bound heaviest_clique(const Buffers &buffers, std::span<const InPlace> in_place) {
    constexpr std::size_t kStarts = 64;
    std::vector<std::int64_t> order =
        sorted_by(buffers.size.size(), [&](std::int64_t b) { return -buffers.size[b]; });
    std::erase_if(order, [&](std::int64_t b) { return !buffers.matters(b); });
    std::set<Pair> sharing;
    for (const InPlace &row : in_place)
        sharing.insert({row.one, row.other}), sharing.insert({row.other, row.one});
    Bound best;
    for (std::size_t start = 0; start < std::min(kStarts, order.size()); ++start) {
        std::vector<std::int64_t> members;
        std::int64_t bytes = 0;
        std::vector<std::size_t> met(buffers.size.size(), 0); // of the members, who are neighbours
        const auto take = [&](std::int64_t b) {
            members.push_back(b), bytes += buffers.size[b];
            for (std::int64_t k : row_of(buffers.near_first, b))
                met[buffers.near[k]] += !sharing.contains({b, buffers.near[k]});
        };
        take(order[start]);
        for (std::int64_t b : order)
            if (met[b] == members.size()) take(b);
        std::ranges::sort(members);
        if (bytes > best.bytes) best = {bytes, 0, -1, std::move(members)};
    }
    return best;
}

Bound load_and_ends(const Buffers &buffers, std::span<const InPlace> in_place) {
    const Load load = load_bound(buffers);
    Bound best{load.bytes, load.instant, -1, {}};
    if (!in_place.empty()) best = shared_load(buffers, buffers.high, in_place);
    if (!buffers.near_first.empty()) best = heaviest_clique(buffers, in_place);
    std::int64_t step = 0;
    for (std::int64_t alignment : buffers.alignment) step = std::gcd(step, alignment);
    if (step > 1 && !has_windows(buffers) && buffers.near_first.empty()) {
        const Bound rounded = load_in_steps(buffers, in_place, step);
        if (rounded.bytes > best.bytes) best = rounded;
    }
    for (std::int64_t b : indices(buffers.count())) {
        const std::int64_t top = std::max<std::int64_t>(buffers.pin[b], 0) + buffers.size[b];
        if (top <= best.bytes) continue;
        for (std::int64_t s : buffers.occupied(b))
            if (best.buffer != b || buffers.begin[s] < best.instant)
                best = {top, buffers.begin[s], b, {}};
    }
    return best;
}

} // namespace

Bound lower_bound(const Buffers &buffers, std::span<const InPlace> in_place, std::int64_t enough) {
    const Bound best = load_and_ends(buffers, in_place);
    if (best.bytes > enough || !in_place.empty() || !buffers.near_first.empty()) return best;
    Together pairwise = alive_in_pairs(buffers, best.bytes);
    return pairwise.bytes > best.bytes ? Bound{pairwise.bytes, 0, -1, std::move(pairwise.buffers)}
                                       : best;
}

bool is_alive(const Buffers &buffers, std::int64_t b, std::int64_t instant) {
    for (std::int64_t s : buffers.occupied(b))
        if (buffers.begin[s] <= instant && instant < buffers.end[s]) return true;
    return false;
}

std::vector<std::int64_t> witnesses(const Buffers &buffers, const Bound &bound) {
    if (bound.buffer >= 0) return {bound.buffer};
    if (!bound.pairwise.empty()) return bound.pairwise;
    std::vector<std::int64_t> found;
    for (std::int64_t b : indices(buffers.count()))
        if (is_alive(buffers, b, bound.instant)) found.push_back(b);
    return found;
}

bool orderly(const Buffers &buffers) {
    for (std::int64_t s : indices(std::ssize(buffers.begin)))
        if (buffers.occupies(s) && buffers.low[s] > 0) return false;
    return true;
}

} // namespace loadmaster::allocation
