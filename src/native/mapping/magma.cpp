#include "mapping/magma.hpp"

#include "common/parallel.hpp"
#include "common/random.hpp"

#include <barrier>
#include <cmath>
#include <numeric>

namespace loadmaster::mapping {

namespace {

struct Child {
    std::int32_t *core;
    std::uint32_t *priority;
};

std::uint32_t random_priority(Random &random) {
    return static_cast<std::uint32_t>(random.bits() >> 32);
}

// The child takes what is past a pivot of one genome from the other parent; its other genome stays.
void crossover_gen(const Group &group, const Child &child, const Genome &other, Random &random) {
    const std::int32_t pivot = random.below(group.jobs);
    if (random.bits() >> 63)
        std::copy(other.core + pivot, other.core + group.jobs, child.core + pivot);
    else
        std::copy(other.priority + pivot, other.priority + group.jobs, child.priority + pivot);
}

// The child takes both genomes of a range of jobs, so that cores and order that belong together
// stay together.
void crossover_rg(const Group &group, const Child &child, const Genome &other, Random &random) {
    const std::int32_t a = random.below(group.jobs), b = random.below(group.jobs);
    const std::int32_t begin = std::min(a, b), end = std::max(a, b) + 1;
    std::copy(other.core + begin, other.core + end, child.core + begin);
    std::copy(other.priority + begin, other.priority + end, child.priority + begin);
}

// The child takes all that the other parent runs on one core, with its order; what it had there
// itself goes to random cores.
void crossover_accel(const Group &group, const Child &child, const Genome &other, Random &random) {
    const std::int32_t core = random.below(group.cores);
    for (std::int32_t job : indices(group.jobs)) {
        if (other.core[job] == core) {
            child.core[job] = core;
            child.priority[job] = other.priority[job];
        } else if (child.core[job] == core) {
            child.core[job] = random.below(group.cores);
        }
    }
}

// Each gene of either genome is replaced with a small probability: jump from one replaced gene to
// the next.
void mutate(const Group &group, const Child &child, double rate, Random &random) {
    if (rate <= 0.0) return;
    const double scale = rate < 1.0 ? 1.0 / std::log(1.0 - rate) : 0.0;
    const std::int64_t genes = 2 * static_cast<std::int64_t>(group.jobs);
    for (std::int64_t gene = 0;; ++gene) {
        const double skip = std::log(1.0 - random.uniform()) * scale;
        if (skip >= static_cast<double>(genes - gene)) return;
        gene += static_cast<std::int64_t>(skip);
        if (gene < group.jobs)
            child.core[gene] = random.below(group.cores);
        else
            child.priority[gene - group.jobs] = random_priority(random);
    }
}

// One generation after another. Children are bred and scored in parts, in parallel: what is random
// in a child depends on its number alone.
class Evolution {
  public:
    Evolution(const Group &group, Population &population, const Rates &rates, Objective objective,
        std::int64_t first, std::uint64_t seed)
        : group_(group), now_(population), next_(population), rates_(rates), objective_(objective),
          generation_(first), seed_(seed), rank_(population.score.size()) {}

    std::size_t children() const { return rank_.size() - static_cast<std::size_t>(rates_.elites); }

    // Ranks the population, and hands its elites on.
    void select() {
        std::iota(rank_.begin(), rank_.end(), std::size_t{0});
        const std::size_t kept = std::max<std::size_t>(rates_.elites, rates_.parents);
        const std::vector<double> &score = now_.score;
        std::partial_sort(
            rank_.begin(), rank_.begin() + kept, rank_.end(), [&](std::size_t a, std::size_t b) {
                return score[a] != score[b] ? score[a] < score[b] : a < b;
            });
        for (std::size_t i = 0; i < static_cast<std::size_t>(rates_.elites); ++i) {
            copy_to(rank_[i], i);
            next_.score[i] = score[rank_[i]];
        }
    }

    // Children `begin` .. `end`, with their scores.
    void breed(std::size_t begin, std::size_t end) {
        const std::size_t size = rank_.size(), jobs = group_.jobs, elites = rates_.elites;
        for (std::size_t i = elites + begin; i < elites + end; ++i) {
            Random random(seed_, static_cast<std::uint64_t>(generation_) * size + i);
            copy_to(rank_[random.below(rates_.parents)], i);
            const Genome other = genome(rank_[random.below(rates_.parents)]);
            const Child child{&next_.core[i * jobs], &next_.priority[i * jobs]};
            if (random.uniform() < rates_.crossover_gen)
                crossover_gen(group_, child, other, random);
            if (random.uniform() < rates_.crossover_rg) crossover_rg(group_, child, other, random);
            if (random.uniform() < rates_.crossover_accel)
                crossover_accel(group_, child, other, random);
            mutate(group_, child, rates_.mutation, random);
        }
        const std::size_t from = elites + begin;
        scores(group_, &next_.core[from * jobs], &next_.priority[from * jobs], end - begin,
            objective_, 1, &next_.score[from]);
    }

    // The children have grown up; returns the best score.
    double age() {
        std::swap(now_, next_);
        ++generation_;
        return std::ranges::min(now_.score);
    }

  private:
    Genome genome(std::size_t i) const {
        return {&now_.core[i * group_.jobs], &now_.priority[i * group_.jobs]};
    }
    void copy_to(std::size_t from, std::size_t to) {
        std::copy_n(genome(from).core, group_.jobs, &next_.core[to * group_.jobs]);
        std::copy_n(genome(from).priority, group_.jobs, &next_.priority[to * group_.jobs]);
    }

    const Group &group_;
    Population &now_;
    Population next_;
    const Rates &rates_;
    Objective objective_;
    std::int64_t generation_;
    std::uint64_t seed_;
    std::vector<std::size_t> rank_;
};

} // namespace

std::vector<double> evolve(const Group &group, Population &population, const Rates &rates,
    Objective objective, std::int64_t first_generation, std::int64_t generations,
    std::uint64_t seed, int threads) {
    Evolution evolution(group, population, rates, objective, first_generation, seed);
    std::vector<double> history;
    history.reserve(generations);
    const std::size_t children = evolution.children();
    const std::size_t parts =
        std::clamp<std::size_t>(children, 1, static_cast<std::size_t>(std::max(1, threads)));
    evolution.select();
    // A generation takes a fraction of a millisecond: threads last for all of them, and wait for
    // each other in between.
    std::barrier grown(static_cast<std::ptrdiff_t>(parts), [&]() noexcept {
        history.push_back(evolution.age());
        evolution.select();
    });
    in_parallel(parts, threads, [&](std::size_t part, std::size_t) {
        for (std::int64_t generation = 0; generation < generations; ++generation) {
            evolution.breed(children * part / parts, children * (part + 1) / parts);
            grown.arrive_and_wait();
        }
    });
    return history;
}

} // namespace loadmaster::mapping
