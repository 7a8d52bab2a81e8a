// What no number exceeds.
#pragma once

#include <cstdint>
#include <limits>

namespace loadmaster {

constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max();

} // namespace loadmaster
