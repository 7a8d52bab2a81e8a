#include "allocation/reduction.hpp"

#include "common/limits.hpp"

#include <algorithm>
#include <numeric>
#include <set>

namespace loadmaster::allocation {

namespace {

using Int = std::int64_t;

// a * b modulo m, for numbers below 2^62.
Int multiplied(Int a, Int b, Int m) { return static_cast<Int>(static_cast<__int128>(a) * b % m); }

// The inverse of a modulo m, which share no divisor.
Int inverse(Int a, Int m) {
    Int r = m, next = a % m, x = 0, y = 1;
    while (next != 0) {
        const Int times = r / next;
        std::swap(r -= times * next, next);
        std::swap(x -= times * y, y);
    }
    return m == 1 ? 0 : (x % m + m) % m;
}

struct Part {
    Int begin, end, low, high;
    auto operator<=>(const Part &) const = default;
};

// The rectangles that some parts cover together: at each stretch of time, ranges that do not touch.
std::vector<Part> united(const std::vector<Part> &parts) {
    std::set<Int> cuts;
    for (const Part &part : parts) cuts.insert(part.begin), cuts.insert(part.end);
    std::vector<Part> found;
    std::vector<AddressRange> before;
    std::size_t from = 0; // where the rectangles of the stretch before begin
    for (auto at = cuts.begin(); at != cuts.end() && std::next(at) != cuts.end(); ++at) {
        std::vector<AddressRange> taken;
        for (const Part &part : parts)
            if (part.begin <= *at && *at < part.end) taken.push_back({part.low, part.high});
        taken = joined(std::move(taken));
        const bool same = found.size() - from == taken.size() && from < found.size() &&
            found.back().end == *at &&
            std::equal(
                taken.begin(), taken.end(), found.begin() + from,
                [](const AddressRange &range, const Part &part) {
                    return range.low == part.low && range.high == part.high;
                });
        if (same) {
            for (std::size_t i = from; i < found.size(); ++i) found[i].end = *std::next(at);
            continue;
        }
        from = found.size();
        for (const auto &[low, high] : taken) found.push_back({*at, *std::next(at), low, high});
    }
    return found;
}

void copy_sections(const Buffers &from, Int buffer, OwnedBuffers &to) {
    for (Int s : from.occupied(buffer))
        to.add_section(from.begin[s], from.end[s], from.low[s], from.high[s]);
}

// What groups become, and where each original buffer went.
struct Merger {
    OwnedBuffers buffers;
    std::vector<Int> places, lifts;
};

void merge_group(const Demands &demands, const Group &group, Merger &merged) {
    const Buffers &buffers = demands.buffers;
    const Int residue = common_residue(buffers, group).value(), place = merged.buffers.count();
    Int lowest = kUnlimited, size = 0, step = 1, pin = -1, hint = -1;
    for (const Member &member : group) lowest = std::min(lowest, member.shift);
    std::vector<Part> parts;
    for (const auto &[b, shift] : group) {
        const Int lift = residue + shift - lowest;
        merged.places[b] = place, merged.lifts[b] = lift;
        step = std::lcm(step, buffers.alignment[b]);
        if (buffers.pin[b] >= 0) pin = std::max(pin, buffers.pin[b] - lift);
        if (demands.hint[b] >= 0) hint = std::max({hint, demands.hint[b] - lift, Int{0}});
        if (buffers.matters(b)) size = std::max(size, lift + buffers.size[b]);
        for (Int s : buffers.occupied(b))
            parts.push_back(
                {buffers.begin[s], buffers.end[s], buffers.low[s] + lift, buffers.high[s] + lift});
    }
    merged.buffers.add(size, step, pin, hint);
    if (demands.conflicts && size > 0) parts = {{0, 1, 0, size}};
    for (const Part &part : united(parts))
        merged.buffers.add_section(part.begin, part.end, part.low, part.high);
}

template <typename Row> void make_distinct(std::vector<Row> &rows) {
    std::erase_if(rows, [](const Row &row) { return row.one == row.other; });
    sort_distinct(rows);
}

// In-place pairs and conflicts of what groups have become. Two may share an address if all their
// members that must be apart may.
void merge_pairs(const Demands &demands, Merged &merged) {
    std::optional<std::vector<Pair>> asked = demands.conflicts;
    const auto paired = [&](const auto &place) {
        std::vector<Pair> found;
        for (const auto &[one, other] : *demands.conflicts)
            found.push_back(
                {std::min(place(one), place(other)), std::max(place(one), place(other))});
        make_distinct(found);
        return found;
    };
    if (asked) {
        asked = paired([](Int b) { return b; });
        merged.conflicts = paired([&](Int b) { return merged.place(b); });
    }
    if (demands.in_place.empty()) return;
    std::vector<InPlace> allowed;
    for (const InPlace &row : demands.in_place) {
        allowed.push_back(in_order(row));
        merged.in_place.push_back(in_order({merged.place(row.one), merged.place(row.other),
            row.shift + merged.lift(row.one) - merged.lift(row.other)}));
    }
    make_distinct(allowed);
    make_distinct(merged.in_place);
    std::vector<std::vector<Int>> members(merged.buffers().size.size());
    for (Int b : indices(demands.buffers.count()))
        if (demands.buffers.matters(b)) members[merged.place(b)].push_back(b);
    std::erase_if(merged.in_place, [&](const InPlace &row) {
        bool any = false;
        for (Int a : members[row.one])
            for (Int b : members[row.other]) {
                const Int up = row.shift + merged.lift(b) - merged.lift(a);
                if (!meet(demands.buffers, asked, a, b, up)) continue;
                any = true;
                if (!std::ranges::binary_search(allowed, in_order({a, b, up}))) return true;
            }
        return !any;
    });
}

// Whether every buffer takes space, and each of its sections does.
bool all_occupy(const Buffers &buffers) {
    for (Int b : indices(buffers.count()))
        if (buffers.first[b] == buffers.first[b + 1]) return false;
    for (Int s : indices(std::ssize(buffers.begin)))
        if (!buffers.occupies(s)) return false;
    return true;
}

} // namespace

// One congruence after another (Chinese remainders of moduli that need not be coprime).
std::optional<Int> common_residue(const Buffers &buffers, const Group &group) {
    Int lowest = kUnlimited, found = 0, step = 1;
    for (const Member &member : group) lowest = std::min(lowest, member.shift);
    for (const auto &[buffer, shift] : group) {
        const Int alignment = buffers.alignment[buffer], common = std::gcd(step, alignment),
                  rest = alignment / common;
        const Int missing = -(shift - lowest) - found;
        if (missing % common != 0) return std::nullopt;
        const Int wanted = (missing / common % rest + rest) % rest;
        found += step * multiplied(wanted, inverse(step / common, rest), rest);
        step *= rest;
        found %= step;
    }
    return found;
}

bool Merged::hollow() const {
    const Buffers &view = buffers();
    for (Int b : indices(view.count())) {
        std::vector<AddressRange> taken;
        for (Int s : view.occupied(b)) taken.push_back({view.low[s], view.high[s]});
        if (taken.empty()) continue;
        taken = joined(std::move(taken));
        if (taken.size() > 1 || taken[0].low > 0 || taken[0].high < view.size[b]) return true;
    }
    return false;
}

InPlace in_order(const InPlace &row) {
    return row.one <= row.other ? row : InPlace{row.other, row.one, -row.shift};
}

bool meet(const Buffers &buffers, const std::optional<std::vector<Pair>> &conflicts, Int one,
    Int other, Int up) {
    if (conflicts)
        return up < buffers.size[one] && -up < buffers.size[other] &&
            std::binary_search(conflicts->begin(), conflicts->end(),
                Pair{std::min(one, other), std::max(one, other)});
    for (Int s : buffers.sections(one))
        for (Int t : buffers.sections(other))
            if (buffers.begin[s] < buffers.end[t] && buffers.begin[t] < buffers.end[s] &&
                buffers.low[s] < buffers.high[t] + up && buffers.low[t] + up < buffers.high[s])
                return true;
    return false;
}

Merged merge(const Demands &demands) {
    const Buffers &buffers = demands.buffers;
    // A group of one asks for nothing.
    auto groups =
        demands.aliases | std::views::filter([](const Group &group) { return group.size() > 1; });
    if (groups.empty()) {
        Merged same{buffers, {buffers, demands.hint}, {}, {}};
        merge_pairs(demands, same);
        return same;
    }
    Merger merged;
    merged.places.assign(buffers.size.size(), -1);
    merged.lifts.assign(buffers.size.size(), 0);
    for (const Group &group : groups)
        for (const Member &member : group) merged.places[member.buffer] = -2;
    for (Int b : indices(buffers.count())) {
        if (merged.places[b] == -2) continue;
        merged.places[b] = merged.buffers.count();
        merged.buffers.add(buffers.size[b], buffers.alignment[b], buffers.pin[b], demands.hint[b]);
        copy_sections(buffers, b, merged.buffers);
    }
    for (const Group &group : groups) merge_group(demands, group, merged);
    Merged done{buffers, Rewritten(std::move(merged.buffers)), std::move(merged.places),
        std::move(merged.lifts)};
    merge_pairs(demands, done);
    return done;
}

Reduced without_empty(const Merged &merged, std::span<const AddressRange> ranges, Int limit) {
    const Buffers &buffers = merged.buffers();
    if (ranges.empty() && all_occupy(buffers) && !merged.conflicts)
        return {{buffers, merged.rewritten.hint()}, buffers.count(), {}, merged.in_place, {}};
    OwnedBuffers made;
    std::vector<Int> kept, place(buffers.size.size(), -1);
    Int begin = kUnlimited, end = 1;
    for (Int b : indices(buffers.count())) {
        if (!buffers.matters(b)) continue;
        place[b] = made.count();
        kept.push_back(b);
        made.add(buffers.size[b], buffers.alignment[b], buffers.pin[b], merged.rewritten.hint()[b]);
        copy_sections(buffers, b, made);
    }
    for (Int instant : made.begin) begin = std::min(begin, instant);
    for (Int instant : made.end) end = std::max(end, instant);
    for (const auto &[low, high] : ranges) {
        if (low >= limit) continue;
        const Int bytes = std::min(high, limit) - low;
        made.add(bytes, 1, low, -1);
        made.add_section(std::min(begin, Int{0}), end, 0, bytes);
    }
    const auto own = std::ssize(kept);
    std::vector<InPlace> in_place;
    for (const auto &[one, other, shift] : merged.in_place)
        in_place.push_back({place[one], place[other], shift});
    std::optional<std::vector<Pair>> conflicts;
    if (merged.conflicts) {
        conflicts.emplace();
        for (const auto &[one, other] : *merged.conflicts)
            if (place[one] >= 0 && place[other] >= 0)
                conflicts->push_back({place[one], place[other]});
        for (Int range = own; range < made.count(); ++range)
            for (Int b : indices(range)) conflicts->push_back({b, range});
        std::sort(conflicts->begin(), conflicts->end());
        made.keep_apart(*conflicts);
    }
    return {Rewritten(std::move(made)), own, std::move(kept), std::move(in_place),
        std::move(conflicts)};
}

std::vector<Int> Reduced::offsets(const Merged &merged, std::span<const Int> solved) const {
    std::vector<Int> of_merged(merged.buffers().pin.begin(), merged.buffers().pin.end());
    for (Int &at : of_merged) at = std::max<Int>(at, 0);
    for (Int b : indices(own)) of_merged[this->merged(b)] = solved[b];
    std::vector<Int> offsets(merged.original());
    for (Int b : indices(merged.original()))
        offsets[b] = of_merged[merged.place(b)] + merged.lift(b);
    return offsets;
}

Int Reduced::peak(std::span<const Int> solved) const {
    Int peak = 0;
    for (Int b : indices(own)) peak = std::max(peak, solved[b] + buffers().size[b]);
    return peak;
}

} // namespace loadmaster::allocation
