// Python bindings of the placement kernels. Arguments are checked here, so that no kernel reads out of bounds.
#include "bindings/arguments.hpp"
#include "placement/bound.hpp"
#include "placement/overlap_search.hpp"
#include "placement/schedule.hpp"
#include "allocation/search.hpp"

#include <array>
#include <cmath>

namespace nb = nanobind;
using namespace loadmaster;
using namespace loadmaster::placement;

namespace {

using Ints = Array<std::int64_t, 1>;
using Floats = Array<double, 1>;
using Bits = Array<std::uint8_t, 1>;
constexpr std::int64_t kLargest = std::int64_t{1} << 62;

void require_offsets(std::span<const std::int64_t> first, std::size_t parts, std::size_t length, const char *what) {
    require(first.size() == parts + 1 && first[0] == 0 && first.back() == static_cast<std::int64_t>(length), what);
    for (std::size_t i = 1; i < first.size(); ++i) require(first[i] >= first[i - 1], what);
}

void require_seconds(std::span<const double> seconds, bool finite, const char *what) {
    for (double value : seconds) require(value >= 0 && (!finite || value < 1e15), what);
}

// The arrays of a problem, checked against each other once; kernels take views of them.
class Problem {
  public:
    Problem(const nb::tuple &tensors, const nb::tuple &kernels) {
        require(tensors.size() == 11 && kernels.size() == 8, "problem: wrong number of arrays");
        for (std::size_t i = 0; i < 11; ++i) held_.append(tensors[i]);
        for (std::size_t i = 0; i < 8; ++i) held_.append(kernels[i]);
        t = {ints(0), bits(1), ints(2), ints(3), ints(4), bits(5), bits(6), floats(7), floats(8), floats(9), floats(10)};
        k = {ints(11), ints(12), ints(13), ints(14), floats(15), ints(16), ints(17), floats(18)};
        check_kernels();
        check_tensors();
    }
    Tensors t;
    Kernels k;

  private:
    std::span<const std::int64_t> ints(std::size_t i) const { return view(nb::cast<Ints>(held_[i], false)); }
    std::span<const double> floats(std::size_t i) const { return view(nb::cast<Floats>(held_[i], false)); }
    std::span<const std::uint8_t> bits(std::size_t i) const { return view(nb::cast<Bits>(held_[i], false)); }

    void check_kernels() const {
        const std::size_t kernels = k.limit.size();
        require_offsets(k.first_operand, kernels, k.use.size(), "first_operand: must rise from 0 to the number of operands");
        require_offsets(k.first_algorithm, kernels, k.seconds.size(), "first_algorithm: must rise from 0 to the number of algorithms");
        require_offsets(k.first_entry, kernels, k.table.size(), "first_entry: must rise from 0 to the number of entries");
        require(k.workspace.size() == k.seconds.size(), "workspace: must have an element per algorithm");
        for (std::int64_t bytes : k.limit) require(bytes >= 0 && bytes <= kLargest, "limit: out of range");
        for (std::int64_t bytes : k.workspace) require(bytes >= 0 && bytes <= kLargest, "workspace: out of range");
        require_seconds(k.seconds, true, "seconds: out of range");
        require_seconds(k.table, false, "table: must not be negative");
        for (std::size_t i = 0; i < kernels; ++i) {
            const std::int64_t operands = k.first_operand[i + 1] - k.first_operand[i];
            require(k.algorithms(i) >= 1, "first_algorithm: a kernel has no algorithm");
            if (!k.measured(i)) continue;
            const std::int64_t entries = k.entries(i);
            require(entries * k.algorithms(i) == k.first_entry[i + 1] - k.first_entry[i] && entries <= 1 << 20 && (entries & (entries - 1)) == 0 &&
                        (operands >= 20 || entries <= std::int64_t{1} << operands),
                    "first_entry: a table has a power of two entries for each algorithm");
        }
    }

    void check_tensors() const {
        const std::size_t uses = t.kernel.size(), tensors = t.size.size();
        require_offsets(t.first, tensors, uses, "first: must rise from 0 to the number of uses");
        require(t.life.size() == tensors, "tensors: arrays of different lengths");
        require(t.operand.size() == uses && t.reads.size() == uses && t.writes.size() == uses && t.fast.size() == uses && t.slow.size() == uses &&
                    t.to_fast.size() == uses && t.to_slow.size() == uses && k.use.size() == uses,
                "uses: arrays of different lengths");
        require_seconds(t.fast, true, "fast: out of range");
        require_seconds(t.slow, false, "slow: must not be negative");
        require_seconds(t.to_fast, true, "to_fast: out of range");
        require_seconds(t.to_slow, true, "to_slow: out of range");
        std::int64_t sum = 0;
        for (std::size_t i = 0; i < tensors; ++i) {
            require(t.life[i] <= 3, "life: out of range");
            require(t.size[i] >= 0 && t.size[i] <= kLargest - sum, "size: together at most 2^62");
            sum += t.size[i];
            for (std::int64_t u = t.first[i] + 1; u < t.first[i + 1]; ++u) require(t.kernel[u] > t.kernel[u - 1], "kernel: uses must be in order");
        }
        for (std::size_t u = 0; u < uses; ++u) {
            require(t.kernel[u] >= 0 && t.kernel[u] < k.count(), "kernel: names no kernel");
            const std::int64_t o = t.operand[u];
            require(o >= k.first_operand[t.kernel[u]] && o < k.first_operand[t.kernel[u] + 1] && k.use[o] == static_cast<std::int64_t>(u),
                    "operand: must be the operand of its kernel whose use it is");
        }
    }

    nb::list held_;
};

allocation::Budget budget_of(std::int64_t nodes, double seconds) {
    require(!std::isnan(seconds) && seconds >= 0, "time: must not be negative");
    return allocation::Budget(nodes, seconds, [] {
        const nb::gil_scoped_acquire lock;
        if (PyErr_CheckSignals() == 0) return false;
        PyErr_Clear();
        return true;
    });
}

double py_lagrangian_bound(const nb::tuple &tensors, const nb::tuple &kernels, const Ints &memory, const Array<std::int32_t, 2> &shares, const Floats &surcharge,
                           const Bits &noted, int shift, bool moves) {
    const Problem problem(tensors, kernels);
    const Prices prices{view(memory), view(shares), view(surcharge), view(noted), shift};
    require(memory.size() == problem.k.limit.size() && shares.shape(0) == memory.size() && shares.shape(1) == 3 && surcharge.size() == problem.t.kernel.size() &&
                noted.size() == surcharge.size(),
            "prices: arrays of wrong lengths");
    require(shift >= 0 && shift <= 110, "shift: out of range");
    // Sums stay below 2^124: prices times all bytes, and all seconds.
    double bytes = 1, dearest = 0, seconds = 0;
    for (std::int64_t size : problem.t.size) bytes += static_cast<double>(size);
    for (std::size_t k = 0; k < memory.size(); ++k) {
        const std::int32_t *share = shares.data() + 3 * k;
        require(prices.memory[k] >= 0, "memory: must not be negative");
        require(share[0] >= 0 && share[1] >= 0 && share[2] >= 0 && std::int64_t{share[0]} + share[1] + share[2] <= 1 << kShareBits, "shares: must be at least 0 and at most 1 together");
        double most = bytes + static_cast<double>(problem.k.limit[k]);
        for (std::int64_t a = problem.k.first_algorithm[k]; a < problem.k.first_algorithm[k + 1]; ++a) most += static_cast<double>(problem.k.workspace[a]);
        dearest += static_cast<double>(prices.memory[k]) * most;
    }
    for (std::size_t k = 0; k < memory.size(); ++k) {
        std::int64_t told_apart = 0;
        for (std::int64_t o = problem.k.first_operand[k]; o < problem.k.first_operand[k + 1]; ++o) told_apart += noted.data()[problem.k.use[o]] != 0;
        require(told_apart <= 20, "noted: at most 20 operands of a kernel");
    }
    const auto add = [&](std::span<const double> values) {
        for (double value : values)
            if (std::isfinite(value)) seconds += std::abs(value);
    };
    for (const auto &values : {problem.t.fast, problem.t.slow, problem.t.to_fast, problem.t.to_slow, problem.k.seconds, problem.k.table, prices.surcharge}) {
        for (double value : values) require(!std::isnan(value), "prices: must be numbers");
        add(values);
    }
    // A copy out may follow the last use, too.
    add(problem.t.to_slow);
    require(dearest < 0x1p122 && std::ldexp(seconds, shift) < 0x1p122, "shift: sums would overflow");
    nb::gil_scoped_release release;
    return lagrangian_bound(problem.t, problem.k, prices, moves);
}

nb::object py_search_lives(const nb::tuple &tensors, const nb::tuple &kernels, const nb::tuple &prices, const nb::tuple &lives, const nb::tuple &base, bool moves,
                           double goal, std::uint64_t seed, std::int64_t nodes, double time) {
    const Problem problem(tensors, kernels);
    require(prices.size() == 3 && lives.size() == 5 && base.size() == 3, "search: wrong number of arrays");
    const auto memory = nb::cast<Floats>(prices[0]), fast = nb::cast<Floats>(prices[1]), slow = nb::cast<Floats>(prices[2]);
    const auto sure = nb::cast<Bits>(lives[0]), there = nb::cast<Bits>(lives[1]), stays = nb::cast<Bits>(lives[2]), tail = nb::cast<Bits>(lives[3]);
    const auto order = nb::cast<Ints>(lives[4]);
    const auto base_fast = nb::cast<Bits>(base[0]), base_stays = nb::cast<Bits>(base[1]), base_tail = nb::cast<Bits>(base[2]);
    const std::size_t uses = problem.t.kernel.size(), count = problem.t.size.size();
    require(memory.size() == problem.k.limit.size() && fast.size() == uses && slow.size() == uses, "prices: arrays of wrong lengths");
    require(sure.size() == count && tail.size() == count && base_tail.size() == count && there.size() == uses && stays.size() == uses &&
                base_fast.size() == uses && base_stays.size() == uses && order.size() == count,
            "lives: arrays of wrong lengths");
    std::vector<char> seen(count, 0);
    for (std::int64_t t : view(order)) require(t >= 0 && t < static_cast<std::int64_t>(count) && !seen[t]++, "order: must name every tensor once");
    const Advice advice{view(memory), view(fast), view(slow), view(sure), view(there), view(stays), view(tail), view(order)};
    const auto vector = [](const Bits &bits) { return std::vector<std::uint8_t>(bits.data(), bits.data() + bits.size()); };
    const Lives start{vector(base_fast), vector(base_stays), vector(base_tail)};
    allocation::Budget budget = budget_of(nodes, time);
    Lives found;
    {
        nb::gil_scoped_release release;
        found = search(problem.t, problem.k, advice, start, moves, goal, seed, budget);
    }
    return nb::make_tuple(to_numpy(std::move(found.fast), {uses}), to_numpy(std::move(found.stays), {uses}), to_numpy(std::move(found.tail), {count}), found.seconds,
                          budget.nodes(), budget.stopped(), budget.interrupted());
}

// Links in the order block_in, block_out, overlap_in, overlap_out, each per tensor.
class Channels {
  public:
    Channels(const nb::tuple &seconds, double drain, bool shared, std::size_t tensors) {
        require(seconds.size() == 4 && std::isfinite(drain) && drain > 0, "links: four arrays and a bandwidth");
        for (nb::handle part : seconds) held_.append(part);
        links = {part(0), part(1), part(2), part(3), drain, shared};
        for (const auto &values : {links.block_in, links.block_out, links.overlap_in, links.overlap_out}) {
            require(values.size() == tensors, "links: must have an element per tensor");
            require_seconds(values, true, "links: out of range");
        }
    }
    Links links;

  private:
    std::span<const double> part(std::size_t i) const { return view(nb::cast<Floats>(held_[i], false)); }
    nb::list held_;
};

LivesView lives_of(const nb::tuple &lives, std::array<Bits, 3> &held, const Problem &problem) {
    require(lives.size() == 3, "lives: three arrays");
    for (std::size_t i = 0; i < 3; ++i) held[i] = nb::cast<Bits>(lives[i], false);
    const std::size_t uses = problem.t.kernel.size();
    require(held[0].size() == uses && held[1].size() == uses && held[2].size() == problem.t.size.size(), "lives: arrays of wrong lengths");
    return {view(held[0]), view(held[1]), view(held[2])};
}

nb::object scheduled(double seconds, const Schedule &schedule) {
    std::vector<std::int64_t> rows;
    for (std::int64_t c : schedule.order()) {
        const ScheduledCopy &copy = schedule.copies()[c];
        rows.insert(rows.end(), {copy.tensor, copy.to_fast, copy.start, copy.end, copy.due});
    }
    auto algorithms = schedule.algorithms();
    const std::size_t count = rows.size() / 5, kernels = algorithms.size();
    return nb::make_tuple(seconds, to_numpy(std::move(rows), {count, std::size_t{5}}), to_numpy(std::move(algorithms), {kernels}));
}

nb::object py_schedule_copies(const nb::tuple &tensors, const nb::tuple &kernels, const nb::tuple &links, double drain, bool shared, const nb::tuple &lives) {
    const Problem problem(tensors, kernels);
    const Channels channels(links, drain, shared, problem.t.size.size());
    std::array<Bits, 3> held;
    const LivesView view = lives_of(lives, held, problem);
    Schedule schedule(problem.t, problem.k, channels.links);
    const double seconds = schedule.run(view);
    return scheduled(seconds, schedule);
}

nb::object py_search_overlapping(const nb::tuple &tensors, const nb::tuple &kernels, const nb::tuple &prices, const nb::tuple &links, double drain, bool shared,
                                 const nb::tuple &lives, double goal, std::uint64_t seed, std::int64_t nodes, double time) {
    const Problem problem(tensors, kernels);
    const Channels channels(links, drain, shared, problem.t.size.size());
    require(prices.size() == 3, "search: wrong number of arrays");
    const auto memory = nb::cast<Floats>(prices[0]), fast = nb::cast<Floats>(prices[1]), slow = nb::cast<Floats>(prices[2]);
    const std::size_t uses = problem.t.kernel.size(), count = problem.t.size.size();
    require(memory.size() == problem.k.limit.size() && fast.size() == uses && slow.size() == uses, "prices: arrays of wrong lengths");
    std::array<Bits, 3> held;
    const LivesView given = lives_of(lives, held, problem);
    const auto vector = [](std::span<const std::uint8_t> bits) { return std::vector<std::uint8_t>(bits.begin(), bits.end()); };
    const Lives start{vector(given.fast), vector(given.stays), vector(given.tail)};
    const Advice advice{view(memory), view(fast), view(slow), {}, {}, {}, {}, {}};
    allocation::Budget budget = budget_of(nodes, time);
    Lives found;
    {
        nb::gil_scoped_release release;
        found = search_overlapping(problem.t, problem.k, advice, channels.links, start, goal, seed, budget);
    }
    return nb::make_tuple(to_numpy(std::move(found.fast), {uses}), to_numpy(std::move(found.stays), {uses}), to_numpy(std::move(found.tail), {count}), found.seconds,
                          found.rounds, budget.stopped(), budget.interrupted());
}

}  // namespace

void bind_placement(nb::module_ &module) {
    module.def("lagrangian_bound", &py_lagrangian_bound, nb::arg("tensors"), nb::arg("kernels"), nb::arg("memory"), nb::arg("shares"), nb::arg("surcharge"), nb::arg("noted"),
               nb::arg("shift"), nb::arg("moves"));
    module.def("schedule_copies", &py_schedule_copies, nb::arg("tensors"), nb::arg("kernels"), nb::arg("links"), nb::arg("drain"), nb::arg("shared"), nb::arg("lives"));
    module.def("search_overlapping", &py_search_overlapping, nb::arg("tensors"), nb::arg("kernels"), nb::arg("prices"), nb::arg("links"), nb::arg("drain"),
               nb::arg("shared"), nb::arg("lives"), nb::arg("goal"), nb::arg("seed"), nb::arg("nodes"), nb::arg("time"));
    module.def("search_lives", &py_search_lives, nb::arg("tensors"), nb::arg("kernels"), nb::arg("prices"), nb::arg("lives"), nb::arg("base"), nb::arg("moves"),
               nb::arg("goal"), nb::arg("seed"), nb::arg("nodes"), nb::arg("time"));
}
