// Local search on queues: simulated annealing (Kirkpatrick et al., 1983) over moves of one job and
// exchanges of two.
#pragma once

#include "mapping/genome.hpp"

namespace loadmaster::mapping {

// Queues and what they score.
struct Walk {
    std::vector<std::int32_t> queues, best;
    double score, best_score;
};

// Tries `samples` random neighbours of `walk.queues`; one that is worse by a factor f is accepted
// with probability f^(-1 / temperature). Ends early once the best is at or below `target`. Returns
// the number of neighbours tried.
std::int64_t anneal(const Group &group, Walk &walk, Objective objective, double temperature,
    std::int64_t samples, double target, std::uint64_t seed, std::uint64_t stream);

} // namespace loadmaster::mapping
