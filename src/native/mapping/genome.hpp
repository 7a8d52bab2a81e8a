// M3E's encoding: for every job a core and a priority, smaller first. Priorities are counted in
// parts of 2^-32.
#pragma once

#include "mapping/group.hpp"

namespace loadmaster::mapping {

struct Genome {
    const std::int32_t *core;
    const std::uint32_t *priority;
};

// What a mapping is worth: makespan^time x energy^energy, to be minimised. Makespan is (1, 0),
// energy (0, 1), energy-delay product (1, 1).
struct Objective {
    double time, energy;
    double score(double makespan, double joules) const;
};

// Turns genomes into queues; holds the scratch space, so that nothing is allocated per sample.
class Decoder {
  public:
    explicit Decoder(const Group &group);
    // Writes `group.length()` entries; ties of priority go to the job that comes first.
    void queues(const Genome &genome, std::int32_t *out);
    // Sum over jobs on their cores.
    double energy(const Genome &genome) const;

  private:
    std::int32_t core_of(std::int32_t job, const Genome &genome) const {
        return group_.everywhere
            ? genome.core[job]
            : group_.stand_in[static_cast<std::size_t>(job) * group_.cores + genome.core[job]];
    }
    void settle();

    // Core, priority and job in one number: 10, 32 and 22 bits.
    const Group &group_;
    int shift_; // a bucket's number is a key without its last bits
    std::vector<std::int32_t> bucket_;
    std::vector<std::uint64_t> keys_, sorted_;
};

// Scores of `count` genomes, gene rows one after another, on up to `threads` threads.
void scores(const Group &group, const std::int32_t *core, const std::uint32_t *priority,
    std::size_t count, Objective objective, int threads, double *out);

} // namespace loadmaster::mapping
