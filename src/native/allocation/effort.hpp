// How long to look, and what was done.
#pragma once

#include "common/budget.hpp"

#include <cstdint>
#include <functional>

namespace loadmaster::allocation {

// Budgets of work are `work` per cent of the default ones; what more than one attempt pays for has
// a smaller share.
struct Effort {
    std::uint64_t seed = 0;
    std::int64_t threads = 1;
    double work = 100;
    bool in_passing = false;     // only greedy orders and exact search, where it proves anything
    bool until_deadline = false; // whatever the budgets, where there is a deadline
    Budget::Clock::time_point deadline = Budget::Clock::time_point::max();
    std::function<bool()> poll; // whether a signal has come

    // Beyond a century there is no deadline.
    void stop_after(double seconds) {
        if (seconds < 3e9)
            deadline = Budget::Clock::now() +
                std::chrono::duration_cast<Budget::Clock::duration>(
                    std::chrono::duration<double>(seconds));
    }
    bool timed() const { return deadline != Budget::Clock::time_point::max(); }
    bool goes_on() const { return until_deadline && timed(); }
    // A budget of nodes (negative: no limit) until the deadline.
    Budget budget(std::int64_t nodes) const;
};

struct Counters {
    std::int64_t nodes = 0, steps = 0, minor_backtracks = 0, major_backtracks = 0, attempts = 0,
                 samples = 0;

    Counters &operator+=(const Counters &more) {
        nodes += more.nodes, steps += more.steps, samples += more.samples;
        minor_backtracks += more.minor_backtracks, major_backtracks += more.major_backtracks,
            attempts += more.attempts;
        return *this;
    }
};

} // namespace loadmaster::allocation
