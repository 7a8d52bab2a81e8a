// Orders in which first fit places buffers, as the simple strategies do.
#pragma once

#include "allocation/buffers.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace loadmaster::allocation {

using PlacingOrder = std::vector<std::int64_t>;

// By birth; of those born together, the largest first.
PlacingOrder by_birth(const Buffers &buffers);

// The orders of `greedy`: the user's hints first, if any; then by size, as TensorFlow Lite does, by
// length, by area, by powers of the peak load during a buffer's life, and by birth.
std::vector<PlacingOrder> greedy_orders(const Buffers &buffers, std::span<const std::int64_t> hint);

} // namespace loadmaster::allocation
