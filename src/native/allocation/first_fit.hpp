// First-fit and best-fit in a given order, for a few buffers or for millions.
#pragma once

#include "allocation/buffers.hpp"
#include "common/budget.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace loadmaster::allocation {

struct Greedy {
    bool packed = false; // not if pinned buffers overlap, or a limit was exceeded
    std::vector<std::int64_t> offset;
    std::int64_t peak = 0;
};

// Each buffer in turn at its lowest gap (or its tightest), pinned ones first whatever the order.
// Stops, with an empty answer, once a top exceeds `limit`.
Greedy place_in_order(
    const Buffers &buffers, std::span<const std::int64_t> order, bool best_fit, std::int64_t limit);

// Each buffer of an order in turn at its lowest gap; -1 for those that would end past `capacity`
// there, and for those that the order leaves out. Pinned ones come first, and may overlap one
// another.
std::vector<std::int64_t> place_what_fits(
    const Buffers &buffers, std::span<const std::int64_t> order, std::int64_t capacity);

// With more buffers than this, a packing within half a per cent of the load is accepted, and one
// within a per cent ends the trying of orders.
constexpr std::int64_t kAcceptNearBoundFrom = 20'000;

// The best of a family of orders. Stops at a peak of `enough` or once the budget is spent, never
// before the first order is through.
Greedy best_first_fit(const Buffers &buffers, std::span<const std::int64_t> hint,
    std::int64_t enough, Budget &budget);

// Those of the family that look for the lowest gap.
std::vector<std::vector<std::int64_t>> first_fit_orders(const Buffers &buffers);

// Load, and the highest pinned top and the largest size: no peak is below.
std::int64_t simple_bound(const Buffers &buffers);

} // namespace loadmaster::allocation
