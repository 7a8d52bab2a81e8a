// Python bindings of the mapping kernels. Arguments are checked here, so that no kernel reads out
// of bounds.
#include "bindings/arguments.hpp"
#include "common/parallel.hpp"
#include "mapping/anneal.hpp"
#include "mapping/configurations.hpp"
#include "mapping/genome.hpp"
#include "mapping/magma.hpp"

#include <nanobind/stl/optional.h>

#include <cmath>
#include <numeric>
#include <optional>

namespace nb = nanobind;
using namespace loadmaster;
using namespace loadmaster::mapping;

namespace {

using Table = Array<double, 2>;
using Floats = Array<double, 1>;
using Queues = Array<std::int32_t, 2>;
using Cores = Array<std::int32_t, 2>;
using Priorities = Array<std::uint32_t, 2>;

Group group_of(const Table &latency, const Table &demand, const std::optional<Table> &energy) {
    const std::size_t jobs = latency.shape(0), cores = latency.shape(1);
    require(cores >= 1 && cores <= kMostCores, "latency: needs from 1 to 1024 cores");
    require(jobs < static_cast<std::size_t>(kMostJobs), "latency: too many jobs");
    require(demand.shape(0) == jobs && demand.shape(1) == cores,
        "demand: must have the shape of latency");
    require(!energy || (energy->shape(0) == jobs && energy->shape(1) == cores),
        "energy: must be None or have the shape of latency");
    if (energy)
        for (double joules : view(*energy)) require(joules >= 0.0, "energy: must not be negative");
    for (std::size_t job : indices(jobs)) {
        bool runs = false;
        for (std::size_t i = job * cores; i < (job + 1) * cores; ++i) {
            require(latency.data()[i] >= 0.0, "latency: must not be negative");
            require(demand.data()[i] >= 0.0 && demand.data()[i] < kNever,
                "demand: must be finite and not negative");
            runs |= latency.data()[i] < kNever;
        }
        require(runs, "latency: a job runs on no core");
    }
    return make_group(view(latency), view(demand),
        energy ? view(*energy) : std::span<const double>(), static_cast<std::int32_t>(cores));
}

Objective objective_of(double time, double energy, const Group &group) {
    require(time >= 0.0 && energy >= 0.0 && time + energy > 0.0,
        "objective: exponents must not be negative, nor both zero");
    require(energy == 0.0 || !group.energy.empty() || group.jobs == 0, "objective: needs energies");
    return {time, energy};
}

// A population after some generations, its scores, and the best score after each.
struct Evolution {
    nb::object core, priority, score, history;
};

// Where walks are and the best that each has found, with the scores of both, and how many
// neighbours were tried.
struct Walks {
    nb::object queues, best, score, best_score;
    std::int64_t tried;
};

// A group that was checked once, to be scored and searched many times. It owns its tables.
class MappingGroup {
  public:
    MappingGroup(const Table &latency, const Table &demand, const std::optional<Table> &energy,
        double time_weight, double energy_weight)
        : group_(group_of(latency, demand, energy)),
          objective_(objective_of(time_weight, energy_weight, group_)) {}

    nb::object makespans(const Queues &queues, int threads) const {
        require_queues(queues);
        std::vector<double> result(queues.shape(0));
        {
            nb::gil_scoped_release release;
            makespans_on_threads(group_, queues.data(), result.size(), threads, result.data());
        }
        return to_numpy(std::move(result));
    }

    nb::object decode(const Cores &core, const Priorities &priority) const {
        require_genes(core, priority);
        std::vector<std::int32_t> queues(core.shape(0) * group_.length());
        Decoder decoder(group_);
        for (std::size_t i : indices(core.shape(0)))
            decoder.queues({core.data() + i * group_.jobs, priority.data() + i * group_.jobs},
                queues.data() + i * group_.length());
        return to_numpy(std::move(queues), {core.shape(0), group_.length()});
    }

    nb::object scores(const Cores &core, const Priorities &priority, int threads) const {
        require_genes(core, priority);
        std::vector<double> result(core.shape(0));
        {
            nb::gil_scoped_release release;
            mapping::scores(group_, core.data(), priority.data(), result.size(), objective_,
                threads, result.data());
        }
        return to_numpy(std::move(result));
    }

    Evolution evolve(const Cores &core, const Priorities &priority, const Floats &score,
        double mutation, double crossover_gen, double crossover_rg, double crossover_accel,
        std::int32_t elites, std::int32_t parents, std::int64_t first_generation,
        std::int64_t generations, std::uint64_t seed, int threads) const {
        require_genes(core, priority);
        const auto size = static_cast<std::int32_t>(score.size());
        require(score.size() == core.shape(0), "score: must have an element per row of core");
        require(elites >= 0 && elites < size && parents >= 1 && parents <= size,
            "elites, parents: out of range");
        for (double rate : {mutation, crossover_gen, crossover_rg, crossover_accel})
            require(rate >= 0.0 && rate <= 1.0, "rates: must lie between 0 and 1");
        const Rates rates{mutation, crossover_gen, crossover_rg, crossover_accel, elites, parents};
        Population population{{core.data(), core.data() + core.size()},
            {priority.data(), priority.data() + priority.size()},
            {score.data(), score.data() + score.size()}};
        std::vector<double> history;
        {
            nb::gil_scoped_release release;
            if (group_.jobs > 0)
                history = mapping::evolve(group_, population, rates, objective_, first_generation,
                    generations, seed, threads);
        }
        const std::size_t rows = core.shape(0), jobs = core.shape(1);
        return {to_numpy(std::move(population.core), {rows, jobs}),
            to_numpy(std::move(population.priority), {rows, jobs}),
            to_numpy(std::move(population.score)), to_numpy(std::move(history))};
    }

    Walks anneal(const Queues &queues, const Queues &best, const Floats &score,
        const Floats &best_score, const Floats &temperature, std::int64_t samples, double target,
        std::uint64_t seed, std::uint64_t stream, int threads) const {
        require_queues(queues);
        require_queues(best);
        const std::size_t walks = score.size(), length = group_.length();
        require(queues.shape(0) == walks && best.shape(0) == walks && best_score.size() == walks,
            "score: must have an element per row of queues");
        require(temperature.size() == walks, "temperature: must have an element per row of queues");
        for (double each : view(temperature))
            require(
                each >= 0.0 && std::isfinite(each), "temperature: must be finite and not negative");
        std::vector<std::int32_t> now(walks * length), found(walks * length);
        std::vector<double> scored(walks), least(walks);
        std::vector<std::int64_t> tried(walks);
        {
            nb::gil_scoped_release release;
            // Hot walks take long: they refuse little, so that most of their mappings are scored to
            // the end.
            each_in_parallel(walks, threads, [&](std::size_t i) {
                const std::int32_t *from = queues.data() + i * length,
                                   *known = best.data() + i * length;
                Walk walk{{from, from + length}, {known, known + length}, score.data()[i],
                    best_score.data()[i]};
                tried[i] = mapping::anneal(group_, walk, objective_, temperature.data()[i], samples,
                    target, seed, stream * walks + i);
                std::ranges::copy(walk.queues, now.begin() + i * length);
                std::ranges::copy(walk.best, found.begin() + i * length);
                scored[i] = walk.score;
                least[i] = walk.best_score;
            });
        }
        return {to_numpy(std::move(now), {walks, length}),
            to_numpy(std::move(found), {walks, length}), to_numpy(std::move(scored)),
            to_numpy(std::move(least)),
            std::accumulate(tried.begin(), tried.end(), std::int64_t{0})};
    }

  private:
    void require_genes(const Cores &core, const Priorities &priority) const {
        require(core.shape(1) == static_cast<std::size_t>(group_.jobs),
            "core: must have a column per job");
        require(priority.shape(0) == core.shape(0) && priority.shape(1) == core.shape(1),
            "priority: must have the shape of core");
        bool fine = true;
        for (std::int32_t gene : view(core)) fine &= gene >= 0 && gene < group_.cores;
        require(fine, "core: names no core");
    }

    // Every row must hold each job once, on a core that can run it, and one end mark per core.
    void require_queues(const Queues &queues) const {
        require(
            queues.shape(1) == group_.length(), "queues: must have a column per job and per core");
        std::vector<std::size_t> seen(group_.jobs + 1, 0);
        for (std::size_t row : indices(queues.shape(0))) {
            const std::int32_t *entries = queues.data() + row * group_.length();
            std::int32_t core = 0;
            std::size_t at = 0;
            bool fine = true;
            for (; at < group_.length() && core < group_.cores; ++at) {
                const std::int32_t job = entries[at];
                require(job >= 0 && job <= group_.jobs, "queues: names no job");
                fine &= job == group_.jobs ||
                    (seen[job] <= row && (group_.everywhere || group_.runs(job, core)));
                seen[job] = row + 1;
                core += job == group_.jobs;
            }
            require(fine, "queues: a job is named twice, or is on a core that cannot run it");
            require(core == group_.cores && at == group_.length(),
                "queues: needs an end mark per core, the last one at the end");
        }
    }

    Group group_;
    Objective objective_;
};

// The best configurations at given prices, as Python sees them.
struct BestConfigurations {
    double within, beyond;
    nb::object within_jobs, beyond_jobs;
};

// Kinds of jobs on kinds of cores, checked once, whose configurations are priced many times.
class ConfigurationPricing {
  public:
    ConfigurationPricing(
        Table demand, Array<std::int32_t, 1> count, Array<std::int32_t, 1> cores, std::int32_t grid)
        : demand_(demand), count_(count), cores_(cores), grid_(grid) {
        require(cores.size() == demand.shape(1) && cores.size() > 0,
            "cores: must have an element per column of demand");
        require(grid >= 1 && grid <= 1 << 20, "grid: needs from 1 to 2^20 parts");
        require(count.size() == demand.shape(0), "count: must have an element per row of demand");
        for (std::int32_t jobs : view(count))
            require(jobs >= 0 && jobs < kMostJobs, "count: out of range");
        for (std::int32_t some : view(cores))
            require(some >= 1 && some <= kMostCores, "cores: needs from 1 to 1024 of a kind");
        for (double share : view(demand))
            require(
                share >= 0.0 && std::isfinite(share), "demand: must be finite and not negative");
    }

    BestConfigurations best(const Table &worth, std::int64_t nodes) const {
        require(worth.shape(0) == demand_.shape(0) && worth.shape(1) == demand_.shape(1),
            "worth: must have the shape of demand");
        for (double each : view(worth)) require(std::isfinite(each), "worth: must be finite");
        Best found;
        {
            nb::gil_scoped_release release;
            found = best_configurations(
                {view(worth), view(demand_), view(count_), view(cores_)}, grid_, nodes);
        }
        return {found.within, found.beyond, to_numpy(std::move(found.within_jobs)),
            to_numpy(std::move(found.beyond_jobs))};
    }

  private:
    Table demand_;
    Array<std::int32_t, 1> count_, cores_;
    std::int32_t grid_;
};

} // namespace

void bind_mapping(nb::module_ &module) {
    nb::class_<Evolution>(module, "Evolution")
        .def_ro("core", &Evolution::core)
        .def_ro("priority", &Evolution::priority)
        .def_ro("score", &Evolution::score)
        .def_ro("history", &Evolution::history);
    nb::class_<Walks>(module, "Walks")
        .def_ro("queues", &Walks::queues)
        .def_ro("best", &Walks::best)
        .def_ro("score", &Walks::score)
        .def_ro("best_score", &Walks::best_score)
        .def_ro("tried", &Walks::tried);
    nb::class_<MappingGroup>(module, "MappingGroup")
        .def(nb::init<const Table &, const Table &, const std::optional<Table> &, double, double>(),
            "latency"_a, "demand"_a, "energy"_a.none() = nb::none(), nb::kw_only(),
            "time_weight"_a = 1.0, "energy_weight"_a = 0.0)
        .def("makespans", &MappingGroup::makespans, "queues"_a, "threads"_a = 1)
        .def("decode", &MappingGroup::decode, "core"_a, "priority"_a)
        .def("scores", &MappingGroup::scores, "core"_a, "priority"_a, "threads"_a = 1)
        .def("evolve", &MappingGroup::evolve, "core"_a, "priority"_a, "score"_a, nb::kw_only(),
            "mutation"_a, "crossover_gen"_a, "crossover_rg"_a, "crossover_accel"_a, "elites"_a,
            "parents"_a, "first_generation"_a, "generations"_a, "seed"_a, "threads"_a)
        .def("anneal", &MappingGroup::anneal, "queues"_a, "best"_a, "score"_a, "best_score"_a,
            nb::kw_only(), "temperature"_a, "samples"_a, "target"_a, "seed"_a, "stream"_a,
            "threads"_a);
    nb::class_<BestConfigurations>(module, "BestConfigurations")
        .def_ro("within", &BestConfigurations::within)
        .def_ro("beyond", &BestConfigurations::beyond)
        .def_ro("within_jobs", &BestConfigurations::within_jobs)
        .def_ro("beyond_jobs", &BestConfigurations::beyond_jobs);
    nb::class_<ConfigurationPricing>(module, "ConfigurationPricing")
        .def(nb::init<Table, Array<std::int32_t, 1>, Array<std::int32_t, 1>, std::int32_t>(),
            "demand"_a, "count"_a, "cores"_a, "grid"_a)
        .def("best", &ConfigurationPricing::best, "worth"_a, "nodes"_a);
}
