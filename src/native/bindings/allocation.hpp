// What the bindings of the allocator share.
#pragma once

#include "allocation/portfolio.hpp"
#include "allocation/solver.hpp"
#include "bindings/search_budget.hpp"

#include <cstdint>

namespace loadmaster::allocation {

using Ints = Array<std::int64_t, 1>;
using Rows = Array<std::int64_t, 2>;

inline const char *name_of(Status status) {
    switch (status) {
    case Status::optimal:
        return "optimal";
    case Status::feasible:
        return "feasible";
    case Status::infeasible:
        return "infeasible";
    default:
        return "unknown";
    }
}

// What a search counted, by name; what it did not do is left out.
inline nanobind::dict counted(const Counters &counters) {
    nanobind::dict found;
    const auto set = [&](const char *name, std::int64_t count) {
        if (count > 0) found[name] = count;
    };
    set("nodes", counters.nodes);
    set("steps", counters.steps);
    set("minor_backtracks", counters.minor_backtracks);
    set("major_backtracks", counters.major_backtracks);
    set("attempts", counters.attempts);
    set("samples", counters.samples);
    return found;
}

} // namespace loadmaster::allocation
