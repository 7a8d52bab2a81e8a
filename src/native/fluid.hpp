// Tasks that run at once share links: the bandwidth allocator of M3E (HPCA 2022), for any number of links.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace loadmaster {

// A task occupies its resource until `remaining` seconds of work at full speed are done.
struct Running {
    std::int64_t task;
    std::int32_t resource;
    double remaining;
    const double *demand;  // share of each link's time at full speed
    double speed;
};

// A demand vector has a column per link, then columns that are metered but never hold anything back.
// If the demands on a link sum to S > 1, every task that uses the link progresses at 1 / S of full speed;
// a task on several links is held back by the busiest of them. Spare bandwidth speeds nothing up.
class Fluid {
  public:
    Fluid(std::size_t links, std::size_t columns) : load_(links), used_(columns) {}

    void add(std::int64_t task, std::int32_t resource, double seconds, const double *demand) {
        running_.push_back({task, resource, seconds, demand, 1.0});
    }

    bool empty() const { return running_.empty(); }
    const std::vector<Running> &running() const { return running_; }
    // What is used of each column until the next event (of a link: the share of its time); valid after `share`.
    const std::vector<double> &used() const { return used_; }

    void share() {
        std::fill(load_.begin(), load_.end(), 0.0);
        std::fill(used_.begin(), used_.end(), 0.0);
        for (const Running &run : running_)
            for (std::size_t link = 0; link < load_.size(); ++link) load_[link] += run.demand[link];
        for (Running &run : running_) {
            double busiest = 1.0;
            for (std::size_t link = 0; link < load_.size(); ++link)
                if (run.demand[link] > 0.0) busiest = std::max(busiest, load_[link]);
            run.speed = 1.0 / busiest;
            for (std::size_t column = 0; column < used_.size(); ++column) used_[column] += run.demand[column] * run.speed;
        }
    }

    // Seconds until the first task ends, at the speeds of the last `share`.
    double until_next_end() const {
        double step = std::numeric_limits<double>::infinity();
        for (const Running &run : running_) step = std::min(step, run.remaining / run.speed);
        return step;
    }

    // Let `step` seconds pass; tasks that are done go to `finished`, in the order in which they were started.
    void advance(double step, std::vector<Running> &finished) {
        finished.clear();
        std::size_t kept = 0;
        for (Running &run : running_) {
            // The task that sets the step must end whatever rounding says: compare times, not differences.
            const bool ends = run.remaining / run.speed <= step * (1 + kSlack);
            run.remaining = std::max(0.0, run.remaining - step * run.speed);
            if (ends) finished.push_back(run);
            else running_[kept++] = run;
        }
        running_.resize(kept);
    }

  private:
    static constexpr double kSlack = 1e-12;
    std::vector<Running> running_;
    std::vector<double> load_, used_;
};

}  // namespace loadmaster
