#include "mapping/magma.hpp"

#include "common/parallel.hpp"
#include "common/random.hpp"

#include <cmath>
#include <numeric>

namespace loadmaster::mapping {

namespace {

struct Child {
    std::int32_t *core;
    std::uint32_t *priority;
};

std::uint32_t random_priority(Random &random) { return static_cast<std::uint32_t>(random.bits() >> 32); }

// The child takes what is past a pivot of one genome from the other parent; its other genome stays.
void crossover_gen(const Group &group, const Child &child, const Genome &other, Random &random) {
    const std::int32_t pivot = random.below(group.jobs);
    if (random.bits() >> 63) std::copy(other.core + pivot, other.core + group.jobs, child.core + pivot);
    else std::copy(other.priority + pivot, other.priority + group.jobs, child.priority + pivot);
}

// The child takes both genomes of a range of jobs, so that cores and order that belong together stay together.
void crossover_rg(const Group &group, const Child &child, const Genome &other, Random &random) {
    const std::int32_t a = random.below(group.jobs), b = random.below(group.jobs);
    const std::int32_t begin = std::min(a, b), end = std::max(a, b) + 1;
    std::copy(other.core + begin, other.core + end, child.core + begin);
    std::copy(other.priority + begin, other.priority + end, child.priority + begin);
}

// The child takes all that the other parent runs on one core, with its order; what it had there itself goes to random cores.
void crossover_accel(const Group &group, const Child &child, const Genome &other, Random &random) {
    const std::int32_t core = random.below(group.cores);
    for (std::int32_t job = 0; job < group.jobs; ++job) {
        if (other.core[job] == core) {
            child.core[job] = core;
            child.priority[job] = other.priority[job];
        } else if (child.core[job] == core) {
            child.core[job] = random.below(group.cores);
        }
    }
}

// Each gene of either genome is replaced with a small probability: jump from one replaced gene to the next.
void mutate(const Group &group, const Child &child, double rate, Random &random) {
    if (rate <= 0.0) return;
    const double scale = rate < 1.0 ? 1.0 / std::log(1.0 - rate) : 0.0;
    const std::int64_t genes = 2 * static_cast<std::int64_t>(group.jobs);
    for (std::int64_t gene = 0;; ++gene) {
        const double skip = std::log(1.0 - random.uniform()) * scale;
        if (skip >= static_cast<double>(genes - gene)) return;
        gene += static_cast<std::int64_t>(skip);
        if (gene < group.jobs) child.core[gene] = random.below(group.cores);
        else child.priority[gene - group.jobs] = random_priority(random);
    }
}

}  // namespace

std::vector<double> evolve(const Group &group, Population &population, const Rates &rates, Objective objective, std::int64_t first_generation,
                           std::int64_t generations, std::uint64_t seed, int threads) {
    const std::size_t size = population.score.size(), jobs = group.jobs;
    const std::size_t elites = rates.elites, children = size - elites;
    Population next = population;
    std::vector<std::size_t> rank(size);
    std::vector<double> history;
    for (std::int64_t generation = first_generation; generation < first_generation + generations; ++generation) {
        std::iota(rank.begin(), rank.end(), std::size_t{0});
        const std::size_t kept = std::max<std::size_t>(rates.elites, rates.parents);
        std::partial_sort(rank.begin(), rank.begin() + static_cast<std::ptrdiff_t>(kept), rank.end(),
                          [&](std::size_t a, std::size_t b) { return population.score[a] != population.score[b] ? population.score[a] < population.score[b] : a < b; });
        const auto genome = [&](std::size_t i) { return Genome{&population.core[i * jobs], &population.priority[i * jobs]}; };
        const auto copy_to = [&](std::size_t from, std::size_t to) {
            std::copy_n(genome(from).core, jobs, &next.core[to * jobs]);
            std::copy_n(genome(from).priority, jobs, &next.priority[to * jobs]);
        };
        for (std::size_t i = 0; i < elites; ++i) {
            copy_to(rank[i], i);
            next.score[i] = population.score[rank[i]];
        }
        for (std::size_t i = elites; i < size; ++i) {
            Random random(seed, static_cast<std::uint64_t>(generation) * size + i);
            copy_to(rank[random.below(rates.parents)], i);
            const Genome other = genome(rank[random.below(rates.parents)]);
            const Child child{&next.core[i * jobs], &next.priority[i * jobs]};
            if (random.uniform() < rates.crossover_gen) crossover_gen(group, child, other, random);
            if (random.uniform() < rates.crossover_rg) crossover_rg(group, child, other, random);
            if (random.uniform() < rates.crossover_accel) crossover_accel(group, child, other, random);
            mutate(group, child, rates.mutation, random);
        }
        scores(group, &next.core[elites * jobs], &next.priority[elites * jobs], children, objective, threads, &next.score[elites]);
        std::swap(population, next);
        history.push_back(*std::min_element(population.score.begin(), population.score.end()));
    }
    return history;
}

}  // namespace loadmaster::mapping
