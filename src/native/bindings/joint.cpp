// Python binding of the joint planner's evaluation.
#include "bindings/task_graph.hpp"
#include "common/limits.hpp"
#include "joint/joint.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include <nanobind/stl/vector.h>

namespace nb = nanobind;
using namespace loadmaster;
using namespace loadmaster::joint;

namespace {

using Ints = Array<std::int64_t, 1>;
using Flags = Array<std::uint8_t, 1>;
using Floats = Array<double, 1>;
using Table = Array<double, 2>;

void require_index(
    std::span<const std::int64_t> values, std::int64_t low, std::size_t limit, const char *what) {
    for (std::int64_t value : values)
        require(value >= low && value < static_cast<std::int64_t>(limit), what);
}

constexpr double kMost = std::numeric_limits<double>::max(),
                 kLeast = std::numeric_limits<double>::min();

// A number of `loadmaster.planning.joint.problem.JointOptions`, within limits.
double checked(const char *name, double value, double high, double low = 0.0) {
    if (!(value >= low && value <= high))
        throw std::invalid_argument(std::string(name) + ": must lie between " +
            std::to_string(low) + " and " + std::to_string(high));
    return value;
}

double number(nb::handle options, const char *name, double high = kInfinite, double low = 0.0) {
    return checked(name, nb::cast<double>(options.attr(name)), high, low);
}

// One for each of so many things.
std::vector<double> numbers(
    nb::handle options, const char *name, std::size_t count, double high, double low = 0.0) {
    auto values = nb::cast<std::vector<double>>(options.attr(name));
    if (values.size() != count)
        throw std::invalid_argument(std::string(name) + ": needs one for each");
    for (double each : values) checked(name, each, high, low);
    return values;
}

// What comes of an order, as Python sees it.
struct JointEvaluation {
    std::int64_t makespan;
    nb::object core, start, end, copies, outward, stay_tensor, row_stay, in_main;
};

// A workload on a machine, checked once, to be evaluated many times. It keeps the arrays that it
// views alive.
class JointProblem {
  public:
    JointProblem(Table compute, Ints row_job, Ints row_tensor, Flags row_write,
        Array<std::int64_t, 2> moved, Ints bytes, Ints padded_bytes, Ints producer, Flags output,
        const TaskGraph &graph, Ints release, Ints available, Table energy_penalty, Floats width,
        Flags urgent, Floats read, Floats write, Floats engine, std::int64_t capacity,
        bool in_place)
        : compute_(compute), row_job_(row_job), row_tensor_(row_tensor), row_write_(row_write),
          moved_(moved), bytes_(bytes), padded_bytes_(padded_bytes), producer_(producer),
          output_(output), graph_(graph), release_(release), available_(available),
          energy_penalty_(energy_penalty), width_(width), urgent_(urgent) {
        const std::size_t jobs = compute.shape(0), cores = compute.shape(1), rows = row_job.size(),
                          tensors = bytes.size();
        require(cores >= 1 && moved.shape(1) == cores, "joint: needs a core, and columns for each");
        require(row_tensor.size() == rows && row_write.size() == rows && moved.shape(0) == rows &&
                padded_bytes.size() == tensors && producer.size() == tensors &&
                output.size() == tensors && available.size() == tensors && graph.tasks() == jobs &&
                release.size() == jobs && energy_penalty.shape(0) == jobs &&
                energy_penalty.shape(1) == cores && width.size() == jobs && urgent.size() == jobs,
            "joint: arrays of different lengths");
        require_index(view(row_job), 0, jobs, "row_job: names no job");
        require(std::is_sorted(row_job.data(), row_job.data() + rows), "row_job: must be sorted");
        require_index(view(row_tensor), 0, tensors, "row_tensor: names no tensor");
        require_index(view(producer), -1, jobs, "producer: names no job");
        require_below(view(bytes), kLargestTotal, "bytes: must not be negative");
        require_below(view(padded_bytes), kLargestTotal, "padded_bytes: must not be negative");
        require_below(view(moved), kLargestTotal, "moved: must not be negative");
        require_below(view(release), std::int64_t{1} << 53,
            "release: must lie between 0 and 2^53 picoseconds");
        require_below(view(available), std::int64_t{1} << 53,
            "available: must lie between 0 and 2^53 picoseconds");
        require_finite(view(compute), "compute: must be finite and not negative");
        require_finite(view(energy_penalty), "energy_penalty: must be finite and not negative");
        require_finite(view(width), "width: must be finite and not negative");
        require(read.size() == kLinks && write.size() == kLinks && engine.size() == kLinks,
            "links, engine: a bandwidth for each memory");
        for (std::size_t m : indices(kLinks))
            for (double speed : {view(read)[m], view(write)[m]})
                require(
                    std::isfinite(speed) && speed > 0.0, "links need a finite bandwidth above 0");
        require_finite(view(engine), "engine: must be finite and not negative");
        const std::array<double, kLinks> engines{view(engine)[kMain], view(engine)[kFast]};
        require(in_place || (engines[kMain] > 0.0 && engines[kFast] > 0.0),
            "in_place: without it, copies need an engine");
        require(capacity >= 0, "capacity: must not be negative");
        work_ = {jobs, tensors, cores, view(compute_), view(row_job_), view(row_tensor_),
            view(row_write_), view(moved_), view(bytes_), view(padded_bytes_), view(producer_),
            view(output_), graph_.successors(), view(release_), view(available_),
            view(energy_penalty_)};
        machine_ = {{view(read)[0], view(read)[1]}, {view(write)[0], view(write)[1]}, engines,
            capacity, in_place};
    }

    JointEvaluation evaluate(const Ints &order, nb::handle chosen) const {
        require_permutation(view(order), work_.jobs);
        const Options options = options_of(view(order), chosen);
        Stays stays;
        Admission admission;
        {
            nb::gil_scoped_release release;
            stays = choose_stays(work_, machine_, view(order), view(width_), options);
            admission = admit(work_, machine_, view(order), stays, options);
        }
        std::vector<std::int64_t> tensor;
        for (const Stay &stay : stays.stays) tensor.push_back(stay.tensor);
        return {admission.makespan, to_numpy(std::move(admission.core)),
            to_numpy(std::move(admission.start)), to_numpy(std::move(admission.end)),
            to_numpy(std::move(admission.copies)), to_numpy(std::move(admission.outward)),
            to_numpy(std::move(tensor)), to_numpy(std::move(stays.row_stay)),
            to_numpy(std::move(stays.in_main))};
    }

    // Keys raised to those of the jobs that each depends on, which all come before it.
    nb::object after_sources(const Floats &keys) const {
        require(keys.size() == work_.jobs, "keys: needs one for every job");
        std::vector<double> raised(keys.data(), keys.data() + work_.jobs);
        for (std::size_t job : indices(work_.jobs))
            for (std::int64_t i : row_of(work_.successors.first, job)) {
                double &later = raised[work_.successors.next[i]];
                later = std::max(later, raised[job]);
            }
        return to_numpy(std::move(raised));
    }

  private:
    // Shares in bytes and positions.
    Options options_of(std::span<const std::int64_t> order, nb::handle chosen) const {
        const auto share = [](std::int64_t bytes, double fraction) {
            return std::min(
                bytes, static_cast<std::int64_t>(static_cast<double>(bytes) * fraction));
        };
        Options options;
        options.filled_bytes =
            share(machine_.capacity, numbers(chosen, "filled_fraction", kLinks, 1.0)[kFast]);
        options.prefetched_bytes =
            share(options.filled_bytes, number(chosen, "prefetch_fraction", 1.0));
        options.release_delay_positions =
            static_cast<std::int64_t>(number(chosen, "release_delay_positions", 1e9));
        options.streamed_share = number(chosen, "streamed_share");
        options.link_prices = numbers(chosen, "link_prices", kLinks, kMost);
        options.link_load_limit = number(chosen, "link_load_limit", kInfinite, kLeast);
        options.core_wait_ratio = number(chosen, "core_wait_ratio");
        options.energy_weight = number(chosen, "energy_weight", kMost);
        options.fetch_lead = number(chosen, "fetch_lead");
        options.wait_for_releases = nb::cast<bool>(chosen.attr("wait_for_releases"));
        const nb::object prices = chosen.attr("core_prices");
        if (nb::len(prices) > 0)
            options.core_prices = numbers(chosen, "core_prices", work_.cores, kMost, kLeast);
        options.streamed_tensors =
            nb::cast<std::vector<std::int64_t>>(chosen.attr("streamed_tensors"));
        require_index(
            options.streamed_tensors, 0, work_.tensors, "streamed_tensors: names no tensor");
        options.urgent_positions =
            nb::cast<bool>(chosen.attr("urgent_networks_first")) ? std::ssize(order) : 0;
        while (options.urgent_positions > 0 && !urgent_.data()[order[options.urgent_positions - 1]])
            --options.urgent_positions;
        return options;
    }

    Table compute_;
    Ints row_job_, row_tensor_;
    Flags row_write_;
    Array<std::int64_t, 2> moved_;
    Ints bytes_, padded_bytes_, producer_;
    Flags output_;
    TaskGraph graph_;
    Ints release_, available_;
    Table energy_penalty_;
    Floats width_;
    Flags urgent_;
    Work work_;
    Machine machine_;
};

} // namespace

void bind_joint(nb::module_ &module) {
    nb::class_<JointEvaluation>(module, "JointEvaluation")
        .def_ro("makespan", &JointEvaluation::makespan)
        .def_ro("core", &JointEvaluation::core)
        .def_ro("start", &JointEvaluation::start)
        .def_ro("end", &JointEvaluation::end)
        .def_ro("copies", &JointEvaluation::copies)
        .def_ro("outward", &JointEvaluation::outward)
        .def_ro("stay_tensor", &JointEvaluation::stay_tensor)
        .def_ro("row_stay", &JointEvaluation::row_stay)
        .def_ro("in_main", &JointEvaluation::in_main);
    nb::class_<JointProblem>(module, "JointProblem")
        .def(nb::init<Table, Ints, Ints, Flags, Array<std::int64_t, 2>, Ints, Ints, Ints, Flags,
                 const TaskGraph &, Ints, Ints, Table, Floats, Flags, Floats, Floats, Floats,
                 std::int64_t, bool>(),
            nb::kw_only(), "compute"_a, "row_job"_a, "row_tensor"_a, "row_write"_a, "moved"_a,
            "bytes"_a, "padded_bytes"_a, "producer"_a, "output"_a, "graph"_a, "release"_a,
            "available"_a, "energy_penalty"_a, "width"_a, "urgent"_a, "read"_a, "write"_a,
            "engine"_a, "capacity"_a, "in_place"_a)
        .def("after_sources", &JointProblem::after_sources, "keys"_a)
        .def("evaluate", &JointProblem::evaluate, "order"_a, "options"_a);
}
