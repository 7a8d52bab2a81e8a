#include "allocation/reduction.hpp"

#include <algorithm>
#include <bit>
#include <utility>

namespace loadmaster::allocation {

namespace {

using Int = std::int64_t;

// Buffers beyond which no table of all pairs is made, and lifetimes beyond which conflicts stay
// pairs.
constexpr Int kMostBuffers = 20'000, kMostLifetimes = 200'000;

using Bits = std::span<std::uint64_t>;

// A bit for each pair of buffers.
struct Table {
    explicit Table(Int count)
        : words(static_cast<std::size_t>(count + 63) / 64), bits(count * words) {}
    Bits row(Int at) { return Bits(bits).subspan(at * words, words); }
    std::size_t words;
    std::vector<std::uint64_t> bits;
};

void set(Bits bits, Int at) { bits[at / 64] |= std::uint64_t{1} << (at % 64); }

// The first buffer that is in both sets, or -1.
Int first_of(Bits one, Bits other) {
    for (std::size_t w : indices(one.size()))
        if (const std::uint64_t both = one[w] & other[w])
            return static_cast<Int>(64 * w) + std::countr_zero(both);
    return -1;
}

// Maximal cliques until every conflict is in one: each grown from a conflict not yet covered, the
// largest buffers first. Empty if they have too many members together.
std::vector<std::vector<Int>> cover(const Demands &demands) {
    const Buffers &buffers = demands.buffers;
    const Int count = buffers.count();
    const std::vector<Int> order =
        sorted_by(buffers.size.size(), [&](Int b) { return -buffers.size[b]; });
    std::vector<Int> rank(order.size());
    for (Int i : indices(count)) rank[order[i]] = i;
    Table near(count);
    for (const auto &[one, other] : *demands.conflicts) {
        if (one == other || !buffers.matters(one) || !buffers.matters(other)) continue;
        set(near.row(rank[one]), rank[other]), set(near.row(rank[other]), rank[one]);
    }
    Table open = near;
    std::vector<std::vector<Int>> cliques;
    Int lifetimes = 0;
    for (Int start : indices(count)) {
        if (first_of(near.row(start), near.row(start)) < 0 && buffers.matters(order[start]))
            cliques.push_back({order[start]});
        while (first_of(open.row(start), open.row(start)) >= 0) {
            std::vector<Int> members{start};
            std::vector<std::uint64_t> common(near.row(start).begin(), near.row(start).end());
            for (Int next = start; next >= 0;) {
                next = first_of(common, open.row(members.back()));
                if (next < 0) next = first_of(common, common);
                if (next < 0) break;
                members.push_back(next);
                for (std::size_t w : indices(common.size())) common[w] &= near.row(next)[w];
            }
            std::vector<std::uint64_t> all(common.size());
            for (Int a : members) set(all, a);
            for (Int a : members)
                for (std::size_t w : indices(all.size())) open.row(a)[w] &= ~all[w];
            for (Int &member : members) member = order[member];
            lifetimes += std::ssize(members);
            if (lifetimes > kMostLifetimes + count) return {};
            cliques.push_back(std::move(members));
        }
    }
    return cliques;
}

} // namespace

std::optional<OwnedBuffers> on_one_clock(const Demands &demands) {
    const Buffers &buffers = demands.buffers;
    if (buffers.count() > kMostBuffers) return std::nullopt;
    std::vector<std::vector<Int>> cliques = cover(demands);
    std::vector<std::vector<Int>> alive(buffers.size.size());
    const auto any = [&](Int b) { return buffers.first[b] < buffers.first[b + 1]; };
    // In the order in which the middles of lifetimes come, if they say anything.
    std::vector<std::pair<double, std::size_t>> order;
    for (const std::vector<Int> &members : cliques) {
        double middle = 0;
        for (Int b : members)
            middle += static_cast<double>(buffers.begin[buffers.first[b]]) +
                static_cast<double>(buffers.end[buffers.first[b + 1] - 1]);
        order.emplace_back(middle / static_cast<double>(members.size()), order.size());
    }
    std::ranges::sort(order, [&](const auto &a, const auto &b) {
        return a.first != b.first ? a.first < b.first : cliques[a.second] < cliques[b.second];
    });
    for (std::size_t instant : indices(order.size()))
        for (Int b : cliques[order[instant].second]) alive[b].push_back(instant);
    OwnedBuffers made;
    for (Int b : indices(buffers.count())) {
        if (any(b) && buffers.matters(b) && alive[b].empty()) return std::nullopt;
        made.add(buffers.size[b], buffers.alignment[b], buffers.pin[b], demands.hint[b]);
        for (std::size_t i = 0, from = 0; i < alive[b].size(); ++i)
            if (i + 1 == alive[b].size() || alive[b][i + 1] > alive[b][i] + 1) {
                made.add_section(alive[b][from], alive[b][i] + 1, 0, buffers.size[b]);
                from = i + 1;
            }
    }
    return made;
}

} // namespace loadmaster::allocation
