#include "at_scale.hpp"

#include "plain.hpp"
#include "repair.hpp"
#include "sweep.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>

namespace loadmaster::allocation {

namespace {

constexpr std::int64_t kGaps = 150'000'000;     // to look at in all sweeps
constexpr std::int64_t kNeighbours = 6'000'000;  // to look at in one repair

struct Attempt {
    double share;  // of the bound, above it: the ceiling
    double affinity;
    bool backwards;
};

constexpr std::array<Attempt, 4> kSweeps{{{0.004, 10, false}, {0.004, 10, true}, {0.001, 3, false}, {0.01, 1, false}}};
constexpr std::array<double, 4> kRepairs{0.01, 0.005, 0.0025, 0.001};

std::int64_t above(std::int64_t bound, double share) { return bound + static_cast<std::int64_t>(share * static_cast<double>(bound)); }

}  // namespace

void pack_at_scale(const Buffers &buffers, std::int64_t bound, Budget &budget, const std::function<bool(const char *, std::vector<std::int64_t> &&)> &found) {
    if (!Plain::possible(buffers)) return;
    const Plain plain(buffers, false), mirrored(buffers, true);
    const Company company(plain);
    const auto offer = [&](const char *name, const std::vector<std::int64_t> &offset) {
        std::vector<std::int64_t> whole(buffers.count(), 0);
        for (std::int32_t b = 0; b < plain.count(); ++b) whole[plain.buffer[b]] = offset[b];
        return found(name, std::move(whole)) && budget.look();
    };
    std::int64_t gaps = kGaps;
    for (const Attempt &attempt : kSweeps) {
        std::vector<std::int64_t> offset = sweep(attempt.backwards ? mirrored : plain, above(bound, attempt.share), attempt.affinity, gaps, budget);
        if (offset.empty()) break;
        top_up(plain, company, offset);
        if (!offer("sweep", offset)) return;
    }
    std::vector<std::int64_t> offset;
    for (double share : kRepairs) {
        const std::int64_t ceiling = above(bound, share);
        if (offset.empty()) {
            gaps = kGaps;
            offset = sweep(plain, ceiling, 1, gaps, budget);
            if (offset.empty()) return;
        }
        for (std::int32_t b = 0; b < plain.count(); ++b)
            if (offset[b] + plain.size[b] > ceiling) offset[b] = -1;
        std::int64_t neighbours = kNeighbours;
        if (!repair(plain, company, offset, ceiling, neighbours, budget)) return;
        if (!offer("sweep and repair", offset)) return;
    }
}

}  // namespace loadmaster::allocation
