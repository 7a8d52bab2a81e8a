// A group of jobs that share one bandwidth, and how long a mapping of it takes (the bandwidth
// allocator of M3E, HPCA 2022).
#pragma once

#include "common/limits.hpp"
#include "common/rows.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace loadmaster::mapping {

constexpr std::int32_t kMostJobs = 1 << 22, kMostCores = 1 << 10;
constexpr double kNever = kInfinite;

// A job on a core: how long it takes when nothing stalls it, and which share of the system
// bandwidth it then uses.
struct Cell {
    double latency, demand;
};

// Jobs are 0 .. jobs - 1; `jobs` itself is the end of a queue: it never finishes and asks for
// nothing.
struct Group {
    std::int32_t jobs, cores;
    std::int32_t width;         // cores rounded up to a power of two: the row length of `cells`
    std::vector<Cell> cells;    // (jobs + 1) x width
    std::vector<double> energy; // jobs x cores; empty where nobody asks
    std::vector<std::int32_t> stand_in; // jobs x cores: the core itself where it can run the job,
                                        // else the next one that can
    bool everywhere;                    // every core runs every job
    bool two_clocks;                    // some demands are zero and others are not

    const Cell &cell(std::int32_t job, std::int32_t core) const {
        return cells[static_cast<std::size_t>(job) * width + core];
    }
    bool runs(std::int32_t job, std::int32_t core) const {
        return cell(job, core).latency < kNever;
    }
    // Queues of all cores, one after another, each closed by the end mark.
    std::size_t length() const { return static_cast<std::size_t>(jobs) + cores; }
};

// Latencies (infinite: cannot run there) and demands, jobs x cores; every job must run somewhere.
Group make_group(std::span<const double> latency, std::span<const double> demand,
    std::span<const double> energy, std::int32_t cores);

// max(1, x) for x that is not negative; its bits compare like it does, and without a branch.
inline double at_least_one(double x) {
    return std::bit_cast<double>(
        std::max(std::bit_cast<std::int64_t>(x), std::bit_cast<std::int64_t>(1.0)));
}

// While the running jobs ask for S > 1, all of them slow alike. So there is one virtual clock on
// which every core works through its queue without ever stalling, and each unit of it takes max(1,
// S) seconds: makespan = integral of max(1, S(v)) dv. Jobs finish in the order of plain sums, and
// nothing is ever subtracted from what remains.
//
// A tournament tree over the cores finds the next to finish, and with it the sum of demands in a
// fixed order; a step is O(log cores).
template <int kLevels, bool kMetered> class Lane {
  public:
    void start(const Group &group, const std::int32_t *queues) {
        constexpr int width = 1 << kLevels;
        queues_ = queues;
        now_ = time_ = used_ = 0.0;
        std::int32_t at = 0;
        for (std::int32_t core = 0; core < width; ++core) {
            leaf(core, {kNever, 0.0});
            if (core >= group.cores) continue;
            head_[core] = at + 1;
            leaf(core, group.cell(queues[at], core));
            if (core + 1 == group.cores) break;
            while (queues[at] != group.jobs) ++at;
            ++at;
        }
        for (int core = group.cores; core < width; ++core) leaf(core, {kNever, 0.0});
        for (int node = width - 1; node > 0; --node) {
            const int winner = end_[2 * node] <= end_[2 * node + 1] ? 2 * node : 2 * node + 1;
            end_[node] = end_[winner];
            core_[node] = core_[winner];
            load_[node] = load_[2 * node] + load_[2 * node + 1];
        }
    }

    // One job finishes and its core takes up the next. Called once per job; what comes last leaves
    // all cores idle.
    void step(const Group &group) {
        const double end = std::bit_cast<double>(end_[1]), load = load_[1];
        std::int32_t core = core_[1];
        const double passed = end - now_;
        time_ += passed * at_least_one(load);
        if constexpr (kMetered) used_ += passed * load;
        now_ = end;
        const Cell &next =
            group.cells[(static_cast<std::size_t>(queues_[head_[core]++]) << kLevels) + core];
        int node = (1 << kLevels) + core;
        std::int64_t first = std::bit_cast<std::int64_t>(end + next.latency);
        double sum = next.demand;
        end_[node] = first;
        load_[node] = sum;
        for (int level = 0; level < kLevels; ++level) {
            const std::int64_t other = end_[node ^ 1];
            const std::int32_t other_core = core_[node ^ 1];
            sum += load_[node ^ 1];
            node >>= 1;
            core = other < first ? other_core : core;
            first = other < first ? other : first;
            end_[node] = first;
            core_[node] = core;
            load_[node] = sum;
        }
    }

    double time() const { return time_; }
    // Where `kMetered`: what the whole mapping takes at least, given the longest queue and the
    // traffic of all its jobs.
    double at_least(double longest, double traffic) const {
        return time_ + std::max(longest - now_, traffic - used_);
    }

  private:
    void leaf(std::int32_t core, const Cell &cell) {
        end_[(1 << kLevels) + core] = std::bit_cast<std::int64_t>(cell.latency);
        load_[(1 << kLevels) + core] = cell.demand;
        core_[(1 << kLevels) + core] = core;
    }
    std::int64_t end_[2 << kLevels]; // bits of a double that is not negative
    double load_[2 << kLevels];
    std::int32_t core_[2 << kLevels];
    std::int32_t head_[1 << kLevels] = {};
    const std::int32_t *queues_;
    double now_, time_, used_;
};

// Calls `body` with the number of tree levels as a compile-time constant.
template <typename Body> decltype(auto) with_levels(const Group &group, Body &&body) {
    switch (std::bit_width(static_cast<unsigned>(group.width)) - 1) {
    case 0:
        return body(std::integral_constant<int, 0>{});
    case 1:
        return body(std::integral_constant<int, 1>{});
    case 2:
        return body(std::integral_constant<int, 2>{});
    case 3:
        return body(std::integral_constant<int, 3>{});
    case 4:
        return body(std::integral_constant<int, 4>{});
    case 5:
        return body(std::integral_constant<int, 5>{});
    case 6:
        return body(std::integral_constant<int, 6>{});
    case 7:
        return body(std::integral_constant<int, 7>{});
    default:
        return body(std::integral_constant<int, 10>{});
    }
}

// Where some jobs ask for nothing: they run on the real clock while the others run on the virtual
// one. O(cores) a step.
double makespan_of_two_clocks(const Group &group, const std::int32_t *queues);

// Makespans of `count` mappings, their queues one set after another.
void makespans(const Group &group, const std::int32_t *queues, std::size_t count, double *out);
void makespans_on_threads(
    const Group &group, const std::int32_t *queues, std::size_t count, int threads, double *out);

} // namespace loadmaster::mapping
