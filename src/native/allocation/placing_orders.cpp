#include "allocation/placing_orders.hpp"

#include "allocation/timeline.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

namespace loadmaster::allocation {

namespace {

using Key = std::pair<double, double>;

// The highest keys first; of equals, the buffer of the lowest number.
template <typename KeyOf> PlacingOrder sorted(std::int64_t count, const KeyOf &key_of) {
    std::vector<Key> key(static_cast<std::size_t>(count));
    for (std::int64_t b = 0; b < count; ++b) key[b] = key_of(b);
    PlacingOrder order(static_cast<std::size_t>(count));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
        [&](std::int64_t a, std::int64_t b) { return key[a] > key[b]; });
    return order;
}

std::vector<double> births(const Buffers &buffers) {
    std::vector<double> found(buffers.size.size(), 0);
    for (std::int64_t b = 0; b < buffers.count(); ++b)
        if (buffers.first[b] < buffers.first[b + 1])
            found[b] =
                static_cast<double>(*std::min_element(buffers.begin.begin() + buffers.first[b],
                    buffers.begin.begin() + buffers.first[b + 1]));
    return found;
}

} // namespace

PlacingOrder by_birth(const Buffers &buffers) {
    const std::vector<double> birth = births(buffers);
    return sorted(buffers.count(),
        [&](std::int64_t b) { return Key{-birth[b], static_cast<double>(buffers.size[b])}; });
}

std::vector<PlacingOrder> greedy_orders(
    const Buffers &buffers, std::span<const std::int64_t> hint) {
    const std::int64_t count = buffers.count();
    const Timeline time(buffers);
    const std::vector<double> birth = births(buffers);
    std::vector<double> length(buffers.size.size(), 0);
    for (std::int64_t b = 0; b < count; ++b)
        if (buffers.first[b] < buffers.first[b + 1])
            length[b] =
                static_cast<double>(*std::max_element(buffers.end.begin() + buffers.first[b],
                    buffers.end.begin() + buffers.first[b + 1])) -
                birth[b];
    const auto size = [&](std::int64_t b) { return static_cast<double>(buffers.size[b]); };
    const auto crowd = [&](std::int64_t b) {
        return static_cast<double>(time.contention(b)) /
            static_cast<double>(std::max<std::int64_t>(time.load(), 1));
    };
    std::vector<PlacingOrder> orders;
    if (!hint.empty())
        orders.push_back(sorted(count, [&](std::int64_t b) {
            return Key{hint[b] < 0 ? -std::numeric_limits<double>::infinity()
                                   : -static_cast<double>(hint[b]),
                size(b)};
        }));
    orders.push_back(sorted(count, [&](std::int64_t b) { return Key{size(b), length[b]}; }));
    orders.push_back(sorted(count, [&](std::int64_t b) { return Key{length[b], size(b)}; }));
    orders.push_back(sorted(count, [&](std::int64_t b) { return Key{size(b) * length[b], 0}; }));
    for (int power : {8, 6, 4, 2, 1})
        orders.push_back(sorted(
            count, [&](std::int64_t b) { return Key{std::pow(crowd(b), power) * size(b), 0}; }));
    orders.push_back(sorted(count, [&](std::int64_t b) { return Key{crowd(b), length[b]}; }));
    orders.push_back(sorted(count, [&](std::int64_t b) { return Key{-birth[b], size(b)}; }));
    return orders;
}

} // namespace loadmaster::allocation
