#include "cutting/improve.hpp"

#include "common/limits.hpp"

#include "common/random.hpp"
#include "cutting/piece_simulator.hpp"

#include <algorithm>
#include <cmath>
#include <functional>

namespace loadmaster::cutting {

namespace {

// Random changes for every option, on average. Half as many find plans that are 0.3 % longer.
constexpr double kRounds = 8.0;
// How much longer a choice may be than the one that it replaces, as a share, in the mean and at
// first.
constexpr double kTolerance = 0.001;
// Most choices that are annealed. Screening finds 0.6 % less in the better of two than in one, and
// 0.2 % less in the best of three.
constexpr std::int64_t kTimes = 2;
// Share of the changes that take an option at most so many before or behind the one that is
// chosen: neighbours are cut along the same dimension for a core more or less. All changes at
// random find plans that are 0.3 % longer.
constexpr double kNear = 0.8;
constexpr std::int64_t kNeighbours = 8;

struct Found {
    Outcome outcome;
    std::vector<std::int64_t> option; // of every operator
};

class Improvement {
  public:
    Improvement(const Network &network, std::int64_t most)
        : network_(network), simulator_(network), left_(most), option_(network.operators, 0),
          now_(simulator_.run(option_)) {}

    // Coordinate descent: changes one operator after the other, until no change helps.
    void descend() {
        std::size_t settled = 0; // operators since the last change that has helped
        for (std::size_t op = 0; settled < network_.operators && left_ > 0;
            op = (op + 1) % network_.operators, ++settled)
            for (std::int64_t other = 0; other < options(op) && left_ > 0; ++other)
                if (other != option_[op] && change(op, other, now_)) settled = 0;
    }

    // Simulated annealing: makes random changes, of which it tolerates worse ones less and less.
    Found anneal(std::uint64_t seed) {
        Found best{now_, option_};
        const auto pieces = static_cast<double>(left_);
        const double trials = kRounds * static_cast<double>(network_.piece_first.size() - 1);
        Random random(seed, 0);
        for (double trial = 0.0; trial < trials && left_ > 0; ++trial) {
            const auto op = static_cast<std::size_t>(
                random.below(static_cast<std::int32_t>(network_.operators)));
            const std::int64_t other = other_option(op, random);
            const double rest = std::min(1.0 - trial / trials, static_cast<double>(left_) / pieces);
            const double worse = -kTolerance * rest * std::log(1.0 - random.uniform());
            const Outcome tolerated{now_.end * (1.0 + worse), kInfinite};
            if (other == option_[op] || !change(op, other, tolerated)) continue;
            if (now_ < best.outcome) best = {now_, option_};
        }
        return best;
    }

    // Anneals from where it is, again with another seed as long as there are pieces for it.
    std::vector<Found> search() {
        const Found start{now_, option_};
        std::vector<Found> found;
        std::int64_t used = 0;
        for (std::int64_t time = 0; time == 0 || (time < kTimes && left_ > used); ++time) {
            now_ = start.outcome, option_ = start.option;
            const std::int64_t before = left_;
            found.push_back(anneal(static_cast<std::uint64_t>(time)));
            used = before - left_;
        }
        return found;
    }

  private:
    std::int64_t options(std::size_t op) const {
        return network_.option_first[op + 1] - network_.option_first[op];
    }

    // A random option, mostly one near to that of now; that one where there is none.
    std::int64_t other_option(std::size_t op, Random &random) const {
        const auto count = static_cast<std::int32_t>(options(op));
        if (random.uniform() >= kNear) return random.below(count);
        const std::int64_t step = 1 + random.below(kNeighbours);
        const std::int64_t other = option_[op] + (random.uniform() < 0.5 ? step : -step);
        return other >= 0 && other < count ? other : option_[op];
    }

    // Takes another option of an operator if the outcome is below one; whether it was taken.
    bool change(std::size_t op, std::int64_t other, const Outcome &below) {
        const std::int64_t before = option_[op];
        option_[op] = other;
        const Outcome outcome = simulator_.run(option_, below.end);
        left_ -= simulator_.pieces();
        const bool taken = outcome < below;
        if (taken)
            now_ = outcome;
        else
            option_[op] = before;
        return taken;
    }

    const Network &network_;
    PieceSimulator simulator_;
    std::int64_t left_; // pieces that may still be simulated
    std::vector<std::int64_t> option_;
    Outcome now_;
};

} // namespace

std::vector<std::vector<std::int64_t>> improve(const Network &network, std::int64_t most) {
    Improvement improvement(network, most);
    improvement.descend();
    std::vector<Found> found = improvement.search();
    std::ranges::stable_sort(found, std::less<>(), &Found::outcome);
    std::vector<std::vector<std::int64_t>> options;
    for (Found &each : found) options.push_back(std::move(each.option));
    return options;
}

} // namespace loadmaster::cutting
