// Python bindings: arrays in, arrays out, the interpreter lock released. Arguments are checked here, so that no kernel reads out of bounds.
#include "bindings/arguments.hpp"
#include "simulation/kernels.hpp"

#include <cmath>

namespace nb = nanobind;
using namespace loadmaster;

void bind_allocation(nb::module_ &module);  // allocation_module.cpp
void bind_joint(nb::module_ &module);       // joint_module.cpp
void bind_mapping(nb::module_ &module);     // mapping_module.cpp
void bind_runtime(nb::module_ &module);     // runtime_module.cpp
void bind_placement(nb::module_ &module);   // placement_module.cpp

namespace {

void require_finite(std::span<const double> values, const char *what) {
    for (double value : values) require(std::isfinite(value) && value >= 0, what);
}

// Sums of durations stay exact in double precision: no makespan is longer than the work of all tasks, one after another.
void require_durations(std::span<const std::int64_t> picoseconds) {
    constexpr std::int64_t kLargest = std::int64_t{1} << 53;
    for (std::int64_t value : picoseconds) require(value >= 0 && value < kLargest, "duration: must lie between 0 and 2^53 picoseconds");
}

template <typename T>
void require_below(std::span<const T> values, std::int64_t limit, const char *what) {
    for (T value : values) require(value >= 0 && value < limit, what);
}

Successors successors_of(const Array<std::int64_t, 1> &first, const Array<std::int64_t, 1> &next) {
    const Successors successors{view(first), view(next)};
    require(first.size() >= 1 && first.data()[0] == 0, "first: must start with 0");
    for (std::size_t i = 1; i < first.size(); ++i) require(first.data()[i] >= first.data()[i - 1], "first: must not decrease");
    require(first.data()[first.size() - 1] == static_cast<std::int64_t>(next.size()), "first: must end with the length of next");
    require_below(successors.next, successors.tasks(), "next: names no task");
    return successors;
}

nb::object py_replay(const Array<std::int64_t, 1> &duration, const Array<double, 2> &demand, std::size_t links,
                     const Array<std::int32_t, 1> &resource, std::int32_t resources, const Array<std::int64_t, 1> &order, const Array<std::int64_t, 1> &first,
                     const Array<std::int64_t, 1> &next) {
    const std::size_t tasks = duration.size(), columns = demand.shape(1);
    const Successors successors = successors_of(first, next);
    require(demand.shape(0) == tasks && resource.size() == tasks && order.size() == tasks && first.size() == tasks + 1,
            "replay: arrays of different lengths");
    require(links <= columns, "links: more than the columns of demand");
    require_durations(view(duration));
    require_finite(view(demand), "demand: must be finite and not negative");
    require_below(view(resource), resources, "resource: out of range");
    std::vector<char> seen(tasks, 0);
    require_below(view(order), static_cast<std::int64_t>(tasks), "order: names no task");
    for (std::int64_t task : view(order)) require(!seen[task]++, "order: names a task twice");
    Replay result;
    {
        nb::gil_scoped_release release;
        result = replay(view(duration), view(demand), links, columns, view(resource), resources, view(order), successors);
    }
    const std::size_t events = result.time.size();
    return nb::make_tuple(to_numpy(std::move(result.start), {tasks}), to_numpy(std::move(result.end), {tasks}),
                          to_numpy(std::move(result.time), {events}), to_numpy(std::move(result.used), {events, columns}),
                          result.completed);
}

nb::object py_dispatch(const Array<double, 1> &priority, const Array<std::int64_t, 2> &duration, const Array<double, 3> &demand,
                       const Array<std::int64_t, 1> &first, const Array<std::int64_t, 1> &next, const Array<std::int64_t, 1> &earliest) {
    const std::size_t tasks = priority.size(), cores = duration.shape(1), links = demand.shape(2);
    const Successors successors = successors_of(first, next);
    require(duration.shape(0) == tasks && demand.shape(0) == tasks && demand.shape(1) == cores && first.size() == tasks + 1 && earliest.size() == tasks,
            "dispatch: arrays of different lengths");
    require(cores >= 1, "dispatch: needs a core");
    require_durations(view(duration));
    require_finite(view(demand), "demand: must be finite and not negative");
    for (double value : view(priority)) require(!std::isnan(value), "priority: must be a number");
    require_durations(view(earliest));
    Dispatch result;
    {
        nb::gil_scoped_release release;
        result = dispatch(view(priority), view(duration), view(demand), links, static_cast<std::int32_t>(cores), successors, view(earliest));
    }
    const std::size_t started = result.order.size();
    return nb::make_tuple(to_numpy(std::move(result.core), {tasks}), to_numpy(std::move(result.order), {started}), to_numpy(std::move(result.start), {tasks}),
                          to_numpy(std::move(result.end), {tasks}), result.makespan);
}

}  // namespace

NB_MODULE(_native, module) {
    module.def("replay", &py_replay, nb::arg("duration"), nb::arg("demand"), nb::arg("links"), nb::arg("resource"),
               nb::arg("resources"), nb::arg("order"), nb::arg("first"), nb::arg("next"));
    module.def("dispatch", &py_dispatch, nb::arg("priority"), nb::arg("duration"), nb::arg("demand"), nb::arg("first"), nb::arg("next"),
               nb::arg("release"));
    bind_allocation(module);
    bind_joint(module);
    bind_mapping(module);
    bind_runtime(module);
    bind_placement(module);
}
