#include "solver.hpp"

#include "first_fit.hpp"
#include "model.hpp"
#include "orders.hpp"
#include "search.hpp"

#include <algorithm>
#include <array>

namespace loadmaster::allocation {

namespace {

constexpr std::int64_t kMostPairs = 8'000'000;  // of buffers alive together that the search is prepared to list
constexpr std::int64_t kFirstNodes = 1000;      // of an attempt; grows by half every kRound attempts
constexpr std::int64_t kRound = 6;

// One capacity after another on the same model: attempts are numbered through, so that no order is tried twice in the same way.
class Restarts {
  public:
    Restarts(const Model &model, const Settings &settings, Budget &budget)
        : model_(model), settings_(settings), budget_(budget), search_(model, settings.rules, budget) {}

    // `units`: capacity. Stops after about `nodes` nodes.
    Outcome run(std::int64_t units, std::int64_t nodes) {
        const std::int64_t until = nodes > std::numeric_limits<std::int64_t>::max() - budget_.nodes() ? std::numeric_limits<std::int64_t>::max() : budget_.nodes() + nodes;
        std::int64_t limit = kFirstNodes;
        for (std::int64_t attempt = 0;; ++attempt) {
            const std::int64_t left = until - budget_.nodes();
            if (left <= 0 || budget_.spent()) return Outcome::aborted;
            const Outcome outcome = search_.run(units, rank_of_attempt(model_, first_ + attempt, settings_.seed), std::min(limit, left));
            if (outcome != Outcome::aborted) return outcome;
            if (attempt % kRound == kRound - 1) {
                limit += limit / 2;
                if (nodes != std::numeric_limits<std::int64_t>::max() && until - budget_.nodes() < limit) {
                    first_ += attempt + 1;
                    return Outcome::aborted;
                }
            }
        }
    }
    std::vector<std::int64_t> offsets(const Buffers &buffers) const {
        std::vector<std::int64_t> offset(buffers.count());
        for (std::int64_t b = 0; b < buffers.count(); ++b) offset[b] = std::max<std::int64_t>(buffers.pin[b], 0);
        for (std::int32_t i = 0; i < model_.count; ++i) offset[model_.buffer[i]] = search_.offsets()[i] * model_.unit;
        return offset;
    }

  private:
    const Model &model_;
    const Settings settings_;
    Budget &budget_;
    Search search_;
    std::int64_t first_ = 0;
};

Model model_for(const Buffers &buffers, const Settings &settings) {
    return make_model(buffers, settings.rules & kPreprocessing, settings.rules & kTwins, kMostPairs);
}

// A better packing replaces the answer's.
bool improve(Answer &answer, const Buffers &buffers, std::vector<std::int64_t> &&offset) {
    const std::int64_t peak = peak_of(buffers, offset);
    if (answer.status != Status::unknown && peak >= answer.peak) return false;
    answer.peak = peak;
    answer.offset = std::move(offset);
    answer.status = Status::feasible;
    return true;
}

Answer start(const Buffers &buffers, std::span<const std::int64_t> hint, std::int64_t enough, Budget &budget) {
    Answer answer;
    answer.bound = simple_bound(buffers);
    const Greedy greedy = best_first_fit(buffers, hint, std::max(enough, answer.bound), budget);
    answer.offset.assign(buffers.count(), -1);
    if (greedy.packed) improve(answer, buffers, std::vector<std::int64_t>(greedy.offset));
    return answer;
}

}  // namespace

std::int64_t peak_of(const Buffers &buffers, std::span<const std::int64_t> offset) {
    std::int64_t peak = 0;
    for (std::int64_t b = 0; b < buffers.count(); ++b)
        if (buffers.matters(b)) peak = std::max(peak, offset[b] + buffers.size[b]);
    return peak;
}

Answer fit(const Buffers &buffers, std::span<const std::int64_t> hint, std::int64_t capacity, const Settings &settings, Budget &budget) {
    Answer answer;
    answer.bound = simple_bound(buffers);
    answer.offset.assign(buffers.count(), -1);
    if (answer.bound > capacity) {
        answer.status = Status::infeasible;
        return answer;
    }
    answer = start(buffers, hint, capacity, budget);
    if (answer.status == Status::feasible && answer.peak <= capacity) return answer;
    answer.status = Status::unknown;
    answer.peak = 0;
    answer.offset.assign(buffers.count(), -1);
    const Model model = model_for(buffers, settings);
    if (model.count < 0) return answer;
    Restarts restarts(model, settings, budget);
    const Outcome outcome = restarts.run(capacity / model.unit, std::numeric_limits<std::int64_t>::max());
    if (outcome == Outcome::solved) improve(answer, buffers, restarts.offsets(buffers));
    // With windows the search does not look everywhere.
    if (outcome == Outcome::failed && !model.windows) answer.status = Status::infeasible;
    return answer;
}

Answer minimise(const Buffers &buffers, std::span<const std::int64_t> hint, const Settings &settings, Budget &budget) {
    Answer answer = start(buffers, hint, 0, budget);
    const auto settled = [&] { return answer.status == Status::feasible && answer.peak == answer.bound; };
    const Model model = settled() ? Model{} : model_for(buffers, settings);
    if (!settled() && model.count > 0) {
        Restarts restarts(model, settings, budget);
        const auto known = [&] { return answer.status == Status::feasible ? answer.peak / model.unit : model.total + 1; };
        std::int64_t lowest = (answer.bound + model.unit - 1) / model.unit;  // no packing is known to be impossible from here on
        // A capacity below the best known, by a share of what is open: far jumps first, then the last step, with growing effort.
        constexpr std::array<double, 5> kShares{0.5, 0.0, 0.8, 0.25, 1.0};
        bool complete = true;
        std::int64_t nodes = 6 * kFirstNodes;
        while (lowest < known() && !budget.spent() && complete) {
            bool better = false;
            for (double share : kShares) {
                const std::int64_t open = known() - 1 - lowest;
                if (open < 0 || budget.spent()) break;
                const std::int64_t units = lowest + static_cast<std::int64_t>(static_cast<double>(open) * share);
                const Outcome outcome = restarts.run(units, nodes);
                if (outcome == Outcome::solved) better |= improve(answer, buffers, restarts.offsets(buffers));
                if (outcome == Outcome::failed && model.windows) complete = false;
                if (outcome == Outcome::failed && !model.windows) lowest = units + 1;
            }
            if (!better) nodes *= 2;
        }
        if (!model.windows) answer.bound = std::max(answer.bound, std::min(lowest, known()) * model.unit);
        if (lowest > model.total && answer.status == Status::unknown) answer.status = Status::infeasible;
    }
    if (settled()) answer.status = Status::optimal;
    return answer;
}

}  // namespace loadmaster::allocation
