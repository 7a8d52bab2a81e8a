#include "mapping/genome.hpp"

#include "common/parallel.hpp"

#include <cmath>

namespace loadmaster::mapping {

// As `Group.score` in loadmaster/mapping/group.py; tests/test_twins.py holds the two together.
double Objective::score(double makespan, double joules) const {
    if (energy == 0.0) return makespan;
    if (time == 0.0) return joules;
    return std::pow(makespan, time) * std::pow(joules, energy);
}

namespace {

constexpr int kJobBits = 22, kCoreShift = 32 + kJobBits;
static_assert(kMostJobs == 1 << kJobBits && kMostCores == 1 << (64 - kCoreShift));

} // namespace

Decoder::Decoder(const Group &group) : group_(group), keys_(group.jobs), sorted_(group.jobs) {
    // One to two buckets a job, so that few jobs share one.
    const int per_core = std::bit_width(static_cast<unsigned>(3 * group.jobs / group.cores / 2));
    shift_ = kCoreShift - per_core;
    bucket_.resize((static_cast<std::size_t>(group.cores) << per_core) + 1);
}

// Neighbours are nearly in order, unless priorities are crowded.
void Decoder::settle() {
    std::int64_t patience = 8 * static_cast<std::int64_t>(group_.jobs);
    for (std::int32_t at = 1; at < group_.jobs; ++at) {
        const std::uint64_t moving = sorted_[at];
        std::int32_t to = at;
        for (; to > 0 && sorted_[to - 1] > moving; --to) sorted_[to] = sorted_[to - 1];
        sorted_[to] = moving;
        if ((patience -= at - to) < 0) {
            std::ranges::sort(sorted_);
            return;
        }
    }
}

void Decoder::queues(const Genome &genome, std::int32_t *out) {
    std::ranges::fill(bucket_, 0);
    for (std::int32_t job : indices(group_.jobs)) {
        keys_[job] = static_cast<std::uint64_t>(core_of(job, genome)) << kCoreShift |
            static_cast<std::uint64_t>(genome.priority[job]) << kJobBits | job;
        ++bucket_[(keys_[job] >> shift_) + 1];
    }
    std::int32_t sum = 0;
    for (std::int32_t &count : bucket_) count = sum += count;
    for (const std::uint64_t key : keys_) sorted_[bucket_[key >> shift_]++] = key;
    settle();
    std::int32_t core = 0;
    for (const std::uint64_t key : sorted_) {
        for (; core < static_cast<std::int32_t>(key >> kCoreShift); ++core) *out++ = group_.jobs;
        *out++ = static_cast<std::int32_t>(key & (kMostJobs - 1));
    }
    for (; core < group_.cores; ++core) *out++ = group_.jobs;
}

double Decoder::energy(const Genome &genome) const {
    double sum = 0.0;
    for (std::int32_t job : indices(group_.jobs)) {
        const std::size_t row = static_cast<std::size_t>(job) * group_.cores;
        sum += group_.energy[row + core_of(job, genome)];
    }
    return sum;
}

void scores(const Group &group, const std::int32_t *core, const std::uint32_t *priority,
    std::size_t count, Objective objective, int threads, double *out) {
    constexpr std::size_t kBlock = 8;
    in_parallel(count, threads, [&](std::size_t begin, std::size_t end) {
        Decoder decoder(group);
        std::vector<std::int32_t> queues(kBlock * group.length());
        for (std::size_t done = begin; done < end; done += kBlock) {
            const std::size_t here = std::min(kBlock, end - done);
            const auto genome = [&](std::size_t i) {
                return Genome{core + (done + i) * group.jobs, priority + (done + i) * group.jobs};
            };
            if (objective.time != 0.0) {
                for (std::size_t i : indices(here))
                    decoder.queues(genome(i), &queues[i * group.length()]);
                makespans(group, queues.data(), here, out + done);
            }
            if (objective.energy != 0.0)
                for (std::size_t i : indices(here))
                    out[done + i] = objective.score(out[done + i], decoder.energy(genome(i)));
        }
    });
}

} // namespace loadmaster::mapping
