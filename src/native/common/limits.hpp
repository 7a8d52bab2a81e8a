// What no number exceeds.
#pragma once

#include <cstdint>
#include <limits>

namespace loadmaster {

constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max();
// Bytes, addresses and instants lie below this, so that the sum of two of them fits.
constexpr std::int64_t kLargestTotal = std::int64_t{1} << 62;

} // namespace loadmaster
