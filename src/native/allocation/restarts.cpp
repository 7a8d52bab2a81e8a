#include "allocation/restarts.hpp"

#include "common/limits.hpp"

#include "allocation/orders.hpp"
#include "common/deep_thread.hpp"

#include <algorithm>
#include <utility>

namespace loadmaster::allocation {

namespace {

// An attempt may take this many nodes, times the term of the Luby sequence for its round.
constexpr std::int64_t kLubyUnitNodes = 1000;
// No attempt of the round has found a packing or proven that there is none.
constexpr std::int64_t kUnsettled = kUnlimited;

// 1 1 2 1 1 2 4 ...: within a logarithm of the best restarts, whatever the distribution of search
// times (Luby, Sinclair, Zuckerman 1993).
std::int64_t luby(std::int64_t i) {
    std::int64_t power = 1;
    while (2 * power - 1 < i) power *= 2;
    return 2 * power - 1 == i ? power : luby(i - power + 1);
}

} // namespace

Outcome Restarts::run(std::int64_t units, std::int64_t nodes) {
    std::int64_t left = std::min(nodes, budget_.left());
    std::int64_t number = std::exchange(last_units_, units) == units ? perturbed_ : 0;
    std::int64_t given = 0;
    std::vector<Attempt> round;
    for (std::int64_t tried = 0; left > 0 && !budget_.spent();) {
        round.clear();
        // The first attempts run one by one: they settle most problems, and what each learns serves
        // the next.
        const std::int64_t size = tried < kUnperturbedAttempts ? 1 : kLanes;
        for (; std::ssize(round) < size && left > 0; ++tried, ++number) {
            // A new capacity goes through the unperturbed orders, then continues where the
            // perturbed ones stopped.
            if (number == kUnperturbedAttempts) number = std::max(number, perturbed_);
            // The first attempt of a round gets a growing budget, so that some attempt exhausts the
            // search space in the end.
            const bool far = size > 1 && round.empty();
            const std::int64_t limit = std::min(left,
                std::max(
                    far ? given / 4 : 0, kLubyUnitNodes * luby(tried / kUnperturbedAttempts + 1)));
            round.push_back({number, limit});
            left -= limit;
            given += limit;
        }
        perturbed_ = std::max(perturbed_, number);
        const Outcome outcome = run_round(units, round);
        if (outcome != Outcome::aborted) return outcome;
    }
    return Outcome::aborted;
}

// The first attempt, by number, that settles the matter counts, and only the work up to there.
Outcome Restarts::run_round(std::int64_t units, std::vector<Attempt> &round) {
    std::atomic<std::int64_t> settled = kUnsettled;
    until_settled(
        std::ssize(round), settings_.threads, false, settled, [&](std::int64_t place, bool looks) {
            Attempt &attempt = round[place];
            Allowance allowance(budget_, looks, attempt.limit, place, settled);
            attempt.outcome = lane(place).run(
                units, heuristic_of_attempt(model_, attempt.number, settings_.seed), allowance);
            attempt.nodes = allowance.nodes();
            return attempt.outcome != Outcome::aborted;
        });
    for (const Attempt &attempt : round) {
        budget_.add(attempt.nodes);
        if (attempt.outcome == Outcome::aborted) continue;
        solved_ = &attempt - round.data();
        for (auto &search : lanes_)
            if (search) search->forget();
        return attempt.outcome;
    }
    return Outcome::aborted;
}

Search &Restarts::lane(std::int64_t place) {
    auto &search = lanes_[place];
    if (!search) search = std::make_unique<Search>(model_);
    return *search;
}

std::vector<std::int64_t> Restarts::offsets(const Buffers &buffers) const {
    const std::vector<std::int64_t> &found = lanes_[solved_]->offsets();
    std::vector<std::int64_t> offset(buffers.count());
    for (std::int64_t b : indices(buffers.count()))
        offset[b] = std::max<std::int64_t>(buffers.pin[b], 0);
    for (std::int32_t i : indices(model_.count)) offset[model_.buffer[i]] = found[i] * model_.unit;
    return offset;
}

} // namespace loadmaster::allocation
