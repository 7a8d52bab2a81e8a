// Work cut into as many runs as there are threads, always at the same places.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <thread>
#include <vector>

namespace loadmaster::mapping {

// Calls body(begin, end) for parts of 0 .. count; the caller's own thread takes the first part.
template <typename Body> void in_parallel(std::size_t count, int threads, const Body &body) {
    const std::size_t parts = std::min<std::size_t>(count, std::max(1, threads));
    if (parts <= 1) {
        if (count > 0) body(std::size_t{0}, count);
        return;
    }
    std::vector<std::jthread> others;
    for (std::size_t part = 1; part < parts; ++part)
        others.emplace_back([&, part] { body(count * part / parts, count * (part + 1) / parts); });
    body(std::size_t{0}, count / parts);
}

// Calls body(i) for 0 .. count, each on the thread that is free next: for parts that do not take
// alike long.
template <typename Body> void each_in_parallel(std::size_t count, int threads, const Body &body) {
    std::atomic<std::size_t> next = 0;
    in_parallel(
        std::min<std::size_t>(count, std::max(1, threads)), threads, [&](std::size_t, std::size_t) {
            for (std::size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;)
                body(i);
        });
}

} // namespace loadmaster::mapping
