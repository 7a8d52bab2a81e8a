// Python bindings of the whole allocator, from demands to checked answers, and of what packs
// without a problem that was checked before.
#include "allocation/packing_check.hpp"
#include "allocation/first_fit.hpp"
#include "allocation/policy.hpp"
#include "allocation/small.hpp"
#include "bindings/allocation.hpp"
#include "loadmaster/allocate.h"

#include <nanobind/stl/string.h>

#include <cmath>
#include <numeric>

namespace nb = nanobind;
using namespace loadmaster;
using namespace loadmaster::allocation;

Effort PythonEffort::native() const {
    require(threads >= 1, "threads: must be at least 1");
    require(work > 0, "work: must be positive");
    require(!std::isnan(seconds) && seconds >= 0, "seconds: must not be negative");
    Effort effort;
    effort.seed = seed, effort.threads = threads, effort.work = work;
    // Beyond a century there is no deadline.
    if (seconds < 3e9)
        effort.deadline = Budget::Clock::now() +
            std::chrono::duration_cast<Budget::Clock::duration>(
                std::chrono::duration<double>(seconds));
    effort.poll = [] {
        const nb::gil_scoped_acquire lock;
        if (PyErr_CheckSignals() == 0) return false;
        PyErr_Clear();
        return true;
    };
    return effort;
}

namespace {

struct Packed {
    const char *status;
    nb::object offsets; // or None
    std::int64_t peak, bound;
    const char *proof;
    std::int64_t instant;
    nb::object witnesses;
    nb::dict counters;
    bool interrupted;
};

// Members of group g: `member` and `shift` at group_first[g] .. group_first[g + 1] - 1.
Packed py_allocate(const Ints &size, const Ints &alignment, const Ints &pin, const Ints &hint,
    const Ints &first, const Ints &begin, const Ints &end, const Ints &low, const Ints &high,
    const Ints &group_first, const Ints &member, const Ints &shift, const Ints &reserved_low,
    const Ints &reserved_high, std::int64_t capacity, const PythonEffort &effort) {
    Demands demands{{view(size), view(alignment), view(pin), view(first), view(begin), view(end),
                        view(low), view(high)},
        view(hint), {}, {}};
    require(hint.size() == size.size() && member.size() == shift.size() &&
            reserved_low.size() == reserved_high.size(),
        "arrays of different lengths");
    for (std::size_t g = 0; g + 1 < group_first.size(); ++g) {
        const std::int64_t from = group_first.data()[g], to = group_first.data()[g + 1];
        require(0 <= from && from < to && to <= static_cast<std::int64_t>(member.size()),
            "group_first: must increase, up to the number of members");
        auto &group = demands.aliases.emplace_back();
        for (std::int64_t k = from; k < to; ++k)
            group.push_back({member.data()[k], shift.data()[k]});
    }
    for (std::size_t r = 0; r < reserved_low.size(); ++r)
        demands.reserved.push_back({reserved_low.data()[r], reserved_high.data()[r]});
    const Effort limits = effort.native();
    Allocation answer;
    {
        nb::gil_scoped_release release;
        answer = allocate(demands, capacity, limits);
    }
    const bool packed = answer.status == Status::optimal || answer.status == Status::feasible;
    const char *proof = answer.proof == Proof::load ? "load"
        : answer.proof == Proof::pairs              ? "pairs"
        : answer.proof == Proof::exhausted          ? "exhausted"
                                                    : "";
    return {name_of(answer.status), packed ? column(std::move(answer.offset)) : nb::none(),
        answer.peak, answer.bound, proof, answer.load.instant, column(std::move(answer.witnesses)),
        counted(answer.counters), answer.interrupted};
}

PlacedInOrder py_place_apart(const Ints &size, const Ints &alignment, const Ints &pin,
    const Ints &near_first, const Ints &near, const Ints &order, bool best_fit) {
    const std::vector<std::int64_t> none(size.size() + 1, 0);
    const Buffers buffers{view(size), view(alignment), view(pin), none, {}, {}, {}, {}};
    check(buffers);
    require_order(order, buffers);
    require(near_first.size() == size.size() + 1 && near_first.data()[0] == 0,
        "near_first: must start with 0 and have one element more than size");
    for (std::size_t i = 0; i < size.size(); ++i)
        require(near_first.data()[i] <= near_first.data()[i + 1], "near_first: must not decrease");
    require(near_first.data()[size.size()] == static_cast<std::int64_t>(near.size()),
        "near_first: must end with the number of neighbours");
    for (std::int64_t other : view(near))
        require(0 <= other && other < buffers.count(), "near: must name buffers");
    Greedy greedy;
    {
        nb::gil_scoped_release release;
        greedy = place_apart(buffers, view(near_first), view(near), view(order), best_fit);
    }
    return {column(std::move(greedy.offset)), greedy.peak};
}

// Plain buffers as a problem: whatever it needs beyond the caller's arrays.
struct PlainArrays {
    explicit PlainArrays(std::size_t count)
        : ones(count, 1), none(count, -1), zeros(count, 0), first(count + 1) {
        std::iota(first.begin(), first.end(), 0);
    }
    Buffers buffers(const Ints &lower, const Ints &upper, const Ints &size) const {
        return {view(size), ones, none, first, view(lower), view(upper), zeros, view(size)};
    }
    std::vector<std::int64_t> ones, none, zeros, first;
};

nb::object py_allocate_small(const Ints &lower, const Ints &upper, const Ints &size) {
    // More buffers than this would take longer than the quick call is meant to.
    constexpr std::size_t kSmallLimit = 4096;
    require(lower.size() == size.size() && upper.size() == size.size(),
        "buffers: arrays of different lengths");
    require(size.size() <= kSmallLimit, "buffers: at most 4,096 for a quick allocation");
    const PlainArrays arrays(size.size());
    const Buffers buffers = arrays.buffers(lower, upper, size);
    check(buffers);
    Small small;
    {
        nb::gil_scoped_release release;
        small = allocate_small(buffers);
    }
    return nb::make_tuple(
        to_numpy(std::move(small.offset), {size.size()}), small.peak, small.bound);
}

bool py_packing_holds(
    const Ints &lower, const Ints &upper, const Ints &size, const Ints &offset, std::int64_t peak) {
    const std::size_t count = size.size();
    require(lower.size() == count && upper.size() == count && offset.size() == count,
        "buffers: arrays of different lengths");
    return packing_holds(lower.data(), upper.data(), size.data(), offset.data(), count, peak);
}

} // namespace

void bind_allocation_policy(nb::module_ &module) {
    nb::class_<PythonEffort>(module, "Effort")
        .def(
            "__init__",
            [](PythonEffort *self, std::uint64_t seed, std::int64_t threads, double seconds,
                double work) { new (self) PythonEffort{seed, threads, seconds, work}; },
            nb::kw_only(), nb::arg("seed") = 0, nb::arg("threads") = 1,
            nb::arg("seconds") = std::numeric_limits<double>::infinity(), nb::arg("work") = 100.0);
    nb::class_<PlacedInOrder>(module, "PlacedInOrder")
        .def_ro("offsets", &PlacedInOrder::offsets)
        .def_ro("peak", &PlacedInOrder::peak);
    nb::class_<Packed>(module, "Packed")
        .def_ro("status", &Packed::status)
        .def_ro("offsets", &Packed::offsets)
        .def_ro("peak", &Packed::peak)
        .def_ro("bound", &Packed::bound)
        .def_ro("proof", &Packed::proof)
        .def_ro("instant", &Packed::instant)
        .def_ro("witnesses", &Packed::witnesses)
        .def_ro("counters", &Packed::counters)
        .def_ro("interrupted", &Packed::interrupted);
    module.def("allocate", &py_allocate, nb::arg("size"), nb::arg("alignment"), nb::arg("pin"),
        nb::arg("hint"), nb::arg("first"), nb::arg("begin"), nb::arg("end"), nb::arg("low"),
        nb::arg("high"), nb::arg("group_first"), nb::arg("member"), nb::arg("shift"),
        nb::arg("reserved_low"), nb::arg("reserved_high"), nb::arg("capacity"), nb::arg("effort"));
    module.attr("LOADMASTER_ALLOCATE") = reinterpret_cast<std::uintptr_t>(&loadmaster_allocate);
    module.def("place_apart", &py_place_apart, nb::arg("size"), nb::arg("alignment"),
        nb::arg("pin"), nb::arg("near_first"), nb::arg("near"), nb::arg("order"),
        nb::arg("best_fit") = false);
    module.def("packing_holds", &py_packing_holds, nb::arg("lower"), nb::arg("upper"),
        nb::arg("size"), nb::arg("offset"), nb::arg("peak"));
    module.def(
        "allocate_small", &py_allocate_small, nb::arg("lower"), nb::arg("upper"), nb::arg("size"));
}
