// Python binding of the joint planner's evaluation.
#include "bindings/arguments.hpp"
#include "joint/joint.hpp"

#include <cmath>

namespace nb = nanobind;
using namespace loadmaster;
using namespace loadmaster::joint;

namespace {

using Ints = Array<std::int64_t, 1>;
using Flags = Array<std::uint8_t, 1>;
using Floats = Array<double, 1>;

void require_index(std::span<const std::int64_t> values, std::int64_t low, std::size_t limit, const char *what) {
    for (std::int64_t value : values) require(value >= low && value < static_cast<std::int64_t>(limit), what);
}

void require_positive(std::span<const double> values, const char *what) {
    for (double value : values) require(std::isfinite(value) && value >= 0.0, what);
}

void require_permutation(std::span<const std::int64_t> order, std::size_t jobs) {
    require(order.size() == jobs, "order: must name every job");
    require_index(order, 0, jobs, "order: names no job");
    std::vector<char> seen(jobs, 0);
    for (std::int64_t job : order) require(!seen[job]++, "order: names a job twice");
}

// A workload on a machine, checked once, to be evaluated many times. It keeps the arrays that it views alive.
class Problem {
  public:
    Problem(Array<double, 2> compute, Ints row_job, Ints row_tensor, Flags row_write, Array<std::int64_t, 2> moved, Ints bytes, Ints room, Ints producer,
            Flags output, Ints first, Ints next, Ints release, Array<double, 2> reluctance, Floats speeds, std::int64_t capacity)
        : compute_(compute), row_job_(row_job), row_tensor_(row_tensor), row_write_(row_write), moved_(moved), bytes_(bytes), room_(room),
          producer_(producer), output_(output), first_(first), next_(next), release_(release), reluctance_(reluctance) {
        const std::size_t jobs = compute.shape(0), cores = compute.shape(1), rows = row_job.size(), tensors = bytes.size();
        require(cores >= 1 && moved.shape(1) == cores, "joint: needs a core, and columns for each");
        require(row_tensor.size() == rows && row_write.size() == rows && moved.shape(0) == rows && room.size() == tensors && producer.size() == tensors &&
                    output.size() == tensors && first.size() == jobs + 1 && speeds.size() == 5,
                "joint: arrays of different lengths");
        require_index(view(row_job), 0, jobs, "row_job: names no job");
        require_index(view(row_tensor), 0, tensors, "row_tensor: names no tensor");
        require_index(view(producer), -1, jobs, "producer: names no job");
        constexpr std::int64_t kMost = std::int64_t{1} << 62;
        require_index(view(bytes), 0, kMost, "bytes: must not be negative");
        require_index(view(room), 0, kMost, "room: must not be negative");
        require_index(view(moved), 0, kMost, "moved: must not be negative");
        require_positive(view(compute), "compute: must be finite and not negative");
        require_positive(view(speeds), "speeds: must be finite and not negative");
        for (std::size_t i = 0; i < 4; ++i) require(speeds.data()[i] > 0.0, "speeds: links need a bandwidth");
        require(capacity >= 0, "capacity: must not be negative");
        require(first.data()[0] == 0 && first.data()[jobs] == static_cast<std::int64_t>(next.size()), "first: must run from 0 to the length of next");
        for (std::size_t i = 1; i <= jobs; ++i) require(first.data()[i] >= first.data()[i - 1], "first: must not decrease");
        require_index(view(next), 0, jobs, "next: names no job");
        require(release.size() == jobs && reluctance.shape(0) == jobs && reluctance.shape(1) == cores, "joint: arrays of different lengths");
        require_index(view(release), 0, std::size_t{1} << 53, "release: must lie between 0 and 2^53 picoseconds");
        require_positive(view(reluctance), "reluctance: must be finite and not negative");
        work_ = {jobs, tensors, cores, view(compute_), view(row_job_), view(row_tensor_), view(row_write_), view(moved_), view(bytes_), view(room_),
                 view(producer_), view(output_), {view(first_), view(next_)}, view(release_), view(reluctance_)};
        const double *speed = speeds.data();
        machine_ = {speed[0], speed[1], speed[2], speed[3], speed[4], capacity};
    }

    nb::object evaluate(const Ints &order, const Floats &priority, const Floats &width, std::int64_t room, std::int64_t keep, std::int64_t lead, std::int64_t slack,
                        bool fetch_once, double fast_price, double crowd, double regret, double thrift, std::int64_t hold) const {
        require_permutation(view(order), work_.jobs);
        require(priority.size() == work_.jobs && width.size() == work_.jobs, "evaluate: arrays of different lengths");
        require_positive(view(width), "width: must be finite and not negative");
        for (double value : view(priority)) require(!std::isnan(value), "priority: must be a number");
        require(room <= machine_.capacity && keep <= room && lead <= room && slack >= 0 && fast_price >= 0.0 && crowd > 0.0 && regret >= 0.0, "evaluate: more than the capacity, or negative");
        require(std::isfinite(thrift) && thrift >= 0.0 && hold >= 0 && hold <= static_cast<std::int64_t>(work_.jobs), "evaluate: thrift or hold out of range");
        const Choices choices{room, keep, lead, slack, fetch_once, fast_price, crowd, regret, thrift, hold};
        Stays stays;
        Admission admission;
        {
            nb::gil_scoped_release release;
            stays = choose_stays(work_, machine_, view(order), view(width), choices);
            admission = admit(work_, machine_, view(order), view(priority), stays, choices);
        }
        std::vector<std::int64_t> tensor;
        for (const Stay &stay : stays.stays) tensor.push_back(stay.tensor);
        const std::size_t count = tensor.size(), tasks = admission.start.size(), copies = admission.copies.size();
        return nb::make_tuple(admission.makespan, stays.main_seconds, to_numpy(std::move(admission.core), {work_.jobs}),
                              to_numpy(std::move(admission.start), {tasks}), to_numpy(std::move(admission.end), {tasks}),
                              to_numpy(std::move(admission.copies), {copies}), to_numpy(std::move(tensor), {count}),
                              to_numpy(std::move(stays.row_stay), {work_.row_job.size()}));
    }

  private:
    Array<double, 2> compute_;
    Ints row_job_, row_tensor_;
    Flags row_write_;
    Array<std::int64_t, 2> moved_;
    Ints bytes_, room_, producer_;
    Flags output_;
    Ints first_, next_, release_;
    Array<double, 2> reluctance_;
    Work work_;
    Machine machine_;
};

}  // namespace

void bind_joint(nb::module_ &module) {
    nb::class_<Problem>(module, "JointProblem")
        .def(nb::init<Array<double, 2>, Ints, Ints, Flags, Array<std::int64_t, 2>, Ints, Ints, Ints, Flags, Ints, Ints, Ints, Array<double, 2>, Floats,
                      std::int64_t>(),
             nb::arg("compute"), nb::arg("row_job"), nb::arg("row_tensor"), nb::arg("row_write"), nb::arg("moved"), nb::arg("bytes"), nb::arg("room"),
             nb::arg("producer"), nb::arg("output"), nb::arg("first"), nb::arg("next"), nb::arg("release"), nb::arg("reluctance"), nb::arg("speeds"),
             nb::arg("capacity"))
        .def("evaluate", &Problem::evaluate, nb::arg("order"), nb::arg("priority"), nb::arg("width"), nb::arg("room"), nb::arg("keep"), nb::arg("lead"), nb::arg("slack"),
             nb::arg("fetch_once"), nb::arg("fast_price"), nb::arg("crowd"), nb::arg("regret"), nb::arg("thrift"), nb::arg("hold"));
}
