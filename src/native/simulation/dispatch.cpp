#include "simulation/event_engine.hpp"
#include "simulation/kernels.hpp"

#include <queue>
#include <utility>

namespace loadmaster {

namespace {

// Ready tasks, highest priority first, ties by index.
using Ready = std::priority_queue<std::pair<double, std::int64_t>>;

struct Choice {
    std::int32_t core;
    double finish;
};

// The core on which a task would finish first, given when each core is expected to be free.
Choice earliest_finish(const std::int64_t *duration, const std::vector<double> &free_at) {
    Choice best{0, free_at[0] + static_cast<double>(duration[0])};
    for (std::int32_t core = 1; core < static_cast<std::int32_t>(free_at.size()); ++core) {
        const double finish = free_at[core] + static_cast<double>(duration[core]);
        if (finish < best.finish) best = {core, finish};
    }
    return best;
}

} // namespace

Dispatch dispatch(std::span<const double> priority, std::span<const std::int64_t> duration,
    std::span<const double> demand, std::size_t links, std::int32_t cores,
    const Successors &successors, std::span<const std::int64_t> release, bool wait_for_releases) {
    const std::int64_t tasks = successors.tasks();
    Dispatch result;
    result.core.assign(tasks, -1);
    result.start.assign(tasks, -1);
    result.end.assign(tasks, -1);
    result.order.reserve(tasks);
    std::vector<std::int64_t> waiting = successors.predecessor_counts();
    Ready ready;
    Releases later;
    EventEngine events(links, links);
    // What a task waits for is there; it may still have to wait for its own time.
    const auto enable = [&](std::int64_t task) {
        if (release[task] <= events.now())
            ready.emplace(priority[task], -task);
        else
            later.emplace(release[task], task);
    };
    for (std::int64_t task : indices(tasks))
        if (waiting[task] == 0) enable(task);

    std::vector<char> busy(cores, 0);
    std::vector<double> free_at(cores, 0.0);
    std::vector<std::pair<double, std::int64_t>> held;
    const auto start = [&] {
        for (; !later.empty() && later.begin()->first <= events.now(); later.erase(later.begin()))
            ready.emplace(priority[later.begin()->second], -later.begin()->second);
        std::ranges::fill(free_at, static_cast<double>(events.now()));
        for (const Running &run : events.running())
            free_at[run.resource] += run.remaining / run.speed;
        std::int32_t idle = cores - static_cast<std::int32_t>(events.running().size());
        // As in `start_jobs` of joint/admission.cpp. A task that would rather wait for a busy core
        // books it, so that the tasks after it see it as taken. Looking at a few tasks per core
        // bounds the work of an event; when nothing runs, the first task looked at always starts.
        held.clear();
        for (std::int32_t looks = 4 * cores; looks > 0 && idle > 0 && !ready.empty(); --looks) {
            const auto item = ready.top();
            ready.pop();
            const std::int64_t task = -item.second;
            const Choice choice = earliest_finish(&duration[task * cores], free_at);
            const bool waits = wait_for_releases && !busy[choice.core] &&
                delays_release(free_at, events.now() + duration[task * cores + choice.core], later,
                    [&](std::int64_t other) { return priority[other] > item.first; });
            if (waits) {
                held.push_back(item);
                continue;
            }
            free_at[choice.core] = choice.finish;
            if (busy[choice.core]) {
                held.push_back(item);
                continue;
            }
            busy[choice.core] = 1;
            --idle;
            result.core[task] = choice.core;
            result.start[task] = events.now();
            result.order.push_back(task);
            const std::int64_t cell = task * cores + choice.core;
            events.add(task, choice.core, duration[cell], &demand[cell * links]);
        }
        for (const auto &item : held) ready.push(item);
    };
    events.run(
        start, [&] { return later.empty() ? kNever : later.begin()->first; }, [](std::int64_t) {},
        [&](const Running &run) {
            busy[run.resource] = 0;
            result.end[run.task] = result.makespan = events.now();
            for (std::int64_t i : row_of(successors.first, run.task))
                if (--waiting[successors.next[i]] == 0) enable(successors.next[i]);
        });
    return result;
}

} // namespace loadmaster
