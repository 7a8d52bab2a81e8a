// Many buffers: a few sweeps below ceilings near the bound, then repair of what they leave out.
#pragma once

#include "common/budget.hpp"
#include "allocation/buffers.hpp"

#include <cstdint>
#include <functional>
#include <vector>

namespace loadmaster::allocation {

// Calls `found` with offsets for every packing, and goes on while that says so. Does
// nothing where buffers have pins, gaps or windows.
void pack_at_scale(const Buffers &buffers, std::int64_t bound, Budget &budget,
    const std::function<bool(std::vector<std::int64_t> &&)> &found);

} // namespace loadmaster::allocation
