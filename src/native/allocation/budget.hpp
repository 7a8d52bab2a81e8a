// When to stop: nodes (the same on every machine), seconds, or a signal such as Ctrl-C.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <utility>

namespace loadmaster::allocation {

class Budget {
  public:
    using Clock = std::chrono::steady_clock;
    // `poll` says whether a signal has come; it is asked about twenty times a second. Negative `nodes`: no limit.
    Budget(std::int64_t nodes, double seconds, std::function<bool()> poll)
        : limit_(nodes < 0 ? std::numeric_limits<std::int64_t>::max() : nodes), seconds_(seconds), poll_(std::move(poll)) {}

    // One node of search; false once the budget is spent.
    bool spend() {
        if (nodes_ >= limit_ || stopped_) return false;
        if ((++nodes_ & 127) == 0) look();
        return !stopped_;
    }
    // Work that is no node, but takes time.
    bool look() {
        const auto now = Clock::now();
        if (elapsed(now) > seconds_) stopped_ = true;
        if (now - polled_ > std::chrono::milliseconds(50)) {
            polled_ = now;
            if (poll_ && poll_()) stopped_ = interrupted_ = true;
        }
        return !stopped_;
    }
    bool spent() const { return stopped_ || nodes_ >= limit_; }
    bool interrupted() const { return interrupted_; }
    std::int64_t nodes() const { return nodes_; }
    double elapsed() const { return elapsed(Clock::now()); }

  private:
    double elapsed(Clock::time_point now) const { return std::chrono::duration<double>(now - start_).count(); }
    Clock::time_point start_ = Clock::now(), polled_ = start_;
    std::int64_t limit_, nodes_ = 0;
    double seconds_;
    std::function<bool()> poll_;
    bool stopped_ = false, interrupted_ = false;
};

}  // namespace loadmaster::allocation
