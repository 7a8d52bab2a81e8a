// Sorting by positive numbers, in linear time.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace loadmaster {

// Sorts items stably, those of the largest key first. `key` gives each a finite number above 0: the
// bits of such numbers, read as an integer, grow with them. Digits that all keys share take no
// pass. O(items), and as much memory again.
template <typename Item, typename Key> void sort_descending(std::vector<Item> &items, Key key) {
    constexpr std::size_t digit = 11, digits = 6, values = std::size_t{1} << digit;
    struct Keyed {
        std::uint64_t bits;
        std::size_t item;
    };
    std::vector<std::array<std::size_t, values>> counts(digits);
    std::vector<Keyed> now(items.size()), next(items.size());
    for (std::size_t i = 0; i < items.size(); ++i) {
        now[i] = {~std::bit_cast<std::uint64_t>(static_cast<double>(key(items[i]))), i};
        for (std::size_t d = 0; d < digits; ++d)
            ++counts[d][now[i].bits >> d * digit & (values - 1)];
    }
    for (std::size_t d = 0; d < digits && !items.empty(); ++d) {
        if (counts[d][now[0].bits >> d * digit & (values - 1)] == items.size()) continue;
        std::size_t before = 0;
        for (std::size_t &count : counts[d]) {
            const std::size_t own = count;
            count = before;
            before += own;
        }
        for (const Keyed &each : now)
            next[counts[d][each.bits >> d * digit & (values - 1)]++] = each;
        now.swap(next);
    }
    std::vector<Item> sorted;
    sorted.reserve(items.size());
    for (const Keyed &each : now) sorted.push_back(items[each.item]);
    items = std::move(sorted);
}

} // namespace loadmaster
