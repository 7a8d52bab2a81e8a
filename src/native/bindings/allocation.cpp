// Python bindings of the allocation kernels. Arguments are checked here, so that no kernel reads out of bounds or overflows.
#include "common/budget.hpp"
#include "allocation/buffers.hpp"
#include "allocation/first_fit.hpp"
#include "allocation/packing_check.hpp"
#include "allocation/small.hpp"
#include "allocation/skyline.hpp"
#include "allocation/solver.hpp"
#include "allocation/telamalloc.hpp"
#include "bindings/arguments.hpp"

#include <algorithm>
#include <array>
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

// Sections of one buffer are at different instants, or at the same ones and in different bytes.
void check_overlaps(const Buffers &b) {
    std::vector<std::array<std::int64_t, 4>> mine;
    for (std::int64_t i = 0; i < b.count(); ++i) {
        if (b.first[i + 1] - b.first[i] < 2) continue;
        mine.clear();
        for (std::int64_t s = b.first[i]; s < b.first[i + 1]; ++s)
            if (b.begin[s] < b.end[s]) mine.push_back({b.begin[s], b.end[s], b.low[s], b.high[s]});
        std::sort(mine.begin(), mine.end());
        for (std::size_t k = 1; k < mine.size(); ++k) {
            const auto &[begin, end, low, high] = mine[k];
            const auto &before = mine[k - 1];
            const bool together = before[0] == begin && before[1] == end;
            require(together ? before[3] <= low : before[1] <= begin, "sections: two of one buffer overlap");
        }
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

void require_order(const Ints &order, const Buffers &buffers) {
    require(static_cast<std::int64_t>(order.size()) == buffers.count(), "order: must name every buffer once");
    std::vector<char> seen(order.size(), 0);
    for (std::int64_t b : view(order)) require(b >= 0 && b < buffers.count() && !seen[b]++, "order: must name every buffer once");
}

nb::object py_place_what_fits(const Ints &size, const Ints &alignment, const Ints &pin, const Ints &first, const Ints &begin, const Ints &end,
                              const Ints &low, const Ints &high, const Ints &order, std::int64_t capacity) {
    const Buffers buffers = checked({view(size), view(alignment), view(pin), view(first), view(begin), view(end), view(low), view(high)});
    require_order(order, buffers);
    for (std::int64_t at : view(pin)) require(at < 0, "pin: no buffer may be pinned");
    std::vector<std::int64_t> offset;
    {
        nb::gil_scoped_release release;
        offset = place_what_fits(buffers, view(order), capacity);
    }
    return to_numpy(std::move(offset), {size.size()});
}

nb::object py_place_in_order(const Ints &size, const Ints &alignment, const Ints &pin, const Ints &first, const Ints &begin, const Ints &end,
                             const Ints &low, const Ints &high, const Ints &order, bool best_fit) {
    const Buffers buffers = checked({view(size), view(alignment), view(pin), view(first), view(begin), view(end), view(low), view(high)});
    require_order(order, buffers);
    Greedy greedy;
    {
        nb::gil_scoped_release release;
        greedy = place_in_order(buffers, view(order), best_fit, std::numeric_limits<std::int64_t>::max());
    }
    require(greedy.packed, "pin: pinned buffers overlap");
    return nb::make_tuple(to_numpy(std::move(greedy.offset), {size.size()}), greedy.peak);
}

nb::object py_place_apart(const Ints &size, const Ints &alignment, const Ints &pin, const Ints &near_first, const Ints &near, const Ints &order,
                          bool best_fit) {
    const std::vector<std::int64_t> none(size.size() + 1, 0);
    const Buffers buffers = checked({view(size), view(alignment), view(pin), none, {}, {}, {}, {}});
    require_order(order, buffers);
    require(near_first.size() == size.size() + 1 && near_first.data()[0] == 0, "near_first: must start with 0 and have one element more than size");
    for (std::size_t i = 0; i < size.size(); ++i) require(near_first.data()[i] <= near_first.data()[i + 1], "near_first: must not decrease");
    require(near_first.data()[size.size()] == static_cast<std::int64_t>(near.size()), "near_first: must end with the number of neighbours");
    for (std::int64_t other : view(near)) require(0 <= other && other < buffers.count(), "near: must name buffers");
    Greedy greedy;
    {
        nb::gil_scoped_release release;
        greedy = place_apart(buffers, view(near_first), view(near), view(order), best_fit);
    }
    return nb::make_tuple(to_numpy(std::move(greedy.offset), {size.size()}), greedy.peak);
}

nb::object py_allocate_greedy(const Ints &size, const Ints &alignment, const Ints &pin, const Ints &first, const Ints &begin, const Ints &end,
                              const Ints &low, const Ints &high, const Ints &hint, double seconds, std::int64_t enough) {
    const Buffers buffers = checked({view(size), view(alignment), view(pin), view(first), view(begin), view(end), view(low), view(high)});
    const auto hints = checked_hint(hint, buffers);
    Budget budget = budget_of(-1, seconds);
    Greedy greedy;
    std::int64_t bound = 0;
    {
        nb::gil_scoped_release release;
        bound = simple_bound(buffers);
        greedy = best_first_fit(buffers, hints, std::max(bound, enough), budget);
    }
    if (!greedy.packed) greedy.offset.assign(size.size(), -1);
    const Status status = !greedy.packed ? Status::infeasible : greedy.peak == bound ? Status::optimal : Status::feasible;
    return nb::make_tuple(name_of(status), to_numpy(std::move(greedy.offset), {size.size()}), greedy.peak, bound, greedy.order.c_str(),
                          budget.interrupted());
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

using Reals = Array<double, 1>;

// A sum of trees that no array makes read out of bounds or run in circles.
Forest checked_forest(const Ints &root, const Ints &feature, const Ints &left, const Ints &right, const Reals &threshold, const Reals &value) {
    const auto nodes = static_cast<std::int64_t>(feature.size());
    require(left.size() == feature.size() && right.size() == feature.size() && threshold.size() == feature.size() && value.size() == feature.size(),
            "forest: arrays of different lengths");
    for (std::int64_t node : view(root)) require(0 <= node && node < nodes, "forest: root is no node");
    for (std::int64_t node = 0; node < nodes; ++node) {
        if (feature.data()[node] < 0) continue;
        require(feature.data()[node] < static_cast<std::int64_t>(Telamalloc::kTargetFeatures), "forest: unknown feature");
        for (const Ints *child : {&left, &right}) require(node < child->data()[node] && child->data()[node] < nodes, "forest: a child must come after its parent");
    }
    return {view(root), view(feature), view(left), view(right), view(threshold), view(value)};
}

nb::object counts_of(const TelamallocCounts &counts) {
    return nb::make_tuple(counts.steps, counts.minor_backtracks, counts.major_backtracks, counts.attempts);
}

nb::object py_telamalloc(const Ints &size, const Ints &alignment, const Ints &pin, const Ints &first, const Ints &begin, const Ints &end,
                         const Ints &low, const Ints &high, std::int64_t capacity, std::int64_t features, std::int64_t patience,
                         std::int64_t steps, double seconds, const Ints &root, const Ints &feature, const Ints &left, const Ints &right,
                         const Reals &threshold, const Reals &value) {
    const Buffers buffers = checked({view(size), view(alignment), view(pin), view(first), view(begin), view(end), view(low), view(high)});
    const Forest forest = checked_forest(root, feature, left, right, threshold, value);
    Budget budget = budget_of(-1, seconds);
    bool found = false;
    TelamallocCounts counts;
    std::vector<std::int64_t> offset;
    {
        nb::gil_scoped_release release;
        Telamalloc search(buffers, std::min(capacity, kMost), {features, patience, steps, root.size() ? &forest : nullptr}, budget);
        found = search.run();
        counts = search.counts();
        offset = search.offsets();
    }
    return nb::make_tuple(found, to_numpy(std::move(offset), {size.size()}), counts_of(counts), budget.interrupted());
}

nb::object py_telamalloc_lessons(const Ints &size, const Ints &alignment, const Ints &pin, const Ints &first, const Ints &begin, const Ints &end,
                                 const Ints &low, const Ints &high, std::int64_t capacity, std::int64_t steps, std::int64_t every,
                                 std::int64_t horizon) {
    const Buffers buffers = checked({view(size), view(alignment), view(pin), view(first), view(begin), view(end), view(low), view(high)});
    require(every > 0 && horizon > 0, "every, horizon: must be positive");
    Budget budget = budget_of(-1, std::numeric_limits<double>::infinity());
    Lessons lessons;
    {
        nb::gil_scoped_release release;
        Telamalloc(buffers, std::min(capacity, kMost), {-1, 200, steps, nullptr}, budget).run_with_oracle(every, horizon, lessons);
    }
    const std::size_t rows = lessons.cost.size();
    return nb::make_tuple(to_numpy(std::move(lessons.features), {rows, Telamalloc::kTargetFeatures}), to_numpy(std::move(lessons.cost), {rows}),
                          to_numpy(std::move(lessons.group), {rows}), budget.interrupted());
}

nb::object py_first_conflict(const Ints &size, const Ints &alignment, const Ints &pin, const Ints &first, const Ints &begin, const Ints &end,
                             const Ints &low, const Ints &high, std::int64_t capacity, const Ints &order, const Ints &offset) {
    const Buffers buffers = checked({view(size), view(alignment), view(pin), view(first), view(begin), view(end), view(low), view(high)});
    require(offset.size() == order.size(), "order, offset: arrays of different lengths");
    const Timeline timeline(buffers);
    Skyline sky(buffers, timeline, std::min(capacity, kMost));
    bool fine = sky.hopeful(true);
    std::vector<std::int64_t> at;
    for (std::size_t i = 0; fine && i < order.size(); ++i) {
        const std::int64_t b = order.data()[i];
        require(0 <= b && b < buffers.count() && sky.waiting(static_cast<std::int32_t>(b)), "order: must name buffers that wait for an offset");
        at.push_back(std::max(sky.lowest(static_cast<std::int32_t>(b)), offset.data()[i]));
        fine = sky.place(static_cast<std::int32_t>(b), at.back(), true);
    }
    const std::size_t count = at.size();
    std::vector<std::int64_t> levels(sky.conflict().levels.begin(), sky.conflict().levels.end());
    const std::size_t blamed = levels.size();
    return nb::make_tuple(fine, to_numpy(std::move(at), {count}), to_numpy(std::move(levels), {blamed}), sky.conflict().victim);
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
    module.def("place_apart", &py_place_apart, nb::arg("size"), nb::arg("alignment"), nb::arg("pin"), nb::arg("near_first"), nb::arg("near"),
               nb::arg("order"), nb::arg("best_fit"));
    module.def("allocate_greedy", &py_allocate_greedy, nb::arg("size"), nb::arg("alignment"), nb::arg("pin"), nb::arg("first"), nb::arg("begin"),
               nb::arg("end"), nb::arg("low"), nb::arg("high"), nb::arg("hint"), nb::arg("seconds"),
               nb::arg("enough") = 0);
    module.def("place_what_fits", &py_place_what_fits, nb::arg("size"), nb::arg("alignment"), nb::arg("pin"), nb::arg("first"), nb::arg("begin"),
               nb::arg("end"), nb::arg("low"), nb::arg("high"), nb::arg("order"), nb::arg("capacity"));
    module.def("fit_exact", &py_fit_exact, nb::arg("size"), nb::arg("alignment"), nb::arg("pin"), nb::arg("first"), nb::arg("begin"), nb::arg("end"),
               nb::arg("low"), nb::arg("high"), nb::arg("hint"), nb::arg("capacity"), nb::arg("nodes"), nb::arg("seconds"), nb::arg("seed"),
               nb::arg("rules"), nb::arg("threads"));
    module.def("minimise_exact", &py_minimise_exact, nb::arg("size"), nb::arg("alignment"), nb::arg("pin"), nb::arg("first"), nb::arg("begin"),
               nb::arg("end"), nb::arg("low"), nb::arg("high"), nb::arg("hint"), nb::arg("nodes"), nb::arg("seconds"), nb::arg("seed"),
               nb::arg("rules"), nb::arg("threads"));
    module.def("packing_holds", &py_packing_holds, nb::arg("lower"), nb::arg("upper"), nb::arg("size"), nb::arg("offset"), nb::arg("peak"));
    module.def("allocate_small", &py_allocate_small, nb::arg("lower"), nb::arg("upper"), nb::arg("size"));
    module.def("telamalloc", &py_telamalloc, nb::arg("size"), nb::arg("alignment"), nb::arg("pin"), nb::arg("first"), nb::arg("begin"),
               nb::arg("end"), nb::arg("low"), nb::arg("high"), nb::arg("capacity"), nb::arg("features"), nb::arg("patience"),
               nb::arg("steps"), nb::arg("seconds"), nb::arg("root"), nb::arg("feature"), nb::arg("left"), nb::arg("right"), nb::arg("threshold"),
               nb::arg("value"));
    module.def("telamalloc_lessons", &py_telamalloc_lessons, nb::arg("size"), nb::arg("alignment"), nb::arg("pin"), nb::arg("first"), nb::arg("begin"),
               nb::arg("end"), nb::arg("low"), nb::arg("high"), nb::arg("capacity"), nb::arg("steps"),
               nb::arg("every"), nb::arg("horizon"));
    module.def("first_conflict", &py_first_conflict, nb::arg("size"), nb::arg("alignment"), nb::arg("pin"), nb::arg("first"), nb::arg("begin"),
               nb::arg("end"), nb::arg("low"), nb::arg("high"), nb::arg("capacity"), nb::arg("order"), nb::arg("offset"));
}
