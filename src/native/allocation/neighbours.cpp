#include "allocation/neighbours.hpp"

#include "common/limits.hpp"

#include <algorithm>
#include <tuple>

namespace loadmaster::allocation {

namespace {

double area(std::int64_t bytes, std::int64_t begin, std::int64_t end) {
    return static_cast<double>(bytes) * (static_cast<double>(end) - static_cast<double>(begin));
}

void sort_by_address(std::vector<Forbidden> &forbidden) {
    std::ranges::sort(
        forbidden, {}, [](const Forbidden &one) { return std::tie(one.from, one.buffer); });
}

// What several sections of one buffer forbid is joined where it overlaps, so that its weight counts
// once.
void join_by_buffer(std::vector<Forbidden> &forbidden) {
    std::ranges::sort(
        forbidden, {}, [](const Forbidden &one) { return std::tie(one.buffer, one.from, one.to); });
    std::size_t kept = 0;
    for (const Forbidden &next : forbidden) {
        if (kept && forbidden[kept - 1].buffer == next.buffer && next.from < forbidden[kept - 1].to)
            forbidden[kept - 1].to = std::max(forbidden[kept - 1].to, next.to);
        else
            forbidden[kept++] = next;
    }
    forbidden.resize(kept);
}

} // namespace

Neighbours::Neighbours(const Buffers &buffers)
    : sections_(Plain::of_sections(buffers)), live_(sections_), first_(buffers.count() + 1) {
    size.assign(buffers.size.begin(), buffers.size.end());
    alignment.assign(buffers.alignment.begin(), buffers.alignment.end());
    weight.assign(buffers.count(), 0);
    for (std::int64_t b : indices(buffers.count())) {
        for (std::int64_t s : buffers.occupied(b)) {
            low_.push_back(buffers.low[s]), high_.push_back(buffers.high[s]);
            weight[b] += area(buffers.high[s] - buffers.low[s], buffers.begin[s], buffers.end[s]);
        }
        if (buffers.pin[b] >= 0) weight[b] = kInfinite;
        first_[b + 1] = static_cast<std::int32_t>(low_.size());
        several_sections_ |= first_[b + 1] - first_[b] > 1;
    }
}

void Neighbours::list(std::int32_t buffer, const std::vector<std::int64_t> &offset,
    std::vector<Forbidden> &forbidden) const {
    forbidden.clear();
    for (std::int32_t mine : row_of(first_, buffer))
        live_.overlapping(mine, [&](std::int32_t theirs) {
            const auto other = static_cast<std::int32_t>(sections_.buffer[theirs]);
            if (other != buffer && offset[other] >= 0)
                forbidden.push_back({offset[other] + low_[theirs] - high_[mine],
                    offset[other] + high_[theirs] - low_[mine], other});
        });
    if (several_sections_) join_by_buffer(forbidden);
    sort_by_address(forbidden);
}

StoredNeighbours::StoredNeighbours(const Buffers &buffers) : Neighbours(buffers), pairs_(count()) {
    const std::vector<std::int64_t> all_at_zero(count(), 0);
    for (std::int32_t b : indices(count())) Neighbours::list(b, all_at_zero, pairs_[b]);
}

void StoredNeighbours::list(std::int32_t buffer, const std::vector<std::int64_t> &offset,
    std::vector<Forbidden> &forbidden) const {
    std::vector<Forbidden> &pairs = pairs_[buffer];
    const auto before = [&](const Forbidden &a, const Forbidden &b) {
        return std::tuple(offset[a.buffer] + a.from, a.buffer) <
            std::tuple(offset[b.buffer] + b.from, b.buffer);
    };
    for (std::size_t i = 1; i < pairs.size(); ++i)
        for (std::size_t at = i; at > 0 && before(pairs[at], pairs[at - 1]); --at)
            std::swap(pairs[at], pairs[at - 1]);
    forbidden.clear();
    for (const Forbidden &pair : pairs)
        if (offset[pair.buffer] >= 0)
            forbidden.push_back(
                {offset[pair.buffer] + pair.from, offset[pair.buffer] + pair.to, pair.buffer});
}

std::optional<PinClash> pins_clash(const Buffers &buffers) {
    std::vector<std::int64_t> pin(buffers.pin.begin(), buffers.pin.end());
    if (std::ranges::none_of(pin, [](std::int64_t at) { return at >= 0; })) return std::nullopt;
    const auto clash = [&](std::int64_t b, std::int64_t other) {
        return pin[b] >= 0 && pin[other] >= 0 && pin[b] < pin[other] + buffers.size[other] &&
            pin[other] < pin[b] + buffers.size[b];
    };
    if (!buffers.near_first.empty()) {
        for (std::int64_t b : indices(buffers.count()))
            for (std::int64_t k : row_of(buffers.near_first, b))
                if (clash(b, buffers.near[k])) return PinClash{b, buffers.near[k]};
        return std::nullopt;
    }
    const Neighbours near(buffers);
    std::vector<Forbidden> forbidden;
    for (std::int32_t b : indices(near.count())) {
        if (pin[b] < 0) continue;
        near.list(b, pin, forbidden);
        for (const Forbidden &other : forbidden)
            if (other.from < pin[b] && pin[b] < other.to) return PinClash{b, other.buffer};
    }
    return std::nullopt;
}

} // namespace loadmaster::allocation
