#include "mapping/group.hpp"

#include "common/parallel.hpp"

#include <array>

namespace loadmaster::mapping {

Group make_group(std::span<const double> latency, std::span<const double> demand,
    std::span<const double> energy, std::int32_t cores) {
    Group group;
    group.cores = cores;
    group.jobs = static_cast<std::int32_t>(latency.size() / cores);
    const auto needed = std::bit_ceil(static_cast<unsigned>(cores));
    group.width = static_cast<std::int32_t>(needed <= 128 ? needed : kMostCores);
    group.cells.assign(static_cast<std::size_t>(group.jobs + 1) * group.width, {kNever, 0.0});
    group.energy.assign(energy.begin(), energy.end());
    group.stand_in.resize(latency.size());
    bool some = false, none = false;
    group.everywhere = true;
    for (std::int32_t job : indices(group.jobs)) {
        const std::size_t row = static_cast<std::size_t>(job) * cores;
        std::int32_t last = -1;
        for (std::int32_t core : indices(cores)) {
            if (latency[row + core] == kNever) {
                group.everywhere = false;
                continue;
            }
            group.cells[static_cast<std::size_t>(job) * group.width + core] = {
                latency[row + core], demand[row + core]};
            (demand[row + core] > 0.0 ? some : none) = true;
            if (last < 0) last = core;
        }
        for (std::int32_t core = cores; core-- > 0;) {
            if (group.runs(job, core)) last = core;
            group.stand_in[row + core] = last;
        }
    }
    group.two_clocks = some && none;
    return group;
}

double makespan_of_two_clocks(const Group &group, const std::int32_t *queues) {
    struct Core {
        double end; // on the clock of its job
        double demand;
        const std::int32_t *next;
    };
    std::vector<Core> cores;
    for (std::int32_t core : indices(group.cores)) {
        const Cell &cell = group.cell(*queues, core);
        cores.push_back({cell.latency, cell.demand, queues + 1});
        while (*queues++ != group.jobs) continue;
    }
    double now = 0.0, time = 0.0;
    for (std::int32_t left = group.jobs; left > 0; --left) {
        double load = 0.0;
        std::size_t sharing = 0, free = 0;
        double shared_end = kNever, free_end = kNever;
        for (std::size_t core : indices(cores.size())) {
            load += cores[core].demand;
            const bool shares = cores[core].demand > 0.0;
            std::size_t &first = shares ? sharing : free;
            double &end = shares ? shared_end : free_end;
            if (cores[core].end < end) {
                first = core;
                end = cores[core].end;
            }
        }
        const double slow = std::max(1.0, load);
        const double until_shared = (shared_end - now) * slow, until_free = free_end - time;
        std::size_t core;
        if (until_shared <= until_free) {
            now = shared_end;
            time += until_shared;
            core = sharing;
        } else {
            now += until_free / slow;
            time = free_end;
            core = free;
        }
        const Cell &next = group.cell(*cores[core].next++, static_cast<std::int32_t>(core));
        cores[core].demand = next.demand;
        cores[core].end = (next.demand > 0.0 ? now : time) + next.latency;
    }
    return time;
}

namespace {

// Several mappings step by step together: their chains of dependent operations overlap in the
// processor.
constexpr std::size_t kTogether = 4;

template <int kLevels>
void makespans_together(
    const Group &group, const std::int32_t *queues, std::size_t count, double *out) {
    std::array<Lane<kLevels, false>, kTogether> lanes;
    for (std::size_t done = 0; done < count; done += kTogether) {
        const std::size_t here = std::min(kTogether, count - done);
        for (std::size_t i : indices(kTogether))
            lanes[i].start(group, queues + (done + std::min(i, here - 1)) * group.length());
        for (std::int32_t left = group.jobs; left > 0; --left)
            for (auto &lane : lanes) lane.step(group);
        for (std::size_t i : indices(here)) out[done + i] = lanes[i].time();
    }
}

} // namespace

void makespans(const Group &group, const std::int32_t *queues, std::size_t count, double *out) {
    if (group.two_clocks) {
        for (std::size_t i : indices(count))
            out[i] = makespan_of_two_clocks(group, queues + i * group.length());
        return;
    }
    with_levels(
        group, [&](auto levels) { makespans_together<levels()>(group, queues, count, out); });
}

void makespans_on_threads(
    const Group &group, const std::int32_t *queues, std::size_t count, int threads, double *out) {
    in_parallel(count, threads, [&](std::size_t begin, std::size_t end) {
        makespans(group, queues + begin * group.length(), end - begin, out + begin);
    });
}

} // namespace loadmaster::mapping
