// The exact strategies: does it fit, and what is the smallest peak?
#pragma once

#include "allocation/buffers.hpp"
#include "common/budget.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace loadmaster::allocation {

enum class Status { optimal, feasible, infeasible, unknown };

struct Answer {
    Status status = Status::unknown;
    std::vector<std::int64_t> offset; // -1 throughout if there is no packing
    std::int64_t peak = 0, bound = 0; // bytes
};

struct Settings {
    std::uint64_t seed = 0;
    std::int64_t threads = 1;
    std::int64_t bound = 0; // bytes that any packing is known to need
};

// `hint` is empty or an offset per buffer, -1 for none.
Answer fit(const Buffers &buffers, std::span<const std::int64_t> hint, std::int64_t capacity,
    const Settings &settings, Budget &budget);
Answer minimise(const Buffers &buffers, std::span<const std::int64_t> hint,
    const Settings &settings, Budget &budget);

} // namespace loadmaster::allocation
