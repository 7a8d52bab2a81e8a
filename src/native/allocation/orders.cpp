#include "allocation/orders.hpp"

#include <array>

namespace loadmaster::allocation {

namespace {

double key_of(const Model &model, std::int32_t b, std::int64_t kind) {
    const double slots = model.hull_end[b] - model.hull_begin[b], length = model.length[b];
    const double size = static_cast<double>(model.size[b]),
                 contention = static_cast<double>(model.contention[b]);
    switch (kind) {
    case 0:
        return slots * (1 + 1e-6 * size / contention);
    case 1:
        return size * slots;
    case 2:
        return length;
    case 3:
        return contention * slots * slots;
    case 4:
        return slots * slots * size;
    default:
        return slots * contention;
    }
}

} // namespace

BranchingHeuristic heuristic_of_attempt(
    const Model &model, std::int64_t attempt, std::uint64_t seed) {
    // Keys of perturbed orders are multiplied by a random factor between 1 - noise and 1 + noise.
    constexpr double kNoise = 0.2;
    constexpr std::array<double, 3> kUnperturbedSlack{50, 200, 100};
    constexpr std::array<double, 4> kPerturbedSlack{200, 150, 100, 200};
    Random random(seed * 0x2545f4914f6cdd1dULL + static_cast<std::uint64_t>(attempt));
    const bool perturbed = attempt >= kUnperturbedAttempts;
    const double noise = perturbed ? kNoise : 0;
    std::vector<double> key(model.count);
    for (std::int32_t b : indices(model.count)) {
        const std::int32_t previous = model.previous_identical[b];
        key[b] = previous >= 0 ? key[previous]
                               : key_of(model, b, attempt % kUnperturbedAttempts) *
                (1 + noise * (2 * random.uniform() - 1));
    }
    const auto order = sorted_by<std::int32_t>(key.size(), [&](std::int32_t b) { return -key[b]; });
    // Most problems are solved by searches that weigh failures, the tightest by others.
    BranchingHeuristic heuristic{std::vector<std::int32_t>(order.size()),
        perturbed ? kPerturbedSlack[attempt % kPerturbedSlack.size()]
                  : kUnperturbedSlack[attempt % kUnperturbedSlack.size()],
        perturbed ? 0 : 0.1};
    for (std::int32_t i : indices(model.count)) heuristic.rank[order[i]] = i;
    return heuristic;
}

} // namespace loadmaster::allocation
