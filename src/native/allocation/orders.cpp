#include "allocation/orders.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

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
    constexpr std::array<double, 4> kNoise{0.1, 0.2, 0.05, 0.4};
    // Pairs of slack weight and failure weight. Most problems are solved by searches that weigh
    // failures, the tightest ones by some that do not.
    constexpr std::array<std::pair<double, double>, 3> kUnperturbedWeights{
        {{50, 0.1}, {200, 0.1}, {100, 0.1}}};
    constexpr std::array<std::pair<double, double>, 4> kPerturbedWeights{
        {{200, 0}, {150, 0}, {100, 0.03}, {200, 0}}};
    Random random(seed * 0x2545f4914f6cdd1dULL + static_cast<std::uint64_t>(attempt));
    const auto round = static_cast<std::size_t>(attempt / kUnperturbedAttempts);
    const double noise = round == 0 ? 0 : kNoise[round % kNoise.size()];
    std::vector<double> key(model.count);
    for (std::int32_t b = 0; b < model.count; ++b) {
        const std::int32_t previous = model.previous_identical[b];
        key[b] = previous >= 0 ? key[previous]
                               : key_of(model, b, attempt % kUnperturbedAttempts) *
                (1 + noise * (2 * random.uniform() - 1));
    }
    std::vector<std::int32_t> order(model.count);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
        [&](std::int32_t a, std::int32_t b) { return key[a] > key[b]; });
    BranchingHeuristic heuristic;
    heuristic.tie_break_rank.resize(model.count);
    for (std::int32_t i = 0; i < model.count; ++i) heuristic.tie_break_rank[order[i]] = i;
    const auto turn = static_cast<std::size_t>(attempt);
    const auto &[slack, failure] = round == 0
        ? kUnperturbedWeights[turn % kUnperturbedWeights.size()]
        : kPerturbedWeights[turn % kPerturbedWeights.size()];
    heuristic.slack_weight = slack;
    heuristic.failure_weight = failure;
    return heuristic;
}

} // namespace loadmaster::allocation
