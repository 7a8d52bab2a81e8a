// Plain buffers, few of them, answered in microseconds.
#pragma once

#include "allocation/buffers.hpp"

#include <vector>

namespace loadmaster::allocation {

struct Small {
    std::vector<std::int64_t> offset;
    std::int64_t peak = 0, bound = 0;
};

// Up to so many buffers an answer is quick.
constexpr std::int64_t kQuickBuffers = 1024;

// First-fit in a few orders, then for up to 128 buffers a short search at the load bound. One
// section each, no alignment, no pins; lifetimes may be empty.
Small allocate_small(const Buffers &buffers);

} // namespace loadmaster::allocation
