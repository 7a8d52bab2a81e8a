#include "mapping/anneal.hpp"

#include "common/random.hpp"

#include <cmath>

namespace loadmaster::mapping {

namespace {

// Queues that jobs can move between, with the sums that bound what they take. Positions count the
// end marks too.
class Queues {
  public:
    Queues(const Group &group, std::vector<std::int32_t> &entries)
        : group_(group), entries_(entries), start_(group.cores + 1), load_(group.cores, 0.0) {
        std::int32_t core = 0;
        for (std::size_t at : indices(entries.size())) {
            if (entries[at] == group.jobs)
                start_[++core] = static_cast<std::int32_t>(at) + 1;
            else
                add(entries[at], core, 1.0);
        }
    }

    bool is_end(std::int32_t at) const { return entries_[at] == group_.jobs; }
    std::int32_t core_at(std::int32_t at) const {
        return static_cast<std::int32_t>(
                   std::upper_bound(start_.begin() + 1, start_.end(), at) - start_.begin()) -
            1;
    }
    std::int32_t begin(std::int32_t core) const { return start_[core]; }
    // Of its end mark.
    std::int32_t end(std::int32_t core) const { return start_[core + 1] - 1; }

    // Takes the job at `from` out and puts it where the entry at `to` was; if that is further on,
    // entries between move forward.
    void move(std::int32_t from, std::int32_t from_core, std::int32_t to, std::int32_t to_core) {
        const std::int32_t job = entries_[from];
        const auto first = entries_.begin();
        if (from < to)
            std::rotate(first + from, first + from + 1, first + to + 1);
        else
            std::rotate(first + to, first + from, first + from + 1);
        for (std::int32_t core = from_core + 1; core <= to_core; ++core) --start_[core];
        for (std::int32_t core = to_core + 1; core <= from_core; ++core) ++start_[core];
        if (from_core != to_core) {
            add(job, from_core, -1.0);
            add(job, to_core, 1.0);
        }
    }
    void exchange(std::int32_t a, std::int32_t a_core, std::int32_t b, std::int32_t b_core) {
        if (a_core != b_core) {
            add(entries_[a], a_core, -1.0);
            add(entries_[b], b_core, -1.0);
            add(entries_[a], b_core, 1.0);
            add(entries_[b], a_core, 1.0);
        }
        std::swap(entries_[a], entries_[b]);
    }

    double longest() const { return std::ranges::max(load_); }
    double traffic() const { return traffic_; }
    double energy() const { return energy_; }

  private:
    void add(std::int32_t job, std::int32_t core, double sign) {
        const Cell &cell = group_.cell(job, core);
        load_[core] += sign * cell.latency;
        traffic_ += sign * cell.latency * cell.demand;
        if (!group_.energy.empty())
            energy_ += sign * group_.energy[static_cast<std::size_t>(job) * group_.cores + core];
    }
    const Group &group_;
    std::vector<std::int32_t> &entries_;
    std::vector<std::int32_t> start_;
    std::vector<double> load_;
    double traffic_ = 0.0, energy_ = 0.0;
};

// The makespan, or `kNever` as soon as it is sure to be above `limit`.
template <int kLevels>
double makespan_within(const Group &group, Lane<kLevels, true> &lane,
    const std::vector<std::int32_t> &entries, const Queues &queues, double limit) {
    // Sums are kept up to date by differences; leave them room for that.
    const double longest = queues.longest() * (1 - 1e-9), traffic = queues.traffic() * (1 - 1e-9);
    if (std::max(longest, traffic) > limit) return kNever;
    if (group.two_clocks) return makespan_of_two_clocks(group, entries.data());
    lane.start(group, entries.data());
    constexpr std::int32_t kStride = 8;
    std::int32_t left = group.jobs;
    for (; left >= kStride; left -= kStride) {
        for (std::int32_t i = 0; i < kStride; ++i) lane.step(group);
        if (lane.at_least(longest, traffic) > limit) return kNever;
    }
    for (; left > 0; --left) lane.step(group);
    return lane.time();
}

// The longest makespan with which a mapping of this energy scores no more than `limit`.
double longest_makespan(Objective objective, double limit, double energy) {
    if (objective.energy == 0.0) return limit;
    if (objective.time == 0.0) return energy <= limit ? kNever : -1.0;
    return std::pow(limit / std::pow(energy, objective.energy), 1.0 / objective.time);
}

template <int kLevels>
std::int64_t anneal_on(const Group &group, Walk &walk, Objective objective, double temperature,
    std::int64_t samples, double target, Random &random) {
    std::vector<std::int32_t> &entries = walk.queues;
    Queues queues(group, entries);
    Lane<kLevels, true> lane;
    const auto length = static_cast<std::int32_t>(entries.size());
    const auto some_job = [&] {
        for (;;)
            if (const std::int32_t at = random.below(length); !queues.is_end(at)) return at;
    };
    std::int64_t tried = 0;
    while (tried < samples && walk.best_score > target) {
        ++tried;
        const std::int32_t a = some_job(), a_core = queues.core_at(a), job = entries[a];
        std::int32_t b, b_core;
        const bool exchange = random.bits() >> 63;
        if (exchange) {
            b = some_job();
            b_core = queues.core_at(b);
            if (a == b || !group.runs(job, b_core) || !group.runs(entries[b], a_core)) continue;
            queues.exchange(a, a_core, b, b_core);
        } else {
            b_core = random.below(group.cores);
            if (!group.runs(job, b_core)) continue;
            // Taking the job out moves what is behind it forward by one.
            const std::int32_t shift = b_core > a_core ? 1 : 0;
            const std::int32_t places =
                queues.end(b_core) - queues.begin(b_core) + (b_core == a_core ? 0 : 1);
            b = queues.begin(b_core) - shift + random.below(places);
            if (a == b) continue;
            queues.move(a, a_core, b, b_core);
        }
        const double limit = temperature > 0.0
            ? walk.score * std::exp(-temperature * std::log(1.0 - random.uniform()))
            : walk.score;
        const double longest = longest_makespan(objective, limit, queues.energy());
        const double makespan = longest < 0.0 ? kNever
            : objective.time == 0.0           ? 0.0
                                    : makespan_within(group, lane, entries, queues, longest);
        const double score =
            makespan < kNever ? objective.score(makespan, queues.energy()) : kNever;
        if (score <= limit) {
            walk.score = score;
            if (score < walk.best_score) {
                walk.best_score = score;
                walk.best = entries;
            }
        } else if (exchange) {
            queues.exchange(a, a_core, b, b_core);
        } else {
            queues.move(b, b_core, a, a_core);
        }
    }
    return tried;
}

} // namespace

std::int64_t anneal(const Group &group, Walk &walk, Objective objective, double temperature,
    std::int64_t samples, double target, std::uint64_t seed, std::uint64_t stream) {
    if (group.jobs == 0) return 0;
    Random random(seed, stream);
    return with_levels(group, [&](auto levels) {
        return anneal_on<levels()>(group, walk, objective, temperature, samples, target, random);
    });
}

} // namespace loadmaster::mapping
