#include "allocation/demands.hpp"

#include "allocation/reduction.hpp"
#include "common/limits.hpp"
#include "common/require.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <numeric>
#include <stdexcept>
#include <string>

namespace loadmaster::allocation {

namespace {

using Int = std::int64_t;

// Sizes, alignments, shifts and the highest pin together are limited, so that no sum of them
// overflows.
void add_bytes(Int &sum, Int bytes) {
    if (bytes > kLargestTotal - sum)
        throw std::overflow_error("sizes: more than 2^62 bytes in all, with alignments and pins");
    sum += bytes;
}

void check_sections(const Buffers &b) {
    const auto sections = std::ssize(b.begin);
    require(b.end.size() == b.begin.size() && b.low.size() == b.begin.size() &&
            b.high.size() == b.begin.size(),
        "sections: arrays of different lengths");
    require(b.first.size() == b.size.size() + 1 && b.first[0] == 0,
        "first: must start with 0 and have one element more than size");
    for (std::size_t i = 1; i < b.first.size(); ++i)
        require(b.first[i] >= b.first[i - 1], "first: must not decrease");
    require(b.first.back() == sections, "first: must end with the number of sections");
    for (Int i : indices(b.count()))
        for (Int s : b.sections(i)) {
            require(b.begin[s] <= b.end[s], i, "begin: must not be after end");
            require(0 <= b.low[s] && b.low[s] <= b.high[s] && b.high[s] <= b.size[i], i,
                "low, high: must lie within the buffer");
        }
}

// Sections of one buffer are at different instants, or at the same ones and in different bytes.
void check_overlaps(const Buffers &b) {
    std::vector<std::array<Int, 4>> mine;
    for (Int i : indices(b.count())) {
        if (b.first[i + 1] - b.first[i] < 2) continue;
        mine.clear();
        for (Int s : b.sections(i))
            if (b.begin[s] < b.end[s]) mine.push_back({b.begin[s], b.end[s], b.low[s], b.high[s]});
        std::ranges::sort(mine);
        for (std::size_t k = 1; k < mine.size(); ++k) {
            const auto &[begin, end, low, high] = mine[k];
            const auto &before = mine[k - 1];
            const bool together = before[0] == begin && before[1] == end;
            require(together ? before[3] <= low : before[1] <= begin, i,
                "sections: two of one buffer overlap");
        }
    }
}

// Returns the sum of all bytes that addresses may be made of.
Int check_columns(const Buffers &b) {
    require(b.size.size() < (std::size_t{1} << 30) && b.begin.size() < (std::size_t{1} << 30),
        "too many buffers");
    require(b.alignment.size() == b.size.size() && b.pin.size() == b.size.size(),
        "buffers: arrays of different lengths");
    Int sum = 0, highest = 0;
    for (Int i : indices(b.count())) {
        require(b.size[i] >= 0, i, "size: must not be negative");
        require(b.alignment[i] >= 1, i, "alignment: must be at least 1");
        require(b.pin[i] >= -1, i, "pin: must be an offset, or -1 for none");
        add_bytes(sum, b.size[i]);
        add_bytes(sum, b.alignment[i] - 1);
        highest = std::max(highest, b.pin[i]);
    }
    add_bytes(sum, highest);
    return sum;
}

Int common_multiple(Int step, Int alignment, const std::string &owner) {
    const Int more = alignment / std::gcd(step, alignment);
    if (more > kLargestTotal / step)
        throw std::overflow_error(owner + ": the alignments have no common multiple below 2^62");
    return step * more;
}

// Common multiples of the alignments of buffers that are linked by pairs, which may join into
// groups.
std::vector<Int> steps_of_linked(const Buffers &buffers, const std::vector<InPlace> &pairs) {
    std::vector<Int> leader(pairs.empty() ? 0 : buffers.size.size()), steps(leader.size(), 0);
    std::iota(leader.begin(), leader.end(), Int{0});
    const auto led_by = [&](Int b) {
        while (leader[b] != b) b = leader[b] = leader[leader[b]];
        return b;
    };
    for (const InPlace &pair : pairs) leader[led_by(pair.one)] = led_by(pair.other);
    for (const InPlace &pair : pairs)
        for (Int b : {pair.one, pair.other}) {
            Int &step = steps[led_by(b)];
            step = common_multiple(std::max(step, Int{1}), buffers.alignment[b], "pairs");
        }
    return steps;
}

void check_pair(const Buffers &buffers, Int one, Int other) {
    for (Int buffer : {one, other})
        require(
            buffer >= 0 && buffer < buffers.count(), "pair: names a buffer that does not exist");
}

} // namespace

std::optional<GroupFault> fault_of(const Buffers &buffers, const Group &group) {
    if (!common_residue(buffers, group))
        return GroupFault{
            group.front().buffer, "group: no address suits the alignments of all its buffers"};
    Int base = -1;
    for (const auto &[buffer, shift] : group) {
        const Int pin = buffers.pin[buffer];
        if (pin < 0) continue;
        if (pin < shift)
            return GroupFault{buffer, "group: would begin below 0 where this buffer is pinned"};
        if (base >= 0 && base != pin - shift)
            return GroupFault{buffer, "group: pinned to another address than a buffer before it"};
        base = pin - shift;
    }
    for (const auto &[buffer, shift] : group)
        if (base >= 0 && (base + shift) % buffers.alignment[buffer] != 0)
            return GroupFault{buffer, "group: not aligned where the group is pinned"};
    return std::nullopt;
}

void check(const Buffers &buffers) {
    check_columns(buffers);
    check_sections(buffers);
    check_overlaps(buffers);
}

void check(const Demands &demands) {
    const Buffers &buffers = demands.buffers;
    Int sum = check_columns(buffers);
    check_sections(buffers);
    check_overlaps(buffers);
    for (Int b : indices(buffers.count()))
        require(buffers.pin[b] < 0 || buffers.pin[b] % buffers.alignment[b] == 0, b,
            "offset: not a multiple of the alignment");
    std::vector<char> grouped(buffers.size.size(), 0);
    for (const Group &group : demands.aliases) {
        Int step = 1, furthest = 0;
        for (const auto &[buffer, shift] : group) {
            require(buffer >= 0 && buffer < buffers.count(),
                "group: names a buffer that does not exist");
            require(!grouped[buffer]++, buffer, "group: in two groups");
            require(shift >= 0 && shift < kLargestTotal, buffer, "shift: must be from 0 to 2^62");
            step = common_multiple(step, buffers.alignment[buffer], "group");
            furthest = std::max(furthest, shift);
        }
        add_bytes(sum, furthest);
        add_bytes(sum, step);
        add_bytes(sum, step);
        if (const auto fault = fault_of(buffers, group)) require(false, fault->buffer, fault->what);
    }
    for (const auto &[one, other, shift] : demands.in_place) {
        check_pair(buffers, one, other);
        require(-kLargestTotal < shift && shift < kLargestTotal, one,
            "shift: must be between -2^62 and 2^62");
        add_bytes(sum, std::abs(shift));
    }
    for (Int step : steps_of_linked(buffers, demands.in_place)) add_bytes(sum, step);
    if (demands.conflicts)
        for (const auto &[one, other] : *demands.conflicts) check_pair(buffers, one, other);
    for (const auto &[low, high] : demands.reserved) {
        require(0 <= low && low <= high && high < kLargestTotal,
            "reserved: a range must not be reversed, and lie between 0 and 2^62");
        if (high > kLargestTotal - sum)
            throw std::overflow_error("reserved: a range too high for the sizes of the buffers");
    }
}

void OwnedBuffers::keep_apart(std::vector<Pair> pairs) {
    std::erase_if(pairs, [](const Pair &pair) { return pair.one == pair.other; });
    for (std::size_t i = 0, count = pairs.size(); i < count; ++i)
        pairs.push_back({pairs[i].other, pairs[i].one});
    sort_distinct(pairs);
    near_first.assign(size.size() + 1, 0);
    for (const auto &[one, other] : pairs) ++near_first[one + 1], near.push_back(other);
    add_up(near_first);
}

std::vector<AddressRange> joined(std::vector<AddressRange> ranges) {
    std::erase_if(ranges, [](const AddressRange &range) { return range.low >= range.high; });
    std::ranges::sort(ranges, {}, &AddressRange::low);
    std::vector<AddressRange> found;
    for (const AddressRange &range : ranges)
        if (!found.empty() && range.low <= found.back().high)
            found.back().high = std::max(found.back().high, range.high);
        else
            found.push_back(range);
    return found;
}

} // namespace loadmaster::allocation
