// What callers hand over is checked where it comes in.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace loadmaster {

inline void require(bool holds, const char *what) {
    if (!holds) throw std::invalid_argument(what);
}

inline void require(bool holds, std::int64_t buffer, const char *what) {
    if (!holds) throw std::invalid_argument("buffer " + std::to_string(buffer) + ": " + what);
}

} // namespace loadmaster
