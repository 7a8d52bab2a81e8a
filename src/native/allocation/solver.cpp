#include "allocation/solver.hpp"

#include "allocation/first_fit.hpp"
#include "allocation/model.hpp"
#include "allocation/restarts.hpp"

#include <algorithm>
#include <utility>

namespace loadmaster::allocation {

namespace {

// With more pairs of buffers alive together than this, there is no exact search, because it lists
// them.
constexpr std::int64_t kPairLimit = 8'000'000;
// With more buffers than this, there is no exact search, because it recurses once for each and
// stacks are 8 MiB.
constexpr std::int64_t kBufferLimit = 15'000;
// The first turns of a descent take this many nodes each; later turns take more.
constexpr std::int64_t kFirstTurnNodes = 12'000;

Model model_for(const Buffers &buffers) {
    Model none;
    none.count = -1;
    return buffers.count() > kBufferLimit ? none : make_model(buffers, kPairLimit);
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

// What bounds and orders say; unknown where they do not settle whether it fits.
Answer start(const Buffers &buffers, std::span<const std::int64_t> hint, std::int64_t capacity,
    std::int64_t bound, Budget &budget) {
    Answer answer;
    answer.bound = std::max(bound, simple_bound(buffers));
    answer.offset.assign(buffers.count(), -1);
    if (capacity >= 0 && answer.bound > capacity) {
        answer.status = Status::infeasible;
        return answer;
    }
    Greedy greedy = best_first_fit(buffers, hint, std::max(capacity, answer.bound), budget);
    if (greedy.packed && (capacity < 0 || greedy.peak <= capacity))
        improve(answer, buffers, std::move(greedy.offset));
    return answer;
}

} // namespace

Answer fit(const Buffers &buffers, std::span<const std::int64_t> hint, std::int64_t capacity,
    const Settings &settings, Budget &budget) {
    Answer answer = start(buffers, hint, capacity, settings.bound, budget);
    if (answer.status != Status::unknown) return answer;
    const Model model = model_for(buffers);
    if (model.count < 0) return answer;
    // Alternates between the capacity and the load bound: without slack dead ends show at once, and
    // a packing at the bound fits as well.
    const std::int64_t most = capacity / model.unit,
                       least = (answer.bound + model.unit - 1) / model.unit;
    Restarts wide(model, settings, budget), tight(model, settings, budget);
    bool open = least < most;
    for (std::int64_t nodes = kFirstTurnNodes / 6; !budget.spent(); nodes *= 2) {
        const Outcome outcome = wide.run(most, open ? nodes : budget.left());
        if (outcome == Outcome::solved) improve(answer, buffers, wide.offsets(buffers));
        // Where buffers leave their low bytes free, the search is not complete.
        if (outcome == Outcome::failed && model.orderly) answer.status = Status::infeasible;
        if (outcome != Outcome::aborted || !open || budget.spent()) break;
        const Outcome below = tight.run(least, nodes);
        if (below == Outcome::solved) improve(answer, buffers, tight.offsets(buffers));
        if (below == Outcome::solved) break;
        open = below == Outcome::aborted;
    }
    return answer;
}

namespace {

// Two ends towards each other: turns at the lowest capacity that may still do (met, it is a proof;
// exhausted, a better bound), and turns below the best known, in steps that double with success and
// halve without.
class Descent {
  public:
    Descent(const Buffers &buffers, const Model &model, const Settings &settings, Budget &budget,
        Answer &answer)
        : buffers_(buffers), model_(model), budget_(budget), answer_(answer),
          restarts_(model, settings, budget) {
        lowest_ = (answer.bound + model.unit - 1) / model.unit;
        step_ = std::max<std::int64_t>(1, (known() - lowest_) / 2);
    }
    void run() {
        for (std::int64_t nodes = kFirstTurnNodes; open();) {
            attempt(lowest_, nodes);
            for (bool better = true; open() && better;) {
                better = attempt(std::max(lowest_, known() - step_), nodes) == Outcome::solved;
                if (better) step_ *= 2;
            }
            if (step_ == 1) nodes += nodes / 2;
            step_ = std::max<std::int64_t>(1, step_ / 2);
        }
        if (model_.orderly)
            answer_.bound = std::max(answer_.bound, std::min(lowest_, known()) * model_.unit);
        if (lowest_ > model_.total && answer_.status == Status::unknown)
            answer_.status = Status::infeasible;
    }

  private:
    std::int64_t known() const {
        return answer_.status == Status::feasible ? answer_.peak / model_.unit : model_.total + 1;
    }
    bool open() const { return lowest_ < known() && !budget_.spent() && !stuck_; }
    Outcome attempt(std::int64_t units, std::int64_t nodes) {
        if (!open()) return Outcome::aborted;
        const Outcome outcome = restarts_.run(units, nodes);
        if (outcome == Outcome::solved) improve(answer_, buffers_, restarts_.offsets(buffers_));
        // Where buffers leave their low bytes free, an exhausted search proves nothing.
        if (outcome == Outcome::failed && !model_.orderly) stuck_ = true;
        if (outcome == Outcome::failed && model_.orderly) lowest_ = units + 1;
        return outcome;
    }
    const Buffers &buffers_;
    const Model &model_;
    Budget &budget_;
    Answer &answer_;
    Restarts restarts_;
    std::int64_t lowest_, step_;
    bool stuck_ = false;
};

} // namespace

Answer minimise(const Buffers &buffers, std::span<const std::int64_t> hint,
    const Settings &settings, Budget &budget) {
    Answer answer = start(buffers, hint, -1, settings.bound, budget);
    const auto settled = [&] {
        return answer.status == Status::feasible && answer.peak == answer.bound;
    };
    if (!settled()) {
        const Model model = model_for(buffers);
        if (model.count > 0) Descent(buffers, model, settings, budget, answer).run();
    }
    if (settled()) answer.status = Status::optimal;
    return answer;
}

} // namespace loadmaster::allocation
