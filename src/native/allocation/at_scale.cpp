#include "allocation/at_scale.hpp"

#include "allocation/plain.hpp"
#include "allocation/repair.hpp"
#include "allocation/sweep.hpp"

#include <algorithm>
#include <array>
#include <limits>

namespace loadmaster::allocation {

namespace {

constexpr std::int64_t kGaps = 70'000'000;       // to look at in all sweeps
constexpr std::int64_t kNeighbours = 10'000'000; // to look at in all topping up and squeezing, and in each repair
constexpr double kStrip = 0.0035;                // of the bound, above the ceiling: where what was left out may go

struct Attempt {
    double share;  // of the bound, above it: the ceiling
    double affinity;
    bool backwards;
};

constexpr double kHopeless = 0.03;               // a peak so far above the bound after two sweeps: more will not help

// The first ones for lifetimes of all lengths, the others for lifetimes alike.
constexpr std::array<Attempt, 9> kSweeps{{{0.005, 30, true}, {0.003, 3, false}, {0.005, 30, false}, {0.001, 3, false}, {0.001, 3, true}, {0.003, 3, true}, {0.004, 10, false}, {0.004, 3, true}, {0, 10, false}}};
constexpr double kRepair = 0.0095;  // of the bound, above it: the ceiling of the repair

std::int64_t above(std::int64_t bound, double share) { return bound + static_cast<std::int64_t>(share * static_cast<double>(bound)); }

}  // namespace

void pack_at_scale(const Buffers &buffers, std::int64_t bound, Budget &budget, const std::function<bool(const char *, std::vector<std::int64_t> &&)> &found) {
    if (!Plain::possible(buffers)) return;
    const Plain plain(buffers, false), mirrored(buffers, true);
    const Company company(plain);
    std::int64_t lowest = std::numeric_limits<std::int64_t>::max();
    const auto offer = [&](const char *name, const std::vector<std::int64_t> &offset) {
        std::int64_t peak = 0;
        std::vector<std::int64_t> whole(buffers.count(), 0);
        for (std::int32_t b = 0; b < plain.count(); ++b) whole[plain.buffer[b]] = offset[b];
        for (std::int32_t b = 0; b < plain.count(); ++b) peak = std::max(peak, offset[b] + plain.size[b]);
        lowest = std::min(lowest, peak);
        return found(name, std::move(whole)) && budget.look();
    };
    const auto leave_out = [&](std::vector<std::int64_t> &offset, std::int64_t ceiling) {
        for (std::int32_t b = 0; b < plain.count(); ++b)
            if (offset[b] + plain.size[b] > ceiling) offset[b] = -1;
    };
    std::int64_t gaps = kGaps, neighbours = kNeighbours;
    int swept = 0;
    for (const Attempt &attempt : kSweeps) {
        std::vector<std::int64_t> offset = sweep(attempt.backwards ? mirrored : plain, above(bound, attempt.share), attempt.affinity, gaps, budget);
        if (offset.empty()) break;
        if (!top_up(plain, company, offset, neighbours, budget)) break;
        if (!offer("sweep", offset)) return;
        leave_out(offset, above(bound, attempt.share + kStrip));
        squeeze_in(plain, company, offset, above(bound, attempt.share + kStrip), neighbours, budget);
        if (!top_up(plain, company, offset, neighbours, budget)) break;
        if (!offer("sweep", offset)) return;
        if (++swept == 2 && lowest > above(bound, kHopeless)) break;
    }
    const std::int64_t ceiling = above(bound, kRepair);
    if (lowest <= ceiling) return;
    gaps = kGaps, neighbours = kNeighbours;
    std::vector<std::int64_t> offset = sweep(plain, above(bound, kRepair / 2), 1, gaps, budget);
    if (!offset.empty() && repair(plain, company, offset, ceiling, neighbours, budget)) offer("sweep and repair", offset);
}

}  // namespace loadmaster::allocation
