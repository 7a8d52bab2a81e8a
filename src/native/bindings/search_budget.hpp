// The budget of a search that Python called: signals such as Ctrl-C stop it.
#pragma once

#include "bindings/arguments.hpp"
#include "common/budget.hpp"

#include <cmath>

namespace loadmaster {

// Whether a signal has come; its exception is cleared.
inline bool signalled() {
    const nanobind::gil_scoped_acquire lock;
    if (PyErr_CheckSignals() == 0) return false;
    PyErr_Clear();
    return true;
}

// Negative `nodes`: no limit. `seconds` may be infinite. The budget says whether a signal came.
inline allocation::Budget budget_of(std::int64_t nodes, double seconds) {
    require(!std::isnan(seconds) && seconds >= 0, "seconds: must not be negative");
    return allocation::Budget(nodes, seconds, signalled);
}

} // namespace loadmaster
