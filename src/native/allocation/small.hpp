// Plain buffers, few of them, answered in microseconds.
#pragma once

#include "allocation/buffers.hpp"

#include <vector>

namespace loadmaster::allocation {

struct Small {
    std::vector<std::int64_t> offset;
    std::int64_t peak = 0, bound = 0;
};

// First-fit in a few orders, then a short search at the load bound. One section each, no alignment, no pins; lifetimes may be empty.
Small allocate_small(const Buffers &buffers);

}  // namespace loadmaster::allocation
