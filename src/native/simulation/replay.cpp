#include "simulation/event_engine.hpp"
#include "simulation/kernels.hpp"

namespace loadmaster {

Replay replay(std::span<const std::int64_t> duration, std::span<const double> demand,
    std::size_t links, std::size_t columns, std::span<const std::int32_t> resource,
    std::int32_t resources, std::span<const std::int64_t> order, const Successors &successors) {
    const std::size_t tasks = duration.size();
    Replay result;
    result.start.assign(tasks, -1);
    result.end = result.start;

    std::vector<std::vector<std::int64_t>> queue(resources);
    for (std::int64_t task : order) queue[resource[task]].push_back(task);
    std::vector<std::size_t> head(resources, 0);
    std::vector<char> busy(resources, 0);
    std::vector<std::int64_t> waiting = successors.predecessor_counts();

    EventEngine events(links, columns);
    const auto start = [&] {
        for (std::int32_t r : indices(resources)) {
            if (busy[r] || head[r] == queue[r].size() || waiting[queue[r][head[r]]] > 0) continue;
            const std::int64_t task = queue[r][head[r]++];
            busy[r] = 1;
            result.start[task] = events.now();
            events.add(task, r, duration[task], &demand[task * columns]);
        }
    };
    const auto meter = [&](std::int64_t step) {
        events.meter(step);
        result.time.push_back(events.now());
        result.used.insert(result.used.end(), events.used().begin(), events.used().end());
    };
    events.run(
        start, [] { return kNever; }, meter,
        [&](const Running &run) {
            busy[run.resource] = 0;
            result.end[run.task] = events.now();
            ++result.completed;
            for (std::int64_t i : row_of(successors.first, run.task)) --waiting[successors.next[i]];
        });
    meter(0);
    return result;
}

} // namespace loadmaster
