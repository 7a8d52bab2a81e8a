// Python bindings of the placement kernels. Arguments are checked here, so that no kernel reads out
// of bounds.
#include "bindings/arguments.hpp"
#include "bindings/search_budget.hpp"
#include "common/limits.hpp"
#include "placement/address_search.hpp"
#include "placement/bound.hpp"
#include "placement/schedule.hpp"
#include "placement/search.hpp"

#include <cmath>
#include <optional>
#include <nanobind/stl/optional.h>

namespace nb = nanobind;
using namespace loadmaster;
using namespace loadmaster::placement;

namespace {

using Ints = Array<std::int64_t, 1>;
using Floats = Array<double, 1>;
using Bits = Array<std::uint8_t, 1>;

void require_seconds(std::span<const double> seconds, bool finite, const char *what) {
    for (double value : seconds) require(value >= 0 && (!finite || value < 1e15), what);
}

// A path for every tensor, as Python holds it and as kernels see it.
class TensorPaths {
  public:
    TensorPaths(nb::object fast, nb::object stays, nb::object tail)
        : fast(fast), stays(stays), tail(tail) {
        require(nb::try_cast(fast, fast_, false) && nb::try_cast(stays, stays_, false) &&
                nb::try_cast(tail, tail_, false),
            "paths: need contiguous arrays of uint8");
        require(
            fast_.size() == stays_.size(), "paths: fast and stays must have an element per use");
    }
    TensorPaths(Paths &&paths)
        : TensorPaths(to_numpy(std::move(paths.fast)), to_numpy(std::move(paths.stays)),
              to_numpy(std::move(paths.tail))) {}

    PathsView views() const { return {view(fast_), view(stays_), view(tail_)}; }
    Paths copy() const {
        const auto vector = [](const Bits &bits) {
            return std::vector<std::uint8_t>(bits.data(), bits.data() + bits.size());
        };
        return {vector(fast_), vector(stays_), vector(tail_)};
    }
    nb::object fast, stays, tail;

  private:
    Bits fast_, stays_, tail_;
};

// Seconds of each tensor's copies on either kind of engine.
class CopyEngines {
  public:
    CopyEngines(Floats block_in, Floats block_out, Floats overlap_in, Floats overlap_out,
        double drain, bool shared, bool overlaps)
        : links{view(block_in), view(block_out), view(overlap_in), view(overlap_out), drain, shared,
              overlaps},
          held_{block_in, block_out, overlap_in, overlap_out} {
        require(std::isfinite(drain) && drain > 0, "drain: needs a bandwidth");
        for (const auto &values :
            {links.block_in, links.block_out, links.overlap_in, links.overlap_out}) {
            require(
                values.size() == links.block_in.size(), "copies: must have an element per tensor");
            require_seconds(values, true, "copies: seconds out of range");
        }
    }
    const Links links;

  private:
    Floats held_[4];
};

struct UsePrices {
    Floats memory, fast, slow;
};

// Results as Python sees them.
struct ScheduledCopies {
    double seconds;
    nb::object tensor, to_fast, start, end, due, stay_tensor, stay_start, stay_end, algorithms;
};

struct FoundAddresses {
    nb::object offsets;
    bool stopped;
};

struct FoundPaths {
    TensorPaths paths;
    double seconds;
    std::int64_t nodes, rounds;
    bool stopped;
};

// The arrays of a problem, checked against each other once; kernels take views of them.
class PlacementProblem {
  public:
    PlacementProblem(Ints first, Bits live_range, Ints size, Ints kernel, Ints operand, Bits reads,
        Bits writes, Floats fast, Floats slow, Floats to_fast, Floats to_slow, Ints limit,
        Ints first_operand, Ints use, Ints first_algorithm, Floats seconds, Ints workspace,
        Ints first_entry, Floats table)
        : t_{view(first), view(live_range), view(size), view(kernel), view(operand), view(reads),
              view(writes), view(fast), view(slow), view(to_fast), view(to_slow)},
          k_{view(limit), view(first_operand), view(use), view(first_algorithm), view(seconds),
              view(workspace), view(first_entry), view(table)},
          ints_{first, size, kernel, operand, limit, first_operand, use, first_algorithm, workspace,
              first_entry},
          floats_{fast, slow, to_fast, to_slow, seconds, table}, bits_{live_range, reads, writes} {
        check_kernels();
        check_tensors();
    }

    double bound(const Ints &memory, const Array<std::int32_t, 2> &shares, const Floats &surcharge,
        const Bits &noted, int shift, bool moves) const {
        const Prices prices{view(memory), view(shares), view(surcharge), view(noted), shift};
        require(memory.size() == kernels() && shares.shape(0) == kernels() &&
                shares.shape(1) == 3 && surcharge.size() == uses() && noted.size() == uses(),
            "prices: arrays of wrong lengths");
        require(shift >= 0 && shift <= 110, "shift: out of range");
        require_sums(prices);
        nb::gil_scoped_release release;
        return lagrangian_bound(t_, k_, prices, moves);
    }

    ScheduledCopies schedule(const CopyEngines &engines, const TensorPaths &paths,
        const std::optional<Ints> &offsets) const {
        check(engines);
        check(paths);
        Schedule schedule(t_, k_, engines.links);
        if (!offsets) return scheduled(schedule, schedule.run(paths.views()));
        const bool possible = schedule.list(paths.views());
        check(schedule, *offsets);
        return scheduled(schedule, possible ? schedule.run_at(view(*offsets)) : kInfinite);
    }

    FoundAddresses search_addresses(const CopyEngines &engines, const TensorPaths &paths,
        const Ints &offsets, std::int64_t capacity, std::int64_t alignment, double goal,
        std::uint64_t seed, std::int64_t nodes, double seconds) const {
        check(engines);
        check(paths);
        Schedule schedule(t_, k_, engines.links);
        require(schedule.list(paths.views()), "paths: exceed a limit");
        check(schedule, offsets);
        require(alignment >= 1 && capacity >= 0 && capacity <= kLargestTotal,
            "capacity, alignment: out of range");
        allocation::Budget budget = budget_of(nodes, seconds);
        FoundOffsets found;
        {
            nb::gil_scoped_release release;
            found = placement::search_addresses(
                schedule, view(offsets), capacity, alignment, goal, seed, budget);
        }
        return {to_numpy(std::move(found.offset)), budget.stopped()};
    }

    FoundPaths search(const UsePrices &prices, const TensorPaths &guess, const TensorPaths &base,
        bool moves, const CopyEngines &engines, double goal, std::uint64_t seed, std::int64_t nodes,
        double seconds) const {
        check(prices);
        check(guess);
        check(base);
        check(engines);
        const LpRounding rounding{
            view(prices.memory), view(prices.fast), view(prices.slow), guess.views()};
        const Paths start = base.copy();
        allocation::Budget budget = budget_of(nodes, seconds);
        Paths found;
        {
            nb::gil_scoped_release release;
            found = placement::search(
                t_, k_, rounding, start, moves, engines.links, goal, seed, budget);
        }
        const double reached = found.seconds;
        const std::int64_t rounds = found.rounds;
        return {std::move(found), reached, budget.nodes(), rounds, budget.stopped()};
    }

  private:
    std::size_t tensors() const { return t_.size.size(); }

    ScheduledCopies scheduled(const Schedule &schedule, double seconds) const {
        std::vector<std::int64_t> tensor, start, end, due;
        std::vector<std::uint8_t> to_fast;
        for (std::int64_t c : schedule.order()) {
            const ScheduledCopy &copy = schedule.copies()[c];
            tensor.push_back(copy.tensor);
            to_fast.push_back(copy.to_fast);
            start.push_back(copy.start);
            end.push_back(copy.end);
            due.push_back(copy.due);
        }
        std::vector<std::int64_t> stay_tensor, stay_start, stay_end;
        for (const Block &block : schedule.blocks()) {
            if (block.tensor < 0) continue;
            stay_tensor.push_back(block.tensor);
            stay_start.push_back(block.start);
            stay_end.push_back(block.end);
        }
        return {seconds, to_numpy(std::move(tensor)), to_numpy(std::move(to_fast)),
            to_numpy(std::move(start)), to_numpy(std::move(end)), to_numpy(std::move(due)),
            to_numpy(std::move(stay_tensor)), to_numpy(std::move(stay_start)),
            to_numpy(std::move(stay_end)), to_numpy(std::vector(schedule.algorithms()))};
    }

    void check(const Schedule &schedule, const Ints &offsets) const {
        require(offsets.size() == schedule.blocks().size(),
            "offsets: must have an element per stay and kernel");
        for (std::int64_t offset : view(offsets))
            require(offset >= 0 && offset <= kLargestTotal, "offsets: out of range");
    }

    std::size_t uses() const { return t_.kernel.size(); }
    std::size_t kernels() const { return k_.limit.size(); }

    void check(const TensorPaths &paths) const {
        const PathsView views = paths.views();
        require(views.fast.size() == uses() && views.tail.size() == tensors(),
            "paths: arrays of wrong lengths");
    }

    void check(const UsePrices &prices) const {
        require(prices.memory.size() == kernels() && prices.fast.size() == uses() &&
                prices.slow.size() == uses(),
            "prices: arrays of wrong lengths");
    }

    void check(const CopyEngines &engines) const {
        require(
            engines.links.block_in.size() == tensors(), "copies: must have an element per tensor");
    }

    void require_sums(const Prices &prices) const {
        // Sums stay below 2^124: prices times all bytes, and all seconds.
        double bytes = 1, dearest = 0, seconds = 0;
        for (std::int64_t size : t_.size) bytes += static_cast<double>(size);
        for (std::size_t k : indices(prices.memory.size())) {
            const std::int32_t *share = prices.shares.data() + 3 * k;
            require(prices.memory[k] >= 0, "memory: must not be negative");
            require(share[0] >= 0 && share[1] >= 0 && share[2] >= 0 &&
                    std::int64_t{share[0]} + share[1] + share[2] <= 1 << kShareBits,
                "shares: must be at least 0 and at most 1 together");
            double most = bytes + static_cast<double>(k_.limit[k]);
            for (std::int64_t a : row_of(k_.first_algorithm, k))
                most += static_cast<double>(k_.workspace[a]);
            dearest += static_cast<double>(prices.memory[k]) * most;
        }
        for (std::size_t k : indices(prices.memory.size())) {
            std::int64_t told_apart = 0;
            for (std::int64_t o : row_of(k_.first_operand, k))
                told_apart += prices.noted[k_.use[o]] != 0;
            require(told_apart <= 20, "noted: at most 20 operands of a kernel");
        }
        const auto add = [&](std::span<const double> values) {
            for (double value : values)
                if (std::isfinite(value)) seconds += std::abs(value);
        };
        for (const auto &values :
            {t_.fast, t_.slow, t_.to_fast, t_.to_slow, k_.seconds, k_.table, prices.surcharge}) {
            for (double value : values) require(!std::isnan(value), "prices: must be numbers");
            add(values);
        }
        // A copy out may follow the last use, too.
        add(t_.to_slow);
        require(dearest < 0x1p122 && std::ldexp(seconds, prices.shift) < 0x1p122,
            "shift: sums would overflow");
    }

    void check_kernels() const {
        const std::size_t kernels = k_.limit.size();
        require_rows(k_.first_operand, kernels, k_.use.size(),
            "first_operand: must rise from 0 to the number of operands");
        require_rows(k_.first_algorithm, kernels, k_.seconds.size(),
            "first_algorithm: must rise from 0 to the number of algorithms");
        require_rows(k_.first_entry, kernels, k_.table.size(),
            "first_entry: must rise from 0 to the number of entries");
        require(k_.workspace.size() == k_.seconds.size(),
            "workspace: must have an element per algorithm");
        for (std::int64_t bytes : k_.limit)
            require(bytes >= 0 && bytes <= kLargestTotal, "limit: out of range");
        for (std::int64_t bytes : k_.workspace)
            require(bytes >= 0 && bytes <= kLargestTotal, "workspace: out of range");
        require_seconds(k_.seconds, true, "seconds: out of range");
        require_seconds(k_.table, false, "table: must not be negative");
        for (std::size_t i : indices(kernels)) {
            const std::int64_t operands = k_.first_operand[i + 1] - k_.first_operand[i];
            require(k_.algorithms(i) >= 1, "first_algorithm: a kernel has no algorithm");
            if (!k_.measured(i)) continue;
            const std::int64_t entries = k_.entries(i);
            require(entries * k_.algorithms(i) == k_.first_entry[i + 1] - k_.first_entry[i] &&
                    entries <= 1 << 20 && (entries & (entries - 1)) == 0 &&
                    (operands >= 20 || entries <= std::int64_t{1} << operands),
                "first_entry: a table has a power of two entries for each algorithm");
        }
    }

    void check_tensors() const {
        const std::size_t uses = t_.kernel.size(), tensors = t_.size.size();
        require_rows(t_.first, tensors, uses, "first: must rise from 0 to the number of uses");
        require(t_.live_range.size() == tensors, "tensors: arrays of different lengths");
        require(t_.operand.size() == uses && t_.reads.size() == uses && t_.writes.size() == uses &&
                t_.fast.size() == uses && t_.slow.size() == uses && t_.to_fast.size() == uses &&
                t_.to_slow.size() == uses && k_.use.size() == uses,
            "uses: arrays of different lengths");
        require_seconds(t_.fast, true, "fast: out of range");
        require_seconds(t_.slow, false, "slow: must not be negative");
        require_seconds(t_.to_fast, true, "to_fast: out of range");
        require_seconds(t_.to_slow, true, "to_slow: out of range");
        std::int64_t sum = 0;
        for (std::size_t i : indices(tensors)) {
            require(t_.live_range[i] <= 3, "live_range: out of range");
            require(t_.size[i] >= 0 && t_.size[i] <= kLargestTotal - sum,
                "size: together at most 2^62");
            sum += t_.size[i];
            for (std::int64_t u = t_.first[i] + 1; u < t_.first[i + 1]; ++u)
                require(t_.kernel[u] > t_.kernel[u - 1], "kernel: uses must be in order");
        }
        for (std::size_t u : indices(uses)) {
            require(t_.kernel[u] >= 0 && t_.kernel[u] < k_.count(), "kernel: names no kernel");
            const std::int64_t o = t_.operand[u];
            require(o >= k_.first_operand[t_.kernel[u]] && o < k_.first_operand[t_.kernel[u] + 1] &&
                    k_.use[o] == static_cast<std::int64_t>(u),
                "operand: must be the operand of its kernel whose use it is");
        }
    }

    Tensors t_;
    Kernels k_;
    // What the views are of.
    Ints ints_[10];
    Floats floats_[6];
    Bits bits_[3];
};

} // namespace

void bind_placement(nb::module_ &module) {
    nb::class_<TensorPaths>(module, "TensorPaths")
        .def(nb::init<nb::object, nb::object, nb::object>(), "fast"_a, "stays"_a, "tail"_a)
        .def_ro("fast", &TensorPaths::fast)
        .def_ro("stays", &TensorPaths::stays)
        .def_ro("tail", &TensorPaths::tail);
    nb::class_<CopyEngines>(module, "CopyEngines")
        .def(nb::init<Floats, Floats, Floats, Floats, double, bool, bool>(), nb::kw_only(),
            "block_in"_a, "block_out"_a, "overlap_in"_a, "overlap_out"_a, "drain"_a, "shared"_a,
            "overlaps"_a);
    nb::class_<UsePrices>(module, "UsePrices")
        .def(
            "__init__",
            [](UsePrices *self, Floats memory, Floats fast, Floats slow) {
                new (self) UsePrices{memory, fast, slow};
            },
            nb::kw_only(), "memory"_a, "fast"_a, "slow"_a);
    nb::class_<ScheduledCopies>(module, "ScheduledCopies")
        .def_ro("seconds", &ScheduledCopies::seconds)
        .def_ro("tensor", &ScheduledCopies::tensor)
        .def_ro("to_fast", &ScheduledCopies::to_fast)
        .def_ro("start", &ScheduledCopies::start)
        .def_ro("end", &ScheduledCopies::end)
        .def_ro("due", &ScheduledCopies::due)
        .def_ro("stay_tensor", &ScheduledCopies::stay_tensor)
        .def_ro("stay_start", &ScheduledCopies::stay_start)
        .def_ro("stay_end", &ScheduledCopies::stay_end)
        .def_ro("algorithms", &ScheduledCopies::algorithms);
    nb::class_<FoundAddresses>(module, "FoundAddresses")
        .def_ro("offsets", &FoundAddresses::offsets)
        .def_ro("stopped", &FoundAddresses::stopped);
    nb::class_<FoundPaths>(module, "FoundPaths")
        .def_ro("paths", &FoundPaths::paths)
        .def_ro("seconds", &FoundPaths::seconds)
        .def_ro("nodes", &FoundPaths::nodes)
        .def_ro("rounds", &FoundPaths::rounds)
        .def_ro("stopped", &FoundPaths::stopped);
    nb::class_<PlacementProblem>(module, "PlacementProblem")
        .def(nb::init<Ints, Bits, Ints, Ints, Ints, Bits, Bits, Floats, Floats, Floats, Floats,
                 Ints, Ints, Ints, Ints, Floats, Ints, Ints, Floats>(),
            nb::kw_only(), "first"_a, "live_range"_a, "size"_a, "kernel"_a, "operand"_a, "reads"_a,
            "writes"_a, "fast"_a, "slow"_a, "to_fast"_a, "to_slow"_a, "limit"_a, "first_operand"_a,
            "use"_a, "first_algorithm"_a, "seconds"_a, "workspace"_a, "first_entry"_a, "table"_a)
        .def("bound", &PlacementProblem::bound, nb::kw_only(), "memory"_a, "shares"_a,
            "surcharge"_a, "noted"_a, "shift"_a, "moves"_a)
        .def("schedule", &PlacementProblem::schedule, "engines"_a, "paths"_a,
            "offsets"_a = nb::none())
        .def("search_addresses", &PlacementProblem::search_addresses, "engines"_a, "paths"_a,
            "offsets"_a, nb::kw_only(), "capacity"_a, "alignment"_a, "goal"_a, "seed"_a, "nodes"_a,
            "seconds"_a)
        .def("search", &PlacementProblem::search, "prices"_a, nb::kw_only(), "guess"_a, "base"_a,
            "moves"_a, "engines"_a, "goal"_a, "seed"_a, "nodes"_a, "seconds"_a);
}
