// Plain buffers, few of them, answered in microseconds.
#pragma once

#include "allocation/solver.hpp"

namespace loadmaster::allocation {

// Up to so many buffers an answer is quick.
constexpr std::int64_t kQuickBuffers = 1024;

// First-fit in a family of orders, then for up to 128 buffers a short search at the load bound; the
// status says nothing. No pins overlap.
Answer allocate_small(const Buffers &buffers);

} // namespace loadmaster::allocation
