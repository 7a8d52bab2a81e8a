#include "allocation/lower_ceilings.hpp"

#include "allocation/neighbours.hpp"
#include "allocation/repair.hpp"
#include "allocation/solver.hpp"
#include "common/random.hpp"

#include <algorithm>
#include <memory>

namespace loadmaster::allocation {

namespace {

// The first step down and the last, as fractions of what is aimed at.
constexpr double kFirstStep = 0.02, kLastStep = 0.0005;
// One ceiling may take this share of the work.
constexpr std::int64_t kShare = 8;
constexpr double kWeightGrowth = 1.1;

} // namespace

std::vector<std::int64_t> lower_ceilings(const Buffers &buffers, std::vector<std::int64_t> offset,
    std::int64_t enough, Ejections ejections, std::uint64_t seed, std::int64_t work,
    Budget &budget) {
    const bool at_random = ejections == Ejections::at_random;
    const std::unique_ptr<Neighbours> near = at_random ? std::make_unique<StoredNeighbours>(buffers)
                                                       : std::make_unique<Neighbours>(buffers);
    Random random(seed);
    for (std::int64_t b : indices(buffers.count()))
        if (buffers.pin[b] >= 0)
            enough = std::max(enough, buffers.pin[b] + buffers.size[b]); // no ceiling moves these
    std::int64_t peak = peak_of(buffers, offset), left = work;
    for (double step = kFirstStep;
        step >= kLastStep && left > 0 && peak > enough && budget.look();) {
        const std::int64_t ceiling = std::max(
            enough, peak - 1 - static_cast<std::int64_t>(step * static_cast<double>(enough)));
        std::vector<std::int64_t> trial = offset;
        for (std::int64_t b : indices(buffers.count()))
            if (trial[b] + buffers.size[b] > ceiling && buffers.pin[b] < 0) trial[b] = -1;
        const std::int64_t share = std::min(left, work / kShare);
        std::int64_t unspent = share;
        const bool lower = at_random
            ? repair_at_random(*near, trial, ceiling, random, unspent, budget)
            : repair(*near, trial, ceiling, kWeightGrowth, unspent, budget);
        left -= share - std::max<std::int64_t>(0, unspent);
        if (!lower) {
            step /= 2;
            continue;
        }
        offset = std::move(trial);
        peak = peak_of(buffers, offset);
    }
    return offset;
}

} // namespace loadmaster::allocation
