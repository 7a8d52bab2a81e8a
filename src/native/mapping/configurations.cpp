#include "mapping/configurations.hpp"

#include "common/limits.hpp"
#include "common/rows.hpp"

#include "mapping/configuration_search.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace loadmaster::mapping {

namespace {

constexpr double kNone = -kInfinite;

struct Option {
    std::int32_t parts;
    double gain;
    std::int32_t job;
};

// What cores of a kind can run, without what something of no more gain and no better size can do.
std::vector<Option> options(const Prices &prices, std::size_t kind, std::int32_t grid, bool fits) {
    const std::size_t kinds = prices.cores.size(), jobs = prices.worth.size() / kinds;
    std::vector<Option> all;
    for (std::size_t job : indices(jobs)) {
        const double worth = prices.worth[job * kinds + kind],
                     demand = prices.demand[job * kinds + kind];
        if (worth <= 0.0) continue;
        const double parts = demand * grid;
        if (!fits)
            all.push_back({static_cast<std::int32_t>(std::ceil(std::min(parts, double(grid)))),
                worth - demand, static_cast<std::int32_t>(job)});
        else if (std::floor(parts) <= grid)
            all.push_back(
                {static_cast<std::int32_t>(parts), worth, static_cast<std::int32_t>(job)});
    }
    // Where demands must fit, small is good; where they must add up, large is.
    std::ranges::sort(all, [fits](const Option &a, const Option &b) {
        if (a.parts != b.parts) return fits ? a.parts < b.parts : a.parts > b.parts;
        return a.gain != b.gain ? a.gain > b.gain : a.job < b.job;
    });
    std::vector<Option> kept;
    for (const Option &option : all)
        if (kept.empty() || option.gain > kept.back().gain) kept.push_back(option);
    return kept;
}

// Dynamic program over cores and parts of the bus; returns the best gain with all parts in use, or
// allowed to be.
double pack(const Prices &prices, std::int32_t grid, bool fits, Configuration &jobs) {
    struct Step {
        std::int32_t job, from;
    };
    std::vector<double> value(grid + 1, fits ? 0.0 : kNone), next;
    value[0] = 0.0;
    std::vector<std::vector<Step>> steps;
    for (std::size_t kind : indices(prices.cores.size())) {
        const std::vector<Option> choices = options(prices, kind, grid, fits);
        for (std::int32_t core = 0; core < prices.cores[kind]; ++core) {
            next = value;
            std::vector<Step> &step = steps.emplace_back(grid + 1);
            for (std::int32_t at = 0; at <= grid; ++at) step[at] = {-1, at};
            const auto take = [&](std::int32_t from, std::int32_t to, const Option &option) {
                const double sum = value[from] + option.gain;
                if (sum > next[to]) {
                    next[to] = sum;
                    step[to] = {option.job, from};
                }
            };
            for (const Option &option : choices) {
                for (std::int32_t to = option.parts; to < grid + (fits ? 1 : 0); ++to)
                    take(to - option.parts, to, option);
                // More than all of the bus is all of it.
                if (!fits)
                    for (std::int32_t from = grid - option.parts; from <= grid; ++from)
                        take(from, grid, option);
            }
            std::swap(value, next);
        }
    }
    jobs.assign(steps.size(), -1);
    std::int32_t at = grid;
    for (std::size_t core = steps.size(); core-- > 0;) {
        jobs[core] = steps[core][at].job;
        at = steps[core][at].from;
    }
    return value[grid];
}

double best_of(
    const Prices &prices, bool fits, std::int32_t grid, std::int64_t nodes, Configuration &jobs) {
    double limit = kInfinite;
    if (nodes > 0) {
        Searched searched = search_configurations(prices, fits, nodes);
        if (searched.settled) {
            jobs = std::move(searched.jobs);
            return searched.limit;
        }
        limit = searched.limit;
    }
    return std::min(limit, pack(prices, grid, fits, jobs));
}

} // namespace

Best best_configurations(const Prices &prices, std::int32_t grid, std::int64_t nodes) {
    Best best;
    best.within = best_of(prices, true, grid, nodes, best.within_jobs);
    best.beyond = best_of(prices, false, grid, nodes, best.beyond_jobs);
    return best;
}

} // namespace loadmaster::mapping
