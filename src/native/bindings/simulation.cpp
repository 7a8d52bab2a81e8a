// Python bindings of the event engine. Arguments are checked here, so that no kernel reads out of
// bounds.
#include "bindings/task_graph.hpp"
#include "simulation/kernels.hpp"

#include <cmath>

namespace nb = nanobind;
using namespace loadmaster;

namespace {

using Ints = Array<std::int64_t, 1>;
using Floats = Array<double, 1>;

// Sums of durations stay exact in double precision: no makespan is longer than the work of all
// tasks, one after another.
void require_durations(std::span<const std::int64_t> picoseconds) {
    constexpr std::int64_t kLargest = std::int64_t{1} << 53;
    for (std::int64_t value : picoseconds)
        require(
            value >= 0 && value < kLargest, "duration: must lie between 0 and 2^53 picoseconds");
}

// Results as Python sees them.
struct ReplayResult {
    nb::object start, end, time, used;
    std::int64_t completed;
};

struct DispatchResult {
    nb::object core, order, start, end;
    std::int64_t makespan;
};

ReplayResult replay_of(const TaskGraph &graph, const Ints &duration, const Array<double, 2> &demand,
    std::size_t links, const Array<std::int32_t, 1> &resource, std::int32_t resources,
    const Ints &order) {
    const std::size_t tasks = graph.tasks(), columns = demand.shape(1);
    require(duration.size() == tasks && demand.shape(0) == tasks && resource.size() == tasks &&
            order.size() == tasks,
        "replay: arrays of different lengths");
    require(links <= columns, "links: more than the columns of demand");
    require_durations(view(duration));
    require_finite(view(demand), "demand: must be finite and not negative");
    require_below(view(resource), resources, "resource: out of range");
    require_permutation(view(order), tasks);
    Replay result;
    {
        nb::gil_scoped_release release;
        result = replay(view(duration), view(demand), links, columns, view(resource), resources,
            view(order), graph.successors());
    }
    const std::size_t events = result.time.size();
    return {to_numpy(std::move(result.start)), to_numpy(std::move(result.end)),
        to_numpy(std::move(result.time)), to_numpy(std::move(result.used), {events, columns}),
        result.completed};
}

DispatchResult dispatch_of(const TaskGraph &graph, const Floats &priority,
    const Array<std::int64_t, 2> &duration, const Array<double, 3> &demand, const Ints &earliest,
    bool wait_for_releases) {
    const std::size_t tasks = graph.tasks(), cores = duration.shape(1), links = demand.shape(2);
    require(priority.size() == tasks && duration.shape(0) == tasks && demand.shape(0) == tasks &&
            demand.shape(1) == cores && earliest.size() == tasks,
        "dispatch: arrays of different lengths");
    require(cores >= 1, "dispatch: needs a core");
    require_durations(view(duration));
    require_finite(view(demand), "demand: must be finite and not negative");
    for (double value : view(priority)) require(!std::isnan(value), "priority: must be a number");
    require_durations(view(earliest));
    Dispatch result;
    {
        nb::gil_scoped_release release;
        result = dispatch(view(priority), view(duration), view(demand), links,
            static_cast<std::int32_t>(cores), graph.successors(), view(earliest),
            wait_for_releases);
    }
    return {to_numpy(std::move(result.core)), to_numpy(std::move(result.order)),
        to_numpy(std::move(result.start)), to_numpy(std::move(result.end)), result.makespan};
}

} // namespace

void bind_simulation(nb::module_ &module) {
    nb::class_<ReplayResult>(module, "Replay")
        .def_ro("start", &ReplayResult::start)
        .def_ro("end", &ReplayResult::end)
        .def_ro("time", &ReplayResult::time)
        .def_ro("used", &ReplayResult::used)
        .def_ro("completed", &ReplayResult::completed);
    nb::class_<DispatchResult>(module, "Dispatch")
        .def_ro("core", &DispatchResult::core)
        .def_ro("order", &DispatchResult::order)
        .def_ro("start", &DispatchResult::start)
        .def_ro("end", &DispatchResult::end)
        .def_ro("makespan", &DispatchResult::makespan);
    nb::class_<TaskGraph>(module, "TaskGraph")
        .def(nb::init<Ints, Ints>(), "first"_a, "next"_a)
        .def("replay", &replay_of, nb::kw_only(), "duration"_a, "demand"_a, "links"_a, "resource"_a,
            "resources"_a, "order"_a)
        .def("dispatch", &dispatch_of, nb::kw_only(), "priority"_a, "duration"_a, "demand"_a,
            "release"_a, "wait_for_releases"_a = false);
}
