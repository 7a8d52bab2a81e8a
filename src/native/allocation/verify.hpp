// Whether offsets hold what a caller asked for: naive, and shares nothing with what makes packings.
#pragma once

#include "allocation/demands.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace loadmaster::allocation {

// The first thing that is wrong with a packing, in words; none if it holds. `capacity`: -1 for
// none. Ranges of addresses alive at one time are kept in order: O(n log n) without groups that
// overlap in themselves.
std::optional<std::string> broken_rule(
    const Demands &demands, std::span<const std::int64_t> offset, std::int64_t capacity);

} // namespace loadmaster::allocation
