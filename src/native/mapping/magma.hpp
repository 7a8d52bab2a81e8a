// MAGMA, the genetic algorithm of M3E (HPCA 2022): two genomes, four operators.
#pragma once

#include "mapping/genome.hpp"

namespace loadmaster::mapping {

struct Rates {
    double mutation, crossover_gen, crossover_rg, crossover_accel;
    std::int32_t elites,
        parents; // how many of the best live on, and how many of them have children
};

// A population, gene rows one after another, with the score of each.
struct Population {
    std::vector<std::int32_t> core;
    std::vector<std::uint32_t> priority;
    std::vector<double> score;
};

// Lets a scored population live for some generations; returns the best score after each. Every
// child has random numbers of its own.
std::vector<double> evolve(const Group &group, Population &population, const Rates &rates,
    Objective objective, std::int64_t first_generation, std::int64_t generations,
    std::uint64_t seed, int threads);

} // namespace loadmaster::mapping
