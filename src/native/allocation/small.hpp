// Plain buffers, few of them, answered in microseconds.
#pragma once

#include "first_fit.hpp"

namespace loadmaster::allocation {

struct Small {
    std::vector<std::int64_t> offset;
    std::int64_t peak = 0, bound = 0;
};

// First-fit in a few orders, stopping at the load bound. Lifetimes may be empty.
Small allocate_small(std::span<const std::int64_t> lower, std::span<const std::int64_t> upper, std::span<const std::int64_t> size);

}  // namespace loadmaster::allocation
