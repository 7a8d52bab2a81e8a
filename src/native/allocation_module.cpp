// Python bindings of the allocation kernels. Arguments are checked here, so that no kernel reads out of bounds or overflows.
#include "allocation/budget.hpp"
#include "allocation/buffers.hpp"
#include "allocation/first_fit.hpp"
#include "allocation/packing_check.hpp"
#include "allocation/small.hpp"
#include "allocation/solver.hpp"
#include "arguments.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace nb = nanobind;
using namespace loadmaster;
using namespace loadmaster::allocation;

namespace {

using Ints = Array<std::int64_t, 1>;
constexpr std::int64_t kMost = std::int64_t{1} << 62;

// Keeps a running sum at or below 2^62, so that no kernel has to think of overflow.
void add_bytes(std::int64_t &sum, std::int64_t bytes) {
    if (bytes > kMost - sum) throw std::overflow_error("sizes: more than 2^62 bytes in all");
    sum += bytes;
}

void check_sections(const Buffers &b) {
    const auto sections = static_cast<std::int64_t>(b.begin.size());
    require(b.end.size() == b.begin.size() && b.low.size() == b.begin.size() && b.high.size() == b.begin.size(), "sections: arrays of different lengths");
    require(b.first.size() == b.size.size() + 1 && b.first[0] == 0, "first: must start with 0 and have one element more than size");
    for (std::size_t i = 1; i < b.first.size(); ++i) require(b.first[i] >= b.first[i - 1], "first: must not decrease");
    require(b.first.back() == sections, "first: must end with the number of sections");
    for (std::int64_t i = 0; i < b.count(); ++i)
        for (std::int64_t s = b.first[i]; s < b.first[i + 1]; ++s) {
            require(b.begin[s] <= b.end[s], "begin: must not be after end");
            require(0 <= b.low[s] && b.low[s] <= b.high[s] && b.high[s] <= b.size[i], "low, high: must lie within the buffer");
        }
}

void check_overlaps(const Buffers &b) {
    std::vector<std::pair<std::int64_t, std::int64_t>> mine;
    for (std::int64_t i = 0; i < b.count(); ++i) {
        if (b.first[i + 1] - b.first[i] < 2) continue;
        mine.clear();
        for (std::int64_t s = b.first[i]; s < b.first[i + 1]; ++s)
            if (b.begin[s] < b.end[s]) mine.emplace_back(b.begin[s], b.end[s]);
        std::sort(mine.begin(), mine.end());
        for (std::size_t k = 1; k < mine.size(); ++k) require(mine[k - 1].second <= mine[k].first, "sections: two of one buffer overlap");
    }
}

Buffers checked(const Buffers &b) {
    require(b.size.size() < (std::size_t{1} << 30) && b.begin.size() < (std::size_t{1} << 30), "too many buffers");
    require(b.alignment.size() == b.size.size() && b.pin.size() == b.size.size(), "buffers: arrays of different lengths");
    std::int64_t sum = 0, highest = 0;
    for (std::int64_t i = 0; i < b.count(); ++i) {
        require(b.size[i] >= 0, "size: must not be negative");
        require(b.alignment[i] >= 1, "alignment: must be at least 1");
        require(b.pin[i] >= -1, "pin: must be an offset, or -1 for none");
        add_bytes(sum, b.size[i]);
        add_bytes(sum, b.alignment[i] - 1);
        highest = std::max(highest, b.pin[i]);
    }
    add_bytes(sum, highest);
    check_sections(b);
    check_overlaps(b);
    return b;
}

std::span<const std::int64_t> checked_hint(const Ints &hint, const Buffers &b) {
    require(hint.size() == 0 || hint.size() == b.size.size(), "hint: must be empty or have an element per buffer");
    return view(hint);
}

Budget budget_of(std::int64_t nodes, double seconds) {
    require(!std::isnan(seconds) && seconds >= 0, "seconds: must not be negative");
    return Budget(nodes, seconds, [] {
        const nb::gil_scoped_acquire lock;
        if (PyErr_CheckSignals() == 0) return false;
        PyErr_Clear();
        return true;
    });
}

const char *name_of(Status status) {
    switch (status) {
        case Status::optimal: return "optimal";
        case Status::feasible: return "feasible";
        case Status::infeasible: return "infeasible";
        default: return "unknown";
    }
}

nb::object answer_of(Answer &&answer, const Budget &budget) {
    const std::size_t count = answer.offset.size();
    return nb::make_tuple(name_of(answer.status), to_numpy(std::move(answer.offset), {count}), answer.peak, answer.bound, budget.nodes(), budget.interrupted());
}

nb::object py_load_bound(const Ints &size, const Ints &first, const Ints &begin, const Ints &end, const Ints &low, const Ints &high) {
    const std::vector<std::int64_t> ones(size.size(), 1), none(size.size(), -1);
    const Buffers buffers = checked({view(size), ones, none, view(first), view(begin), view(end), view(low), view(high)});
    const Load load = load_bound(buffers);
    return nb::make_tuple(load.bytes, load.instant);
}

nb::object py_place_in_order(const Ints &size, const Ints &alignment, const Ints &pin, const Ints &first, const Ints &begin, const Ints &end,
                             const Ints &low, const Ints &high, const Ints &order, bool best_fit) {
    const Buffers buffers = checked({view(size), view(alignment), view(pin), view(first), view(begin), view(end), view(low), view(high)});
    require(order.size() == size.size(), "order: must name every buffer once");
    std::vector<char> seen(size.size(), 0);
    for (std::int64_t b : view(order)) require(b >= 0 && b < buffers.count() && !seen[b]++, "order: must name every buffer once");
    Greedy greedy;
    {
        nb::gil_scoped_release release;
        greedy = place_in_order(buffers, view(order), best_fit, std::numeric_limits<std::int64_t>::max());
    }
    require(greedy.packed, "pin: pinned buffers overlap");
    return nb::make_tuple(to_numpy(std::move(greedy.offset), {size.size()}), greedy.peak);
}

nb::object py_allocate_greedy(const Ints &size, const Ints &alignment, const Ints &pin, const Ints &first, const Ints &begin, const Ints &end,
                              const Ints &low, const Ints &high, const Ints &hint, double seconds) {
    const Buffers buffers = checked({view(size), view(alignment), view(pin), view(first), view(begin), view(end), view(low), view(high)});
    const auto hints = checked_hint(hint, buffers);
    Budget budget = budget_of(-1, seconds);
    Greedy greedy;
    std::int64_t bound = 0;
    {
        nb::gil_scoped_release release;
        bound = simple_bound(buffers);
        greedy = best_first_fit(buffers, hints, bound, budget);
    }
    if (!greedy.packed) greedy.offset.assign(size.size(), -1);
    const Status status = !greedy.packed ? Status::infeasible : greedy.peak == bound ? Status::optimal : Status::feasible;
    return nb::make_tuple(name_of(status), to_numpy(std::move(greedy.offset), {size.size()}), greedy.peak, bound, greedy.order.c_str());
}

nb::object py_fit_exact(const Ints &size, const Ints &alignment, const Ints &pin, const Ints &first, const Ints &begin, const Ints &end,
                        const Ints &low, const Ints &high, const Ints &hint, std::int64_t capacity, std::int64_t nodes, double seconds,
                        std::uint64_t seed, std::int64_t rules, std::int64_t threads) {
    const Buffers buffers = checked({view(size), view(alignment), view(pin), view(first), view(begin), view(end), view(low), view(high)});
    require(capacity >= 0, "capacity: must not be negative");
    const auto hints = checked_hint(hint, buffers);
    require(threads >= 1, "threads: must be at least 1");
    Budget budget = budget_of(nodes, seconds);
    Answer answer;
    {
        nb::gil_scoped_release release;
        answer = fit(buffers, hints, std::min(capacity, kMost), {seed, rules, threads}, budget);
    }
    return answer_of(std::move(answer), budget);
}

nb::object py_minimise_exact(const Ints &size, const Ints &alignment, const Ints &pin, const Ints &first, const Ints &begin, const Ints &end,
                             const Ints &low, const Ints &high, const Ints &hint, std::int64_t nodes, double seconds, std::uint64_t seed,
                             std::int64_t rules, std::int64_t threads) {
    const Buffers buffers = checked({view(size), view(alignment), view(pin), view(first), view(begin), view(end), view(low), view(high)});
    const auto hints = checked_hint(hint, buffers);
    require(threads >= 1, "threads: must be at least 1");
    Budget budget = budget_of(nodes, seconds);
    Answer answer;
    {
        nb::gil_scoped_release release;
        answer = minimise(buffers, hints, {seed, rules, threads}, budget);
    }
    return answer_of(std::move(answer), budget);
}

// Plain buffers as a problem: whatever it needs beyond the caller's arrays.
struct PlainArrays {
    explicit PlainArrays(std::size_t count) : ones(count, 1), none(count, -1), zeros(count, 0), first(count + 1) { std::iota(first.begin(), first.end(), 0); }
    Buffers buffers(const Ints &lower, const Ints &upper, const Ints &size) const {
        return {view(size), ones, none, first, view(lower), view(upper), zeros, view(size)};
    }
    std::vector<std::int64_t> ones, none, zeros, first;
};

nb::object py_allocate_small(const Ints &lower, const Ints &upper, const Ints &size) {
    constexpr std::size_t kMany = 4096;
    require(lower.size() == size.size() && upper.size() == size.size(), "buffers: arrays of different lengths");
    require(size.size() <= kMany, "buffers: too many for the small way");
    std::int64_t sum = 0;
    for (std::size_t i = 0; i < size.size(); ++i) {
        require(size.data()[i] >= 0, "size: must not be negative");
        require(lower.data()[i] <= upper.data()[i], "lower: must not be after upper");
        add_bytes(sum, size.data()[i]);
    }
    const PlainArrays arrays(size.size());
    Small small;
    {
        nb::gil_scoped_release release;
        small = allocate_small(arrays.buffers(lower, upper, size));
    }
    return nb::make_tuple(to_numpy(std::move(small.offset), {size.size()}), small.peak, small.bound);
}

bool py_packing_holds(const Ints &lower, const Ints &upper, const Ints &size, const Ints &offset, std::int64_t peak) {
    const std::size_t count = size.size();
    require(lower.size() == count && upper.size() == count && offset.size() == count, "buffers: arrays of different lengths");
    return packing_holds(lower.data(), upper.data(), size.data(), offset.data(), count, peak);
}

}  // namespace

void bind_allocation(nb::module_ &module) {
    module.def("load_bound", &py_load_bound, nb::arg("size"), nb::arg("first"), nb::arg("begin"), nb::arg("end"), nb::arg("low"), nb::arg("high"));
    module.def("place_in_order", &py_place_in_order, nb::arg("size"), nb::arg("alignment"), nb::arg("pin"), nb::arg("first"), nb::arg("begin"),
               nb::arg("end"), nb::arg("low"), nb::arg("high"), nb::arg("order"), nb::arg("best_fit"));
    module.def("allocate_greedy", &py_allocate_greedy, nb::arg("size"), nb::arg("alignment"), nb::arg("pin"), nb::arg("first"), nb::arg("begin"),
               nb::arg("end"), nb::arg("low"), nb::arg("high"), nb::arg("hint"), nb::arg("seconds"));
    module.def("fit_exact", &py_fit_exact, nb::arg("size"), nb::arg("alignment"), nb::arg("pin"), nb::arg("first"), nb::arg("begin"), nb::arg("end"),
               nb::arg("low"), nb::arg("high"), nb::arg("hint"), nb::arg("capacity"), nb::arg("nodes"), nb::arg("seconds"), nb::arg("seed"),
               nb::arg("rules"), nb::arg("threads"));
    module.def("minimise_exact", &py_minimise_exact, nb::arg("size"), nb::arg("alignment"), nb::arg("pin"), nb::arg("first"), nb::arg("begin"),
               nb::arg("end"), nb::arg("low"), nb::arg("high"), nb::arg("hint"), nb::arg("nodes"), nb::arg("seconds"), nb::arg("seed"),
               nb::arg("rules"), nb::arg("threads"));
    module.def("packing_holds", &py_packing_holds, nb::arg("lower"), nb::arg("upper"), nb::arg("size"), nb::arg("offset"), nb::arg("peak"));
    module.def("allocate_small", &py_allocate_small, nb::arg("lower"), nb::arg("upper"), nb::arg("size"));
}
