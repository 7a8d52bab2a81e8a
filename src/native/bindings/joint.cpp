// Python binding of the joint planner's evaluation.
#include "bindings/task_graph.hpp"
#include "joint/joint.hpp"

#include <algorithm>
#include <cmath>

#include <nanobind/stl/vector.h>

namespace nb = nanobind;
using namespace loadmaster;
using namespace loadmaster::joint;

namespace {

using Ints = Array<std::int64_t, 1>;
using Flags = Array<std::uint8_t, 1>;
using Floats = Array<double, 1>;
using Table = Array<double, 2>;

constexpr std::int64_t kMostBytes = std::int64_t{1} << 62;

void require_index(
    std::span<const std::int64_t> values, std::int64_t low, std::size_t limit, const char *what) {
    for (std::int64_t value : values)
        require(value >= low && value < static_cast<std::int64_t>(limit), what);
}

// What an evaluation is free in, with shares in place of bytes and positions.
struct JointOptions {
    std::vector<double> filled_fraction; // of every memory
    double retained_fraction, prefetch_fraction;
    std::int64_t release_delay_positions;
    double streamed_share;
    double fast_link_price, occupancy_exponent, link_load_limit, core_wait_ratio, energy_weight,
        fetch_lead;
    bool urgent_networks_first;
    std::vector<double> core_prices;
    std::vector<std::int64_t> streamed_tensors;

    JointOptions(std::vector<double> filled, double retained, double prefetch, std::int64_t delay,
        double streamed, double price, double occupancy, double load, double wait, double energy,
        double lead, bool urgent, std::vector<double> prices, std::vector<std::int64_t> tensors)
        : filled_fraction(std::move(filled)), retained_fraction(retained),
          prefetch_fraction(prefetch), release_delay_positions(delay), streamed_share(streamed),
          fast_link_price(price), occupancy_exponent(occupancy), link_load_limit(load),
          core_wait_ratio(wait), energy_weight(energy), fetch_lead(lead),
          urgent_networks_first(urgent), core_prices(std::move(prices)),
          streamed_tensors(std::move(tensors)) {
        const auto is_fraction = [](double value) { return value <= 1.0 && value >= 0.0; };
        require(is_fraction(retained) && is_fraction(prefetch) &&
                filled_fraction.size() == kLinks &&
                std::all_of(filled_fraction.begin(), filled_fraction.end(), is_fraction),
            "options: fractions lie between 0 and 1, and filled_fraction has one for each memory");
        require(delay >= 0, "release_delay_positions: must not be negative");
        require(streamed >= 0.0, "streamed_share: must not be negative");
        require(price >= 0.0, "fast_link_price: must not be negative");
        require(occupancy >= 0.0 && occupancy <= 1.0, "occupancy_exponent: lies between 0 and 1");
        require(load > 0.0, "link_load_limit: must be above 0");
        require(wait >= 0.0, "core_wait_ratio: must not be negative");
        for (double each : core_prices)
            require(std::isfinite(each) && each > 0.0, "core_prices: must be finite and above 0");
        require(lead >= 0.0, "fetch_lead: must not be negative");
        require(std::isfinite(energy) && energy >= 0.0,
            "energy_weight: must be finite and not negative");
    }
};

// What comes of an order, as Python sees it.
struct JointEvaluation {
    std::int64_t makespan;
    double main_seconds;
    nb::object core, start, end, copies, outward, stay_tensor, row_stay;
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
        require_below(view(bytes), kMostBytes, "bytes: must not be negative");
        require_below(view(padded_bytes), kMostBytes, "padded_bytes: must not be negative");
        require_below(view(moved), kMostBytes, "moved: must not be negative");
        require_below(view(release), std::int64_t{1} << 53,
            "release: must lie between 0 and 2^53 picoseconds");
        require_below(view(available), std::int64_t{1} << 53,
            "available: must lie between 0 and 2^53 picoseconds");
        require_finite(view(compute), "compute: must be finite and not negative");
        require_finite(view(energy_penalty), "energy_penalty: must be finite and not negative");
        require_finite(view(width), "width: must be finite and not negative");
        require(read.size() == kLinks && write.size() == kLinks && engine.size() == kLinks,
            "links, engine: a bandwidth for each memory");
        for (std::size_t m = 0; m < kLinks; ++m)
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

    JointEvaluation evaluate(const Ints &order, const JointOptions &chosen) const {
        require_permutation(view(order), work_.jobs);
        require_index(
            chosen.streamed_tensors, 0, work_.tensors, "streamed_tensors: names no tensor");
        require(chosen.core_prices.empty() || chosen.core_prices.size() == work_.cores,
            "core_prices: needs one for every core");
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
        const std::size_t count = tensor.size(), tasks = admission.start.size(),
                          copies = admission.copies.size();
        return {admission.makespan, stays.main_seconds,
            to_numpy(std::move(admission.core), {work_.jobs}),
            to_numpy(std::move(admission.start), {tasks}),
            to_numpy(std::move(admission.end), {tasks}),
            to_numpy(std::move(admission.copies), {copies}),
            to_numpy(std::move(admission.outward), {copies}), to_numpy(std::move(tensor), {count}),
            to_numpy(std::move(stays.row_stay), {work_.row_job.size()})};
    }

    // Keys raised to those of the jobs that each depends on, which all come before it.
    nb::object after_sources(const Floats &keys) const {
        require(keys.size() == work_.jobs, "keys: needs one for every job");
        std::vector<double> raised(keys.data(), keys.data() + work_.jobs);
        for (std::size_t job = 0; job < work_.jobs; ++job)
            for (std::int64_t i = work_.successors.first[job]; i < work_.successors.first[job + 1];
                ++i) {
                double &later = raised[work_.successors.next[i]];
                later = std::max(later, raised[job]);
            }
        return to_numpy(std::move(raised), {work_.jobs});
    }

  private:
    Options options_of(std::span<const std::int64_t> order, const JointOptions &chosen) const {
        const auto share = [](std::int64_t bytes, double fraction) {
            return static_cast<std::int64_t>(static_cast<double>(bytes) * fraction);
        };
        const std::int64_t filled =
            std::min(machine_.capacity, share(machine_.capacity, chosen.filled_fraction[kFast]));
        std::int64_t urgent =
            chosen.urgent_networks_first ? static_cast<std::int64_t>(order.size()) : 0;
        while (urgent > 0 && !urgent_.data()[order[urgent - 1]]) --urgent;
        return {filled, std::min(filled, share(filled, chosen.retained_fraction)),
            std::min(filled, share(filled, chosen.prefetch_fraction)),
            chosen.release_delay_positions, chosen.streamed_share, chosen.fast_link_price,
            chosen.occupancy_exponent, chosen.link_load_limit, chosen.core_wait_ratio,
            chosen.energy_weight, urgent, chosen.fetch_lead, chosen.core_prices,
            chosen.streamed_tensors};
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
    nb::class_<JointOptions>(module, "JointOptions")
        .def(nb::init<std::vector<double>, double, double, std::int64_t, double, double, double,
                 double, double, double, double, bool, std::vector<double>,
                 std::vector<std::int64_t>>(),
            nb::kw_only(), nb::arg("filled_fraction"), nb::arg("retained_fraction"),
            nb::arg("prefetch_fraction"), nb::arg("release_delay_positions"),
            nb::arg("streamed_share"), nb::arg("fast_link_price"), nb::arg("occupancy_exponent"),
            nb::arg("link_load_limit"), nb::arg("core_wait_ratio"), nb::arg("energy_weight"),
            nb::arg("fetch_lead"), nb::arg("urgent_networks_first"), nb::arg("core_prices"),
            nb::arg("streamed_tensors"));
    nb::class_<JointEvaluation>(module, "JointEvaluation")
        .def_ro("makespan", &JointEvaluation::makespan)
        .def_ro("main_seconds", &JointEvaluation::main_seconds)
        .def_ro("core", &JointEvaluation::core)
        .def_ro("start", &JointEvaluation::start)
        .def_ro("end", &JointEvaluation::end)
        .def_ro("copies", &JointEvaluation::copies)
        .def_ro("outward", &JointEvaluation::outward)
        .def_ro("stay_tensor", &JointEvaluation::stay_tensor)
        .def_ro("row_stay", &JointEvaluation::row_stay);
    nb::class_<JointProblem>(module, "JointProblem")
        .def(nb::init<Table, Ints, Ints, Flags, Array<std::int64_t, 2>, Ints, Ints, Ints, Flags,
                 const TaskGraph &, Ints, Ints, Table, Floats, Flags, Floats, Floats, Floats,
                 std::int64_t, bool>(),
            nb::kw_only(), nb::arg("compute"), nb::arg("row_job"), nb::arg("row_tensor"),
            nb::arg("row_write"), nb::arg("moved"), nb::arg("bytes"), nb::arg("padded_bytes"),
            nb::arg("producer"), nb::arg("output"), nb::arg("graph"), nb::arg("release"),
            nb::arg("available"), nb::arg("energy_penalty"), nb::arg("width"), nb::arg("urgent"),
            nb::arg("read"), nb::arg("write"), nb::arg("engine"), nb::arg("capacity"),
            nb::arg("in_place"))
        .def("after_sources", &JointProblem::after_sources, nb::arg("keys"))
        .def("evaluate", &JointProblem::evaluate, nb::arg("order"), nb::arg("options"));
}
