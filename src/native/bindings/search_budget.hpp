// The budget of a search that Python called: signals such as Ctrl-C stop it.
#pragma once

#include "bindings/arguments.hpp"
#include "common/budget.hpp"

#include <cmath>
#include <memory>

namespace loadmaster {

// Whether a signal came whose handler raised. A KeyboardInterrupt is cleared, as a search that
// stops has said all; anything else, such as SystemExit, is raised as soon as Python goes on.
inline bool signal_came() {
    const nanobind::gil_scoped_acquire lock;
    if (PyErr_CheckSignals() == 0) return false;
    if (PyErr_ExceptionMatches(PyExc_KeyboardInterrupt)) {
        PyErr_Clear();
    } else {
        const auto raise = [](void *error) {
            std::unique_ptr<nanobind::python_error>(static_cast<nanobind::python_error *>(error))
                ->restore();
            return -1;
        };
        Py_AddPendingCall(raise, new nanobind::python_error());
    }
    return true;
}

// Negative `nodes`: no limit. `seconds` may be infinite. Signals stop it.
inline allocation::Budget budget_of(std::int64_t nodes, double seconds) {
    require(!std::isnan(seconds) && seconds >= 0, "seconds: must not be negative");
    return allocation::Budget(nodes, seconds, signal_came);
}

} // namespace loadmaster
