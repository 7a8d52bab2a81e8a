// Python bindings of the allocation kernels. Arguments are checked here, so that no kernel reads
// out of bounds or overflows.
#include "allocation/first_fit.hpp"
#include "allocation/policy.hpp"
#include "allocation/repair.hpp"
#include "allocation/solver.hpp"
#include "allocation/telamalloc.hpp"
#include "bindings/allocation.hpp"
#include "common/limits.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <optional>
#include <string>

namespace nb = nanobind;
using namespace loadmaster;
using namespace loadmaster::allocation;

namespace {

using Reals = Array<double, 1>;

// Results as Python sees them.
struct Packed {
    const char *status;
    nb::object offsets; // or None
    std::int64_t peak, bound = 0;
    nb::dict counters = {};
    bool interrupted = false;
    const char *proof = "";
    std::int64_t instant = 0;
    nb::object witnesses = nb::none();
};

Packed packed(Allocation &&answer) {
    const bool found = answer.status == Status::optimal || answer.status == Status::feasible;
    const char *proof = answer.proof == Proof::load ? "load"
        : answer.proof == Proof::pairs              ? "pairs"
        : answer.proof == Proof::exhausted          ? "exhausted"
                                                    : "";
    return {name_of(answer.status), found ? to_numpy(std::move(answer.offset)) : nb::none(),
        answer.peak, answer.bound, counted(answer.counters), answer.interrupted, proof,
        answer.load.instant, to_numpy(std::move(answer.witnesses))};
}

template <typename Row> void read_rows(const std::optional<Rows> &rows, std::vector<Row> &to) {
    constexpr std::size_t width = sizeof(Row) / sizeof(std::int64_t);
    require(!rows || rows->shape(1) == width, "rows: of another width");
    to.resize(rows ? rows->shape(0) : 0);
    if (rows) std::copy_n(rows->data(), rows->size(), reinterpret_cast<std::int64_t *>(to.data()));
}

template <typename Row> nb::object rows_of(const std::vector<Row> &rows) {
    constexpr std::size_t width = sizeof(Row) / sizeof(std::int64_t);
    const auto *cells = reinterpret_cast<const std::int64_t *>(rows.data());
    return to_numpy(
        std::vector<std::int64_t>(cells, cells + rows.size() * width), {rows.size(), width});
}

// Reduced or merged buffers as Python takes them: columns, sections, in-place pairs, conflicts.
nb::tuple columns_of(const Buffers &buffers, std::span<const std::int64_t> hint,
    const std::vector<InPlace> &in_place, const std::optional<std::vector<Pair>> &conflicts) {
    const auto copied = [](std::span<const std::int64_t> values) {
        return to_numpy(std::vector<std::int64_t>(values.begin(), values.end()));
    };
    return nb::make_tuple(copied(buffers.size), copied(buffers.alignment), copied(buffers.pin),
        copied(hint), copied(buffers.first), copied(buffers.begin), copied(buffers.end),
        copied(buffers.low), copied(buffers.high), rows_of(in_place),
        conflicts ? rows_of(*conflicts) : nb::none());
}

struct RecordedBacktracks {
    nb::object features, cost, group;
    bool interrupted;
};

// Regression trees whose arrays were checked once, so that none leads out of bounds or round in
// circles. It keeps its arrays alive.
class RegressionTrees {
  public:
    RegressionTrees(Ints root, Ints feature, Ints left, Ints right, Reals threshold, Reals value)
        : forest{view(root), view(feature), view(left), view(right), view(threshold), view(value)},
          ints_{root, feature, left, right}, reals_{threshold, value} {
        const auto nodes = std::ssize(feature);
        require(left.size() == feature.size() && right.size() == feature.size() &&
                threshold.size() == feature.size() && value.size() == feature.size(),
            "trees: arrays of different lengths");
        for (std::int64_t node : forest.root)
            require(0 <= node && node < nodes, "trees: root is no node");
        for (std::int64_t node : indices(nodes)) {
            if (forest.feature[node] < 0) continue;
            require(forest.feature[node] < static_cast<std::int64_t>(Telamalloc::kTargetFeatures),
                "trees: unknown feature");
            for (std::int64_t child : {forest.left[node], forest.right[node]})
                require(node < child && child < nodes, "trees: a child must come after its parent");
        }
    }
    const Forest forest;

  private:
    Ints ints_[4];
    Reals reals_[2];
};

// A set of buffers with their demands, checked once, to be packed in many ways. It keeps the arrays
// that it views alive. `aliases` has rows of group, member and shift, group after group.
class PackingProblem {
  public:
    PackingProblem(Ints size, Ints alignment, Ints pin, Ints first, Ints begin, Ints end, Ints low,
        Ints high, const std::optional<Ints> &hint, const std::optional<Rows> &aliases,
        const std::optional<Rows> &reserved, const std::optional<Rows> &in_place,
        const std::optional<Rows> &conflicts)
        : arrays_{size, alignment, pin, first, begin, end, low, high, hint ? *hint : Ints()},
          none_(hint ? 0 : size.size(), -1),
          demands_{{view(size), view(alignment), view(pin), view(first), view(begin), view(end),
                       view(low), view(high)},
              hint ? view(*hint) : none_} {
        require(!hint || hint->size() == size.size(), "hint: must have an element per buffer");
        std::vector<InPlace> members;
        read_rows(aliases, members);
        for (std::size_t i : indices(members.size())) {
            if (i == 0 || members[i].one != members[i - 1].one) demands_.aliases.emplace_back();
            demands_.aliases.back().push_back({members[i].other, members[i].shift});
        }
        read_rows(reserved, demands_.reserved);
        read_rows(in_place, demands_.in_place);
        if (conflicts) read_rows(conflicts, demands_.conflicts.emplace());
        check(demands_);
    }

    // The whole way to a checked answer. `capacity`: -1 for none. `own` packs in place of a
    // strategy of the portfolio.
    Packed allocate(std::int64_t capacity, std::uint64_t seed, std::int64_t threads, double seconds,
        bool until_deadline, double work, const std::string &strategy,
        const nb::object &own) const {
        require(capacity >= -1, "capacity: must not be negative");
        require(threads >= 1, "threads: must be at least 1");
        require(work > 0, "work: must be positive");
        require(seconds >= 0, "seconds: must not be negative");
        Effort effort;
        effort.seed = seed, effort.threads = threads, effort.work = work, effort.poll = signal_came;
        effort.stop_after(seconds), effort.until_deadline = until_deadline;
        Strategy chosen{strategy};
        if (!own.is_none())
            chosen.own = [&](const Reduced &reduced, const Bound &bound, std::int64_t most) {
                const nb::gil_scoped_acquire lock;
                const nb::tuple said =
                    nb::cast<nb::tuple>(own(columns_of(reduced.buffers(), reduced.rewritten.hint(),
                                                reduced.in_place, reduced.conflicts),
                        bound.bytes, most));
                Searched found;
                if (!said[0].is_none()) {
                    const Ints offset = nb::cast<Ints>(said[0]);
                    require(offset.size() == reduced.buffers().size.size(),
                        "strategy: not as many offsets as buffers");
                    found.offset.assign(view(offset).begin(), view(offset).end());
                    found.peak = peak_of(reduced.buffers(), found.offset);
                }
                found.floor = nb::cast<std::int64_t>(said[1]);
                found.interrupted = nb::cast<bool>(said[2]);
                return found;
            };
        Allocation answer;
        {
            nb::gil_scoped_release release;
            answer =
                allocation::allocate(demands_, std::min(capacity, kLargestTotal), effort, chosen);
        }
        return packed(std::move(answer));
    }

    Packed bound(std::int64_t capacity) const { return packed(bound_of(demands_, capacity)); }

    // Groups as one buffer each, then for each buffer its place among these and how far it lies
    // above that one.
    nb::tuple merged() const {
        const Clocked clocked(demands_);
        const Merged merged = merge(clocked.demands());
        std::vector<std::int64_t> place, lift;
        for (std::int64_t b : indices(buffers().count()))
            place.push_back(merged.place(b)), lift.push_back(merged.lift(b));
        return nb::make_tuple(columns_of(merged.buffers(), merged.rewritten.hint(), merged.in_place,
                                  merged.conflicts),
            to_numpy(std::move(place)), to_numpy(std::move(lift)));
    }

    nb::object orders() const {
        nb::list found;
        for (auto &order : first_fit_orders(buffers())) found.append(to_numpy(std::move(order)));
        return found;
    }

    Packed place_in_order(const Ints &order, bool best_fit) const {
        require(order.size() == buffers().size.size(), "order: must name every buffer once");
        return placed(order, kUnlimited,
            [&](const Reduced &reduced, std::span<const std::int64_t> mine, std::int64_t most) {
                Greedy greedy = allocation::place_in_order(reduced.buffers(), mine, best_fit, most);
                require(greedy.packed, "pin: pinned buffers overlap");
                return std::move(greedy.offset);
            });
    }

    nb::object place_what_fits(const Ints &order, std::int64_t capacity,
        const std::optional<Reals> &worth, std::int64_t nodes) const {
        require(!worth || worth->size() == buffers().size.size(),
            "worth: must have an element per buffer");
        return placed(order, capacity,
            [&](const Reduced &reduced, std::span<const std::int64_t> mine, std::int64_t most) {
                const Buffers &buffers = reduced.buffers();
                std::vector<std::int64_t> offset = allocation::place_what_fits(buffers, mine, most);
                // Without a clock there are no lifetimes by which to find neighbours.
                if (!worth || !buffers.near_first.empty()) return offset;
                std::vector<double> own(offset.size()); // ranges do not move
                for (std::int64_t b : indices(reduced.own))
                    own[b] = view(*worth)[reduced.merged(b)];
                place_most_worth(Neighbours(buffers), own, offset, most, nodes);
                return offset;
            })
            .offsets;
    }

    Packed greedy(double seconds, std::int64_t enough) const {
        Budget budget = budget_of(-1, seconds);
        Greedy found;
        std::int64_t bound = 0;
        {
            nb::gil_scoped_release release;
            bound = simple_bound(buffers());
            found = best_first_fit(buffers(), {}, std::max(bound, enough), budget);
        }
        if (!found.packed) found.offset.assign(buffers().size.size(), -1);
        const Status status = !found.packed ? Status::infeasible
            : found.peak == bound           ? Status::optimal
                                            : Status::feasible;
        return {name_of(status), to_numpy(std::move(found.offset)), found.peak, bound, {},
            budget.interrupted()};
    }

    // `capacity`: -1 for the smallest peak.
    Packed exact(std::int64_t capacity, const std::optional<Ints> &start, std::int64_t nodes,
        double seconds, std::uint64_t seed, std::int64_t threads) const {
        require(capacity >= -1, "capacity: must not be negative");
        require(threads >= 1, "threads: must be at least 1");
        require(!start || start->size() == buffers().size.size(),
            "start: must have an element per buffer");
        const auto from = start ? view(*start) : std::span<const std::int64_t>();
        const Settings settings{seed, threads};
        Budget budget = budget_of(nodes, seconds);
        Answer answer;
        {
            nb::gil_scoped_release release;
            answer = capacity < 0
                ? minimise(buffers(), from, settings, budget)
                : fit(buffers(), from, std::min(capacity, kLargestTotal), settings, budget);
        }
        return {name_of(answer.status), to_numpy(std::move(answer.offset)), answer.peak,
            answer.bound, counted({budget.nodes()}), budget.interrupted()};
    }

    Packed telamalloc(std::int64_t capacity, std::int64_t steps, const TelamallocFeatures *features,
        std::int64_t patience, double seconds, const RegressionTrees *trees) const {
        Budget budget = budget_of(-1, seconds);
        bool found = false;
        Counters counts;
        std::vector<std::int64_t> offset;
        {
            nb::gil_scoped_release release;
            const TelamallocOptions options{features ? *features : TelamallocFeatures{}, patience,
                steps, trees ? &trees->forest : nullptr};
            Telamalloc search(buffers(), std::min(capacity, kLargestTotal), options, budget);
            found = search.run();
            counts = search.counts();
            offset = search.offsets();
        }
        return {name_of(found ? Status::feasible : Status::unknown), to_numpy(std::move(offset)),
            capacity, 0, counted(counts), budget.interrupted()};
    }

    RecordedBacktracks record_backtracks(
        std::int64_t capacity, std::int64_t steps, std::int64_t every, std::int64_t horizon) const {
        require(every > 0 && horizon > 0, "every, horizon: must be positive");
        Budget budget = budget_of(-1, kInfinite);
        BacktrackSamples samples;
        {
            nb::gil_scoped_release release;
            TelamallocOptions options;
            options.steps = steps;
            Telamalloc(buffers(), std::min(capacity, kLargestTotal), options, budget)
                .run_with_oracle(every, horizon, samples);
        }
        const std::size_t rows = samples.cost.size();
        return {to_numpy(std::move(samples.features), {rows, Telamalloc::kTargetFeatures}),
            to_numpy(std::move(samples.cost)), to_numpy(std::move(samples.group)),
            budget.interrupted()};
    }

  private:
    const Buffers &buffers() const { return demands_.buffers; }

    // Calls `place` for the buffers that take space and the reserved ranges.
    template <typename Place>
    Packed placed(const Ints &order, std::int64_t capacity, const Place &place) const {
        std::vector<std::int64_t> at(buffers().size.size(), -1);
        for (std::int64_t b : view(order)) {
            require(
                b >= 0 && b < buffers().count() && at[b] < 0, "order: must name every buffer once");
            at[b] = 0;
        }
        std::int64_t peak = 0;
        std::vector<std::int64_t> offset;
        {
            nb::gil_scoped_release release;
            const Merged merged = merge({buffers(), demands_.hint, {}, {}, {}, demands_.conflicts});
            const Reduced reduced = without_empty(merged, joined(demands_.reserved), capacity);
            std::ranges::fill(at, -1);
            for (std::int64_t b : indices(reduced.own)) at[reduced.merged(b)] = b;
            std::vector<std::int64_t> mine;
            for (std::int64_t b : view(order))
                if (at[b] >= 0) mine.push_back(at[b]);
            for (std::int64_t b = reduced.own; b < reduced.buffers().count(); ++b)
                mine.push_back(b);
            offset = place(reduced, std::span<const std::int64_t>(mine), capacity);
            peak = reduced.peak(offset);
            offset = reduced.offsets(merged, offset);
        }
        return {name_of(Status::feasible), to_numpy(std::move(offset)), peak};
    }

    Ints arrays_[9];
    const std::vector<std::int64_t> none_;
    Demands demands_;
};

} // namespace

void bind_allocation(nb::module_ &module) {
    nb::class_<TelamallocFeatures>(module, "TelamallocFeatures")
        .def(nb::init<>())
        .def_rw("contention", &TelamallocFeatures::contention)
        .def_rw("rules", &TelamallocFeatures::rules)
        .def_rw("phases", &TelamallocFeatures::phases)
        .def_rw("propagate", &TelamallocFeatures::propagate)
        .def_rw("jump", &TelamallocFeatures::jump)
        .def_rw("prioritise", &TelamallocFeatures::prioritise)
        .def_rw("unstick", &TelamallocFeatures::unstick)
        .def_rw("lowest", &TelamallocFeatures::lowest);
    nb::class_<RegressionTrees>(module, "RegressionTrees")
        .def(nb::init<Ints, Ints, Ints, Ints, Reals, Reals>(), "root"_a, "feature"_a, "left"_a,
            "right"_a, "threshold"_a, "value"_a);
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
    nb::class_<RecordedBacktracks>(module, "RecordedBacktracks")
        .def_ro("features", &RecordedBacktracks::features)
        .def_ro("cost", &RecordedBacktracks::cost)
        .def_ro("group", &RecordedBacktracks::group)
        .def_ro("interrupted", &RecordedBacktracks::interrupted);
    nb::class_<PackingProblem>(module, "PackingProblem")
        .def(nb::init<Ints, Ints, Ints, Ints, Ints, Ints, Ints, Ints, const std::optional<Ints> &,
                 const std::optional<Rows> &, const std::optional<Rows> &,
                 const std::optional<Rows> &, const std::optional<Rows> &>(),
            "size"_a, "alignment"_a, "pin"_a, "first"_a, "begin"_a, "end"_a, "low"_a, "high"_a,
            nb::kw_only(), "hint"_a = nb::none(), "aliases"_a = nb::none(),
            "reserved"_a = nb::none(), "in_place"_a = nb::none(), "conflicts"_a = nb::none())
        .def("allocate", &PackingProblem::allocate, "capacity"_a, nb::kw_only(), "seed"_a = 0,
            "threads"_a = 1, "seconds"_a = kInfinite, "until_deadline"_a = false, "work"_a = 100.0,
            "strategy"_a = "auto", "own"_a = nb::none())
        .def("bound", &PackingProblem::bound, "capacity"_a = -1)
        .def("merged", &PackingProblem::merged)
        .def("orders", &PackingProblem::orders)
        .def("place_in_order", &PackingProblem::place_in_order, "order"_a, "best_fit"_a = false)
        .def("place_what_fits", &PackingProblem::place_what_fits, "order"_a, "capacity"_a,
            "worth"_a = nb::none(), "nodes"_a = 0)
        .def("greedy", &PackingProblem::greedy, nb::kw_only(), "seconds"_a = kInfinite,
            "enough"_a = 0)
        .def("exact", &PackingProblem::exact, "capacity"_a, "start"_a = nb::none(), nb::kw_only(),
            "nodes"_a = -1, "seconds"_a = kInfinite, "seed"_a = 0, "threads"_a = 1)
        .def("telamalloc", &PackingProblem::telamalloc, "capacity"_a, nb::kw_only(), "steps"_a,
            "features"_a = nb::none(), "patience"_a = 200, "seconds"_a = kInfinite,
            "trees"_a = nb::none())
        .def("record_backtracks", &PackingProblem::record_backtracks, "capacity"_a, nb::kw_only(),
            "steps"_a, "every"_a, "horizon"_a);
}
