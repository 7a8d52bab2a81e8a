// What one instant of a mapping can be worth at given prices: a configuration says which kind of
// job every core runs, or none.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace loadmaster::mapping {

// Kinds of jobs on kinds of cores, both rows x columns; there are `count[j]` jobs of kind j, and
// `cores[k]` cores are of kind k. A worth that is not positive is not for sale.
struct Prices {
    std::span<const double> worth, demand;
    std::span<const std::int32_t> count, cores;
};

// The kind of job on each core, cores of one kind together; -1 where it idles.
using Configuration = std::vector<std::int32_t>;

// The best configurations that the bus bears, and those that ask for all of it or more.
struct Best {
    double within; // at least the worth of any whose demands sum to no more than one
    double beyond; // at least the worth less the demand of any whose demands sum to one or more;
                   // -infinity if there is none
    Configuration within_jobs, beyond_jobs;
};

// Branch and bound of so many nodes for each of the two; where it does not settle, or has none, a
// dynamic program as well, which lets any number of jobs of a kind run at once and counts demands
// in parts of 1 / grid: rounded down where they must fit, rounded up where they must not. The
// limits hold however early the search ends. O(cores x grid x kinds of jobs) and O(nodes x kinds of
// jobs x kinds of cores).
Best best_configurations(const Prices &prices, std::int32_t grid, std::int64_t nodes);

} // namespace loadmaster::mapping
