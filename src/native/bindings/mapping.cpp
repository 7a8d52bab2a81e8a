// Python bindings of the mapping kernels. Arguments are checked here, so that no kernel reads out of bounds.
#include "bindings/arguments.hpp"
#include "mapping/anneal.hpp"
#include "mapping/configurations.hpp"
#include "mapping/genome.hpp"
#include "mapping/magma.hpp"
#include "common/parallel.hpp"

#include <nanobind/stl/tuple.h>

#include <cmath>
#include <tuple>

namespace nb = nanobind;
using namespace loadmaster;
using namespace loadmaster::mapping;

namespace {

using Table = Array<double, 2>;
using Queues = Array<std::int32_t, 2>;

Group group_of(const Table &latency, const Table &demand, const Table &energy) {
    const std::size_t jobs = latency.shape(0), cores = latency.shape(1);
    require(cores >= 1 && cores <= kMostCores, "latency: needs from 1 to 1024 cores");
    require(jobs < static_cast<std::size_t>(kMostJobs), "latency: too many jobs");
    require(demand.shape(0) == jobs && demand.shape(1) == cores, "demand: must have the shape of latency");
    require(energy.size() == 0 || (energy.shape(0) == jobs && energy.shape(1) == cores), "energy: must be empty or have the shape of latency");
    for (std::size_t job = 0; job < jobs; ++job) {
        bool runs = false;
        for (std::size_t i = job * cores; i < (job + 1) * cores; ++i) {
            require(latency.data()[i] >= 0.0, "latency: must not be negative");
            require(demand.data()[i] >= 0.0 && demand.data()[i] < kNever, "demand: must be finite and not negative");
            runs |= latency.data()[i] < kNever;
        }
        require(runs, "latency: a job runs on no core");
    }
    return make_group(view(latency), view(demand), view(energy), static_cast<std::int32_t>(cores));
}

Objective objective_of(double time, double energy, const Group &group) {
    require(time >= 0.0 && energy >= 0.0 && time + energy > 0.0, "objective: exponents must not be negative, nor both zero");
    require(energy == 0.0 || !group.energy.empty() || group.jobs == 0, "objective: needs energies");
    return {time, energy};
}

void require_genes(const Array<std::int32_t, 2> &core, const Array<std::uint32_t, 2> &priority, const Group &group) {
    require(core.shape(1) == static_cast<std::size_t>(group.jobs), "core: must have a column per job");
    require(priority.shape(0) == core.shape(0) && priority.shape(1) == core.shape(1), "priority: must have the shape of core");
    bool fine = true;
    for (std::int32_t gene : view(core)) fine &= gene >= 0 && gene < group.cores;
    require(fine, "core: names no core");
}

// Every row must hold each job once, on a core that can run it, and one end mark per core.
void require_queues(const Queues &queues, const Group &group) {
    require(queues.shape(1) == group.length(), "queues: must have a column per job and per core");
    std::vector<std::size_t> seen(group.jobs + 1, 0);
    for (std::size_t row = 0; row < queues.shape(0); ++row) {
        const std::int32_t *entries = queues.data() + row * group.length();
        std::int32_t core = 0;
        std::size_t at = 0;
        bool fine = true;
        for (; at < group.length() && core < group.cores; ++at) {
            const std::int32_t job = entries[at];
            require(job >= 0 && job <= group.jobs, "queues: names no job");
            fine &= job == group.jobs || (seen[job] <= row && (group.everywhere || group.runs(job, core)));
            seen[job] = row + 1;
            core += job == group.jobs;
        }
        require(fine, "queues: a job is named twice, or is on a core that cannot run it");
        require(core == group.cores && at == group.length(), "queues: needs an end mark per core, the last one at the end");
    }
}

nb::object py_group_makespans(const Table &latency, const Table &demand, const Queues &queues, int threads) {
    const Group group = group_of(latency, demand, latency);
    require_queues(queues, group);
    std::vector<double> result(queues.shape(0));
    {
        nb::gil_scoped_release release;
        makespans_on_threads(group, queues.data(), result.size(), threads, result.data());
    }
    return to_numpy(std::move(result), {queues.shape(0)});
}

nb::object py_decode(const Table &latency, const Table &demand, const Array<std::int32_t, 2> &core, const Array<std::uint32_t, 2> &priority) {
    const Group group = group_of(latency, demand, latency);
    require_genes(core, priority, group);
    std::vector<std::int32_t> queues(core.shape(0) * group.length());
    Decoder decoder(group);
    for (std::size_t i = 0; i < core.shape(0); ++i)
        decoder.queues({core.data() + i * group.jobs, priority.data() + i * group.jobs}, queues.data() + i * group.length());
    return to_numpy(std::move(queues), {core.shape(0), group.length()});
}

nb::object py_group_scores(const Table &latency, const Table &demand, const Table &energy, double time_weight, double energy_weight,
                           const Array<std::int32_t, 2> &core, const Array<std::uint32_t, 2> &priority, int threads) {
    const Group group = group_of(latency, demand, energy);
    const Objective objective = objective_of(time_weight, energy_weight, group);
    require_genes(core, priority, group);
    std::vector<double> result(core.shape(0));
    {
        nb::gil_scoped_release release;
        scores(group, core.data(), priority.data(), result.size(), objective, threads, result.data());
    }
    return to_numpy(std::move(result), {core.shape(0)});
}

nb::object py_evolve(const Table &latency, const Table &demand, const Table &energy, double time_weight, double energy_weight,
                     const Array<std::int32_t, 2> &core, const Array<std::uint32_t, 2> &priority, const Array<double, 1> &score,
                     const std::tuple<double, double, double, double> &rates, std::int32_t elites, std::int32_t parents, std::int64_t first_generation,
                     std::int64_t generations, std::uint64_t seed, int threads) {
    const Group group = group_of(latency, demand, energy);
    const Objective objective = objective_of(time_weight, energy_weight, group);
    require_genes(core, priority, group);
    const auto size = static_cast<std::int32_t>(score.size());
    require(score.size() == core.shape(0), "score: must have an element per row of core");
    require(elites >= 0 && elites < size && parents >= 1 && parents <= size, "elites, parents: out of range");
    const auto [mutation, gen, rg, accel] = rates;
    for (double rate : {mutation, gen, rg, accel}) require(rate >= 0.0 && rate <= 1.0, "rates: must lie between 0 and 1");
    Population population{{core.data(), core.data() + core.size()}, {priority.data(), priority.data() + priority.size()}, {score.data(), score.data() + score.size()}};
    std::vector<double> history;
    {
        nb::gil_scoped_release release;
        if (group.jobs > 0) history = evolve(group, population, {mutation, gen, rg, accel, elites, parents}, objective, first_generation, generations, seed, threads);
    }
    const std::size_t rows = core.shape(0), jobs = core.shape(1), lived = history.size();
    return nb::make_tuple(to_numpy(std::move(population.core), {rows, jobs}), to_numpy(std::move(population.priority), {rows, jobs}),
                          to_numpy(std::move(population.score), {rows}), to_numpy(std::move(history), {lived}));
}

nb::object py_anneal(const Table &latency, const Table &demand, const Table &energy, double time_weight, double energy_weight, const Queues &queues,
                     const Queues &best, const Array<double, 1> &score, const Array<double, 1> &best_score, const Array<double, 1> &temperature, std::int64_t samples,
                     double target, std::uint64_t seed, std::uint64_t stream, int threads) {
    const Group group = group_of(latency, demand, energy);
    const Objective objective = objective_of(time_weight, energy_weight, group);
    require_queues(queues, group);
    require_queues(best, group);
    const std::size_t walks = score.size(), length = group.length();
    require(queues.shape(0) == walks && best.shape(0) == walks && best_score.size() == walks, "score: must have an element per row of queues");
    require(temperature.size() == walks, "temperature: must have an element per row of queues");
    for (double each : view(temperature)) require(each >= 0.0 && std::isfinite(each), "temperature: must be finite and not negative");
    std::vector<std::int32_t> now(walks * length), found(walks * length);
    std::vector<double> scored(walks), least(walks);
    std::vector<std::int64_t> tried(walks);
    {
        nb::gil_scoped_release release;
        in_parallel(walks, threads, [&](std::size_t begin, std::size_t end) {
            for (std::size_t i = begin; i < end; ++i) {
                const std::int32_t *from = queues.data() + i * length, *known = best.data() + i * length;
                Walk walk{{from, from + length}, {known, known + length}, score.data()[i], best_score.data()[i]};
                tried[i] = anneal(group, walk, objective, temperature.data()[i], samples, target, seed, stream * walks + i);
                std::copy(walk.queues.begin(), walk.queues.end(), now.begin() + static_cast<std::ptrdiff_t>(i * length));
                std::copy(walk.best.begin(), walk.best.end(), found.begin() + static_cast<std::ptrdiff_t>(i * length));
                scored[i] = walk.score;
                least[i] = walk.best_score;
            }
        });
    }
    std::int64_t total = 0;
    for (std::int64_t each : tried) total += each;
    return nb::make_tuple(to_numpy(std::move(now), {walks, length}), to_numpy(std::move(found), {walks, length}), to_numpy(std::move(scored), {walks}),
                          to_numpy(std::move(least), {walks}), total);
}

nb::object py_best_configurations(const Table &worth, const Table &demand, const Array<std::int32_t, 1> &cores, std::int32_t grid) {
    require(demand.shape(0) == worth.shape(0) && demand.shape(1) == worth.shape(1), "demand: must have the shape of worth");
    require(cores.size() == worth.shape(1) && cores.size() > 0, "cores: must have an element per column of worth");
    require(grid >= 1 && grid <= 1 << 20, "grid: needs from 1 to 2^20 parts");
    for (std::int32_t count : view(cores)) require(count >= 1 && count <= kMostCores, "cores: needs from 1 to 1024 of a kind");
    for (std::size_t i = 0; i < worth.size(); ++i)
        require(std::isfinite(worth.data()[i]) && demand.data()[i] >= 0.0, "worth, demand: must be finite, and demand not negative");
    Best best;
    {
        nb::gil_scoped_release release;
        best = best_configurations({view(worth), view(demand), view(cores)}, grid);
    }
    const std::size_t length = best.within_jobs.size();
    return nb::make_tuple(best.within, best.beyond, to_numpy(std::move(best.within_jobs), {length}), to_numpy(std::move(best.beyond_jobs), {length}));
}

}  // namespace

void bind_mapping(nb::module_ &module) {
    module.def("group_makespans", &py_group_makespans, nb::arg("latency"), nb::arg("demand"), nb::arg("queues"), nb::arg("threads"));
    module.def("decode", &py_decode, nb::arg("latency"), nb::arg("demand"), nb::arg("core"), nb::arg("priority"));
    module.def("group_scores", &py_group_scores, nb::arg("latency"), nb::arg("demand"), nb::arg("energy"), nb::arg("time_weight"), nb::arg("energy_weight"),
               nb::arg("core"), nb::arg("priority"), nb::arg("threads"));
    module.def("evolve", &py_evolve, nb::arg("latency"), nb::arg("demand"), nb::arg("energy"), nb::arg("time_weight"), nb::arg("energy_weight"), nb::arg("core"),
               nb::arg("priority"), nb::arg("score"), nb::arg("rates"), nb::arg("elites"), nb::arg("parents"), nb::arg("first_generation"),
               nb::arg("generations"), nb::arg("seed"), nb::arg("threads"));
    module.def("best_configurations", &py_best_configurations, nb::arg("worth"), nb::arg("demand"), nb::arg("cores"), nb::arg("grid"));
    module.def("anneal", &py_anneal, nb::arg("latency"), nb::arg("demand"), nb::arg("energy"), nb::arg("time_weight"), nb::arg("energy_weight"), nb::arg("queues"),
               nb::arg("best"), nb::arg("score"), nb::arg("best_score"), nb::arg("temperature"), nb::arg("samples"), nb::arg("target"), nb::arg("seed"),
               nb::arg("stream"), nb::arg("threads"));
}
