// Python bindings of the allocation kernels. Arguments are checked here, so that no kernel reads
// out of bounds or overflows.
#include "allocation/first_fit.hpp"
#include "allocation/demands.hpp"
#include "allocation/pairs.hpp"
#include "allocation/portfolio.hpp"
#include "allocation/skyline.hpp"
#include "allocation/solver.hpp"
#include "allocation/telamalloc.hpp"
#include "bindings/allocation.hpp"
#include "bindings/search_budget.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>

namespace nb = nanobind;
using namespace loadmaster;
using namespace loadmaster::allocation;

namespace {

using Reals = Array<double, 1>;
constexpr std::int64_t kLargestTotal = std::int64_t{1} << 62;
constexpr double kForever = std::numeric_limits<double>::infinity();

// Results as Python sees them.
struct GreedyPacking {
    const char *status;
    nb::object offsets;
    std::int64_t peak, bound;
    std::string order;
    bool interrupted;
};

struct ExactPacking {
    const char *status;
    nb::object offsets;
    std::int64_t peak, bound, nodes;
    bool interrupted;
};

struct TelamallocPacking {
    bool found;
    nb::object offsets;
    TelamallocCounts counts;
    bool interrupted;
};

struct Searched {
    nb::object offsets; // or None
    std::int64_t floor;
    Counters counters;
    bool interrupted;
};

struct RecordedBacktracks {
    nb::object features, cost, group;
    bool interrupted;
};

struct Conflict {
    bool fits;
    nb::object offsets, levels;
    std::int32_t victim;
};

// Regression trees whose arrays were checked once, so that none leads out of bounds or round in
// circles. It keeps its arrays alive.
class RegressionTrees {
  public:
    RegressionTrees(Ints root, Ints feature, Ints left, Ints right, Reals threshold, Reals value)
        : forest{view(root), view(feature), view(left), view(right), view(threshold), view(value)},
          ints_{root, feature, left, right}, reals_{threshold, value} {
        const auto nodes = static_cast<std::int64_t>(feature.size());
        require(left.size() == feature.size() && right.size() == feature.size() &&
                threshold.size() == feature.size() && value.size() == feature.size(),
            "trees: arrays of different lengths");
        for (std::int64_t node : forest.root)
            require(0 <= node && node < nodes, "trees: root is no node");
        for (std::int64_t node = 0; node < nodes; ++node) {
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

// A set of buffers, checked once, to be packed in many ways. It keeps the arrays that it views
// alive.
class PackingProblem {
  public:
    PackingProblem(
        Ints size, Ints alignment, Ints pin, Ints first, Ints begin, Ints end, Ints low, Ints high)
        : arrays_{size, alignment, pin, first, begin, end, low, high},
          buffers_{view(size), view(alignment), view(pin), view(first), view(begin), view(end),
              view(low), view(high)} {
        check(buffers_);
    }

    Load load_bound() const { return allocation::load_bound(buffers_); }

    nb::object alive_in_pairs(std::int64_t enough) const {
        Together found;
        {
            nb::gil_scoped_release release;
            found = allocation::alive_in_pairs(buffers_, enough);
        }
        return nb::make_tuple(found.bytes, column(std::move(found.buffers)));
    }

    PlacedInOrder place_in_order(const Ints &order, bool best_fit) const {
        require_order(order, buffers_);
        Greedy greedy;
        {
            nb::gil_scoped_release release;
            greedy = allocation::place_in_order(
                buffers_, view(order), best_fit, std::numeric_limits<std::int64_t>::max());
        }
        require(greedy.packed, "pin: pinned buffers overlap");
        return {column(std::move(greedy.offset)), greedy.peak};
    }

    nb::object place_what_fits(const Ints &order, std::int64_t capacity) const {
        require_order(order, buffers_);
        for (std::int64_t at : buffers_.pin) require(at < 0, "pin: no buffer may be pinned");
        std::vector<std::int64_t> offset;
        {
            nb::gil_scoped_release release;
            offset = allocation::place_what_fits(buffers_, view(order), capacity);
        }
        return column(std::move(offset));
    }

    GreedyPacking greedy(
        const std::optional<Ints> &hint, double seconds, std::int64_t enough) const {
        const auto hints = checked_hint(hint);
        Budget budget = budget_of(-1, seconds);
        Greedy found;
        std::int64_t bound = 0;
        {
            nb::gil_scoped_release release;
            bound = simple_bound(buffers_);
            found = best_first_fit(buffers_, hints, std::max(bound, enough), budget);
        }
        if (!found.packed) found.offset.assign(buffers_.size.size(), -1);
        const Status status = !found.packed ? Status::infeasible
            : found.peak == bound           ? Status::optimal
                                            : Status::feasible;
        return {name_of(status), column(std::move(found.offset)), found.peak, bound, found.order,
            budget.interrupted()};
    }

    ExactPacking fit(std::int64_t capacity, const std::optional<Ints> &hint, std::int64_t nodes,
        double seconds, std::uint64_t seed, const SearchRules *rules, std::int64_t threads) const {
        require(capacity >= 0, "capacity: must not be negative");
        return exact(hint, nodes, seconds, {seed, rules ? *rules : SearchRules{}, threads, 0},
            [&](auto hints, const Settings &settings, Budget &budget) {
                return allocation::fit(
                    buffers_, hints, std::min(capacity, kLargestTotal), settings, budget);
            });
    }

    ExactPacking minimise(const std::optional<Ints> &hint, std::int64_t nodes, double seconds,
        std::uint64_t seed, const SearchRules *rules, std::int64_t threads) const {
        return exact(hint, nodes, seconds, {seed, rules ? *rules : SearchRules{}, threads, 0},
            [&](auto hints, const Settings &settings, Budget &budget) {
                return allocation::minimise(buffers_, hints, settings, budget);
            });
    }

    TelamallocPacking telamalloc(std::int64_t capacity, std::int64_t steps,
        const TelamallocFeatures *features, std::int64_t patience, double seconds,
        const RegressionTrees *trees) const {
        Budget budget = budget_of(-1, seconds);
        bool found = false;
        TelamallocCounts counts;
        std::vector<std::int64_t> offset;
        {
            nb::gil_scoped_release release;
            const TelamallocOptions options{features ? *features : TelamallocFeatures{}, patience,
                steps, trees ? &trees->forest : nullptr};
            Telamalloc search(buffers_, std::min(capacity, kLargestTotal), options, budget);
            found = search.run();
            counts = search.counts();
            offset = search.offsets();
        }
        return {found, column(std::move(offset)), counts, budget.interrupted()};
    }

    RecordedBacktracks record_backtracks(
        std::int64_t capacity, std::int64_t steps, std::int64_t every, std::int64_t horizon) const {
        require(every > 0 && horizon > 0, "every, horizon: must be positive");
        Budget budget = budget_of(-1, kForever);
        BacktrackSamples samples;
        {
            nb::gil_scoped_release release;
            TelamallocOptions options;
            options.steps = steps;
            Telamalloc(buffers_, std::min(capacity, kLargestTotal), options, budget)
                .run_with_oracle(every, horizon, samples);
        }
        const std::size_t rows = samples.cost.size();
        return {to_numpy(std::move(samples.features), {rows, Telamalloc::kTargetFeatures}),
            column(std::move(samples.cost)), column(std::move(samples.group)),
            budget.interrupted()};
    }

    // One strategy, from scratch. `capacity`: -1 for none.
    Searched search(const std::string &strategy, std::int64_t capacity, std::int64_t bound,
        const std::optional<Ints> &hint, const PythonEffort &effort, bool in_passing) const {
        const auto hints = checked_hint(hint);
        require(capacity >= -1 && bound >= 0, "capacity, bound: must not be negative");
        Effort limits = effort.native();
        limits.in_passing = in_passing;
        require(!pins_clash(buffers_), "pin: pinned buffers overlap");
        Portfolio portfolio(buffers_, hints, {bound}, std::min(capacity, kLargestTotal), limits);
        {
            nb::gil_scoped_release release;
            if (buffers_.count() > 0) portfolio.run(strategy);
        }
        nb::object offsets =
            portfolio.found() ? column(std::vector<std::int64_t>(portfolio.offset())) : nb::none();
        return {offsets, portfolio.floor(), portfolio.counters(), portfolio.interrupted()};
    }

    Conflict first_conflict(std::int64_t capacity, const Ints &order, const Ints &offset) const {
        require(offset.size() == order.size(), "order, offset: arrays of different lengths");
        const Timeline timeline(buffers_);
        Skyline sky(buffers_, timeline, std::min(capacity, kLargestTotal));
        bool fits = sky.root_feasible(true);
        std::vector<std::int64_t> at;
        for (std::size_t i = 0; fits && i < order.size(); ++i) {
            const std::int64_t b = order.data()[i];
            require(0 <= b && b < buffers_.count() && sky.waiting(static_cast<std::int32_t>(b)),
                "order: must name buffers that wait for an offset");
            at.push_back(std::max(sky.lowest(static_cast<std::int32_t>(b)), offset.data()[i]));
            fits = sky.place(static_cast<std::int32_t>(b), at.back(), true);
        }
        std::vector<std::int64_t> levels(
            sky.conflict().levels.begin(), sky.conflict().levels.end());
        return {fits, column(std::move(at)), column(std::move(levels)), sky.conflict().victim};
    }

  private:
    std::span<const std::int64_t> checked_hint(const std::optional<Ints> &hint) const {
        require(
            !hint || hint->size() == buffers_.size.size(), "hint: must have an element per buffer");
        return hint ? view(*hint) : std::span<const std::int64_t>();
    }

    template <typename Solve>
    ExactPacking exact(const std::optional<Ints> &hint, std::int64_t nodes, double seconds,
        const Settings &settings, const Solve &solve) const {
        const auto hints = checked_hint(hint);
        require(settings.threads >= 1, "threads: must be at least 1");
        Budget budget = budget_of(nodes, seconds);
        Answer answer;
        {
            nb::gil_scoped_release release;
            answer = solve(hints, settings, budget);
        }
        return {name_of(answer.status), column(std::move(answer.offset)), answer.peak, answer.bound,
            budget.nodes(), budget.interrupted()};
    }

    Ints arrays_[8];
    const Buffers buffers_;
};

} // namespace

void bind_allocation(nb::module_ &module) {
    nb::class_<SearchRules>(module, "SearchRules")
        .def(
            "__init__",
            [](SearchRules *self, bool section_inference, bool dominance, bool level_skipping,
                bool decomposition, bool symmetry_breaking, bool failed_states,
                bool spanning_buffers, bool slot_reduction) {
                new (self) SearchRules{section_inference, dominance, level_skipping, decomposition,
                    symmetry_breaking, failed_states, spanning_buffers, slot_reduction};
            },
            nb::kw_only(), nb::arg("section_inference") = true, nb::arg("dominance") = true,
            nb::arg("level_skipping") = true, nb::arg("decomposition") = true,
            nb::arg("symmetry_breaking") = true, nb::arg("failed_states") = true,
            nb::arg("spanning_buffers") = true, nb::arg("slot_reduction") = true);
    nb::class_<TelamallocFeatures>(module, "TelamallocFeatures")
        .def(
            "__init__",
            [](TelamallocFeatures *self, bool contention, bool rules, bool phases, bool propagate,
                bool jump, bool prioritise, bool unstick, bool lowest) {
                new (self) TelamallocFeatures{
                    contention, rules, phases, propagate, jump, prioritise, unstick, lowest};
            },
            nb::kw_only(), nb::arg("contention") = true, nb::arg("rules") = true,
            nb::arg("phases") = true, nb::arg("propagate") = true, nb::arg("jump") = true,
            nb::arg("prioritise") = true, nb::arg("unstick") = true, nb::arg("lowest") = true);
    nb::class_<RegressionTrees>(module, "RegressionTrees")
        .def(nb::init<Ints, Ints, Ints, Ints, Reals, Reals>(), nb::arg("root"), nb::arg("feature"),
            nb::arg("left"), nb::arg("right"), nb::arg("threshold"), nb::arg("value"));
    nb::class_<Load>(module, "Load")
        .def_ro("bytes", &Load::bytes)
        .def_ro("instant", &Load::instant);
    nb::class_<GreedyPacking>(module, "GreedyPacking")
        .def_ro("status", &GreedyPacking::status)
        .def_ro("offsets", &GreedyPacking::offsets)
        .def_ro("peak", &GreedyPacking::peak)
        .def_ro("bound", &GreedyPacking::bound)
        .def_ro("order", &GreedyPacking::order)
        .def_ro("interrupted", &GreedyPacking::interrupted);
    nb::class_<ExactPacking>(module, "ExactPacking")
        .def_ro("status", &ExactPacking::status)
        .def_ro("offsets", &ExactPacking::offsets)
        .def_ro("peak", &ExactPacking::peak)
        .def_ro("bound", &ExactPacking::bound)
        .def_ro("nodes", &ExactPacking::nodes)
        .def_ro("interrupted", &ExactPacking::interrupted);
    nb::class_<TelamallocPacking>(module, "TelamallocPacking")
        .def_ro("found", &TelamallocPacking::found)
        .def_ro("offsets", &TelamallocPacking::offsets)
        .def_prop_ro("steps", [](const TelamallocPacking &run) { return run.counts.steps; })
        .def_prop_ro("minor_backtracks",
            [](const TelamallocPacking &run) { return run.counts.minor_backtracks; })
        .def_prop_ro("major_backtracks",
            [](const TelamallocPacking &run) { return run.counts.major_backtracks; })
        .def_prop_ro("attempts", [](const TelamallocPacking &run) { return run.counts.attempts; })
        .def_ro("interrupted", &TelamallocPacking::interrupted);
    nb::class_<Searched>(module, "Searched")
        .def_ro("offsets", &Searched::offsets)
        .def_ro("floor", &Searched::floor)
        .def_prop_ro("counters", [](const Searched &run) { return counted(run.counters); })
        .def_ro("interrupted", &Searched::interrupted);
    nb::class_<RecordedBacktracks>(module, "RecordedBacktracks")
        .def_ro("features", &RecordedBacktracks::features)
        .def_ro("cost", &RecordedBacktracks::cost)
        .def_ro("group", &RecordedBacktracks::group)
        .def_ro("interrupted", &RecordedBacktracks::interrupted);
    nb::class_<Conflict>(module, "Conflict")
        .def_ro("fits", &Conflict::fits)
        .def_ro("offsets", &Conflict::offsets)
        .def_ro("levels", &Conflict::levels)
        .def_ro("victim", &Conflict::victim);
    nb::class_<PackingProblem>(module, "PackingProblem")
        .def(nb::init<Ints, Ints, Ints, Ints, Ints, Ints, Ints, Ints>(), nb::arg("size"),
            nb::arg("alignment"), nb::arg("pin"), nb::arg("first"), nb::arg("begin"),
            nb::arg("end"), nb::arg("low"), nb::arg("high"))
        .def("load_bound", &PackingProblem::load_bound)
        .def("alive_in_pairs", &PackingProblem::alive_in_pairs, nb::arg("enough"))
        .def("place_in_order", &PackingProblem::place_in_order, nb::arg("order"),
            nb::arg("best_fit") = false)
        .def("place_what_fits", &PackingProblem::place_what_fits, nb::arg("order"),
            nb::arg("capacity"))
        .def("greedy", &PackingProblem::greedy, nb::arg("hint") = nb::none(), nb::kw_only(),
            nb::arg("seconds") = kForever, nb::arg("enough") = 0)
        .def("fit", &PackingProblem::fit, nb::arg("capacity"), nb::arg("hint") = nb::none(),
            nb::kw_only(), nb::arg("nodes") = -1, nb::arg("seconds") = kForever,
            nb::arg("seed") = 0, nb::arg("rules") = nb::none(), nb::arg("threads") = 1)
        .def("minimise", &PackingProblem::minimise, nb::arg("hint") = nb::none(), nb::kw_only(),
            nb::arg("nodes") = -1, nb::arg("seconds") = kForever, nb::arg("seed") = 0,
            nb::arg("rules") = nb::none(), nb::arg("threads") = 1)
        .def("telamalloc", &PackingProblem::telamalloc, nb::arg("capacity"), nb::kw_only(),
            nb::arg("steps"), nb::arg("features") = nb::none(), nb::arg("patience") = 200,
            nb::arg("seconds") = kForever, nb::arg("trees") = nb::none())
        .def("search", &PackingProblem::search, nb::arg("strategy"), nb::kw_only(),
            nb::arg("capacity"), nb::arg("bound"), nb::arg("hint") = nb::none(), nb::arg("effort"),
            nb::arg("in_passing") = false)
        .def("record_backtracks", &PackingProblem::record_backtracks, nb::arg("capacity"),
            nb::kw_only(), nb::arg("steps"), nb::arg("every"), nb::arg("horizon"))
        .def("first_conflict", &PackingProblem::first_conflict, nb::arg("capacity"),
            nb::arg("order"), nb::arg("offset"));
}
