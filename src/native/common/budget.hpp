// When to stop: nodes (the same on every machine), seconds, or a signal such as Ctrl-C.
#pragma once

#include "common/limits.hpp"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <utility>

namespace loadmaster::allocation {

class Budget {
  public:
    using Clock = std::chrono::steady_clock;
    // `poll` says whether a signal has come; it is asked about twenty times a second, in the thread
    // that made the budget. Negative `nodes`: no limit.
    Budget(std::int64_t nodes, double seconds, std::function<bool()> poll)
        : limit_(nodes < 0 ? kUnlimited : nodes), seconds_(seconds), poll_(std::move(poll)) {}

    void add(std::int64_t nodes) { nodes_ += nodes; }
    // Look at the clock and at signals; false once it is time to stop.
    bool look() {
        const auto now = Clock::now();
        if (elapsed(now) > seconds_) stopped_ = true;
        if (now - polled_ > std::chrono::milliseconds(50)) {
            polled_ = now;
            if (poll_ && poll_()) stopped_ = interrupted_ = true;
        }
        return !stopped_;
    }
    bool stopped() const { return stopped_; }
    bool spent() const { return stopped_ || nodes_ >= limit_; }
    bool interrupted() const { return interrupted_; }
    std::int64_t nodes() const { return nodes_; }
    std::int64_t left() const { return limit_ - nodes_; }

  private:
    double elapsed(Clock::time_point now) const {
        return std::chrono::duration<double>(now - start_).count();
    }
    Clock::time_point start_ = Clock::now(), polled_ = start_;
    std::int64_t limit_, nodes_ = 0;
    double seconds_;
    std::function<bool()> poll_;
    std::atomic<bool> stopped_ = false;
    bool interrupted_ = false;
};

// What one attempt may spend of a budget that it shares with attempts in other threads. It stops
// early once one of those with a smaller number has settled the matter.
class Allowance {
  public:
    Allowance(Budget &budget, bool looks, std::int64_t nodes, std::int64_t number,
        const std::atomic<std::int64_t> &settled)
        : budget_(budget), looks_(looks), limit_(nodes), number_(number), settled_(settled) {}

    // One node of search; false once there is nothing left to spend.
    bool spend() {
        if (nodes_ >= limit_) return false;
        if ((++nodes_ & 127) == 0)
            go_on_ = (looks_ ? budget_.look() : !budget_.stopped()) &&
                settled_.load(std::memory_order_relaxed) > number_;
        return go_on_;
    }
    std::int64_t nodes() const { return nodes_; }

  private:
    Budget &budget_;
    const bool looks_;
    const std::int64_t limit_, number_;
    const std::atomic<std::int64_t> &settled_;
    std::int64_t nodes_ = 0;
    bool go_on_ = true;
};

} // namespace loadmaster::allocation
