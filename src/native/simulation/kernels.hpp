// The kernels, as functions of plain arrays; module.cpp binds them to Python.
#pragma once

#include "common/rows.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace loadmaster {

// A task graph in compressed rows: successors of task t are next[first[t]] .. next[first[t + 1] -
// 1].
struct Successors {
    std::span<const std::int64_t> first, next;
    std::int64_t tasks() const { return std::ssize(first) - 1; }
    std::vector<std::int64_t> predecessor_counts() const {
        std::vector<std::int64_t> counts(first.size() - 1, 0);
        for (std::int64_t task : next) ++counts[task];
        return counts;
    }
};

struct Replay {
    std::vector<std::int64_t> start, end; // of every task, in picoseconds; -1 where it never ran
    std::vector<std::int64_t> time;       // of every event
    std::vector<double> used; // what is used of each column from there on (events x columns)
    std::int64_t completed = 0;
};

// Run every task on its given resource, each resource in the order in which its tasks appear in
// `order`. Only the first `links` of a demand's `columns` hold tasks back.
Replay replay(std::span<const std::int64_t> duration, std::span<const double> demand,
    std::size_t links, std::size_t columns, std::span<const std::int32_t> resource,
    std::int32_t resources, std::span<const std::int64_t> order, const Successors &successors);

struct Dispatch {
    std::vector<std::int32_t> core;
    std::vector<std::int64_t> order;      // tasks in the order in which they were started
    std::vector<std::int64_t> start, end; // of every task, in picoseconds
    std::int64_t makespan = 0;
};

// List scheduling: whenever a core is idle, start the ready task of highest priority whose earliest
// finish is there. No task starts before its `release`. With `wait_for_releases` idle cores wait
// for tasks of higher priority that are released before others would end.
Dispatch dispatch(std::span<const double> priority, std::span<const std::int64_t> duration,
    std::span<const double> demand, std::size_t links, std::int32_t cores,
    const Successors &successors, std::span<const std::int64_t> release, bool wait_for_releases);

} // namespace loadmaster
