// The event engine: tasks that run at once share links, as in the bandwidth allocator of M3E (HPCA
// 2022), for any number of links. List scheduling, replay, joint evaluation and the model that
// chooses cuts say what starts when.
#pragma once

#include "common/limits.hpp"
#include "common/rows.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

namespace loadmaster {

constexpr double kPicoseconds = 1e12; // in a second
constexpr std::int64_t kNever = kUnlimited;

// A task occupies its resource until `remaining` picoseconds of work at full speed are done.
struct Running {
    std::int64_t task;
    std::int32_t resource;
    double remaining;
    const double *demand; // share of each link's time at full speed
    double speed;
};

// Tasks whose time has not come: (release, task), the next one first.
using Releases = std::set<std::pair<std::int64_t, std::int64_t>>;

// Whether a task that occupies an idle core until `end` takes it from tasks that are more urgent
// and will be released before: by the release of the n-th of these fewer than n other cores are
// expected to be free. Looks at a few releases per core.
template <class Urgent>
bool delays_release(const std::vector<double> &free_at, std::int64_t end, const Releases &later,
    const Urgent &is_urgent) {
    std::ptrdiff_t urgent = 0;
    std::size_t looks = 4 * free_at.size();
    for (auto at = later.begin(); looks > 0 && at != later.end() && at->first < end;
        ++at, --looks) {
        if (!is_urgent(at->second)) continue;
        // The idle core is among those that are free.
        const auto free = std::ranges::count_if(
            free_at, [&](double time) { return time <= static_cast<double>(at->first); });
        if (free <= ++urgent) return true;
    }
    return false;
}

// A demand vector has a column per link, then columns that are metered but never hold anything
// back. If the demands on a link sum to S > 1, every task that uses the link progresses at 1 / S of
// full speed; a task on several links is held back by the busiest of them. Spare bandwidth speeds
// nothing up.
//
// Time passes in whole picoseconds, rounded up at every event: a task never ends before its work is
// done, and where nothing is shared the arithmetic is exact.
class EventEngine {
  public:
    EventEngine(std::size_t links, std::size_t columns) : load_(links), used_(columns) {}

    void add(
        std::int64_t task, std::int32_t resource, std::int64_t picoseconds, const double *demand) {
        running_.push_back({task, resource, static_cast<double>(picoseconds), demand, 1.0});
    }

    // Give up what runs, so that `run` returns.
    void stop() { running_.clear(); }

    std::int64_t now() const { return now_; } // picoseconds since the start
    const std::vector<Running> &running() const { return running_; }
    // What is used of each column over the next step (of a link: the share of its time); valid
    // after `meter`.
    const std::vector<double> &used() const { return used_; }

    // Run to the end, one event after another: `start()` starts what may start now, `next()` is
    // when something comes (or `kNever`), `pass(step)` sees a step before it is made, and
    // `end(run)` what has ended with it, in the order in which it was started.
    template <typename Start, typename Next, typename Pass, typename End>
    void run(Start &&start, Next &&next, Pass &&pass, End &&end) {
        std::vector<Running> finished;
        for (;;) {
            start();
            const std::int64_t arrival = next();
            if (running_.empty()) {
                if (arrival == kNever) return;
                now_ = arrival;
                continue;
            }
            share();
            const std::int64_t step = std::min(until_next_end(), arrival - now_);
            pass(step);
            now_ += step;
            advance(step, finished);
            for (const Running &run : finished) end(run);
        }
    }

    // Average use over a step. A task that ends within its last picosecond uses less than its
    // speed: all adds up exactly.
    void meter(std::int64_t step) {
        std::ranges::fill(used_, 0.0);
        if (step == 0) return;
        for (const Running &run : running_) {
            const double progress = std::min(run.speed, run.remaining / static_cast<double>(step));
            for (std::size_t column : indices(used_.size()))
                used_[column] += run.demand[column] * progress;
        }
    }

  private:
    void share() {
        is_full_ = false;
        for (std::size_t link : indices(load_.size())) {
            double load = 0.0;
            for (const Running &run : running_) load += run.demand[link];
            load_[link] = load;
            is_full_ |= load > 1.0;
        }
        for (Running &run : running_) {
            run.speed = 1.0;
            if (!is_full_) continue;
            double busiest = 1.0;
            for (std::size_t link : indices(load_.size()))
                if (run.demand[link] > 0.0) busiest = std::max(busiest, load_[link]);
            run.speed = 1.0 / busiest;
        }
    }

    // Whole picoseconds until the first task ends, at the speeds of the last `share`.
    std::int64_t until_next_end() const {
        double step = kInfinite;
        for (const Running &run : running_)
            step = std::min(step, is_full_ ? run.remaining / run.speed : run.remaining);
        return static_cast<std::int64_t>(std::ceil(step - kRounding));
    }

    // Let `step` picoseconds pass; tasks that are done go to `finished`, in the order in which they
    // were started.
    void advance(std::int64_t step, std::vector<Running> &finished) {
        finished.clear();
        std::size_t kept = 0;
        for (Running run : running_) {
            run.remaining -= static_cast<double>(step) * run.speed;
            if (run.remaining <= kRounding)
                finished.push_back(run);
            else
                running_[kept++] = run;
        }
        running_.resize(kept);
    }

    // Picoseconds that floating point may leave of work that is done.
    static constexpr double kRounding = 1e-6;
    std::vector<Running> running_;
    std::vector<double> load_, used_;
    bool is_full_ = false; // whether some link holds tasks back
    std::int64_t now_ = 0;
};

} // namespace loadmaster
