#include "allocation/at_scale.hpp"

#include "common/limits.hpp"

#include "allocation/plain.hpp"
#include "allocation/repair.hpp"
#include "allocation/sweep.hpp"

#include <algorithm>
#include <array>

namespace loadmaster::allocation {

namespace {

// All sweeps together examine at most this many gaps, and so does the sweep before the repair.
constexpr std::int64_t kGapBudget = 70'000'000;
// Placing what the sweeps left out examines at most this many neighbours, and so does each repair,
// or more where there are very many buffers.
constexpr std::int64_t kNeighbourBudget = 10'000'000, kRepairNeighboursPerBuffer = 40;
// If the peak is still this far above the bound after two sweeps, as a fraction of it, no more
// sweeps are made.
constexpr double kAbandonExcess = 0.03;
// The ceilings of the repairs lie this far above the bound, as fractions of it; where one fails,
// those below it are not tried.
constexpr std::array kRepairExcesses{0.0095, 0.0065, 0.0048};
constexpr double kWeightGrowth = 1.5;

struct Attempt {
    double excess; // how far the ceiling lies above the bound, as a fraction of it
    double affinity;
    bool backwards;
};

// The first sweeps suit lifetimes of many lengths, the later ones lifetimes of similar length.
constexpr std::array<Attempt, 9> kSweeps{
    {{0.005, 30, true}, {0.003, 3, false}, {0.005, 30, false}, {0.001, 3, false}, {0.001, 3, true},
        {0.003, 3, true}, {0.004, 10, false}, {0.004, 3, true}, {0, 10, false}}};

std::int64_t above(std::int64_t bound, double excess) {
    return bound + static_cast<std::int64_t>(excess * static_cast<double>(bound));
}

} // namespace

void pack_at_scale(const Buffers &buffers, std::int64_t bound, Budget &budget,
    const std::function<bool(std::vector<std::int64_t> &&)> &found) {
    if (!Plain::possible(buffers)) return;
    const Plain plain(buffers, false), mirrored(buffers, true);
    const Neighbours near(buffers);
    std::int64_t lowest = kUnlimited;
    const auto offer = [&](std::vector<std::int64_t> &&offset) {
        lowest = std::min(lowest, peak_of(buffers, offset));
        return found(std::move(offset)) && budget.look();
    };
    std::int64_t gaps = kGapBudget, neighbours = kNeighbourBudget;
    int swept = 0;
    for (const Attempt &attempt : kSweeps) {
        std::vector<std::int64_t> offset = sweep(attempt.backwards ? mirrored : plain,
            above(bound, attempt.excess), attempt.affinity, gaps, budget);
        if (offset.empty() || !place_at_lowest_gap(near, offset, neighbours, budget)) break;
        if (!offer(std::move(offset))) return;
        if (++swept == 2 && lowest > above(bound, kAbandonExcess)) break;
    }
    for (const double excess : kRepairExcesses) {
        const std::int64_t ceiling = above(bound, excess);
        if (lowest <= ceiling) continue;
        gaps = kGapBudget,
        neighbours = std::max(kNeighbourBudget, kRepairNeighboursPerBuffer * buffers.count());
        std::vector<std::int64_t> offset = sweep(plain, above(bound, excess / 2), 1, gaps, budget);
        if (offset.empty() || !repair(near, offset, ceiling, kWeightGrowth, neighbours, budget))
            return;
        if (!offer(std::move(offset))) return;
    }
}

} // namespace loadmaster::allocation
