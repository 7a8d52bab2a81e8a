#include "cutting/improve.hpp"

#include "common/limits.hpp"

#include "common/random.hpp"
#include "cutting/piece_simulator.hpp"

#include <algorithm>
#include <cmath>

namespace loadmaster::cutting {

namespace {

// Random changes for every option, on average. Half as many find plans that are 0.3 % longer.
constexpr double kRounds = 8.0;
// How much longer a choice may be than the one that it replaces, as a share, in the mean and at
// first.
constexpr double kTolerance = 0.001;

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
    void anneal() {
        std::vector<std::int64_t> best_option = option_;
        Outcome best = now_;
        const auto pieces = static_cast<double>(left_);
        const double trials = kRounds * static_cast<double>(network_.piece_first.size() - 1);
        Random random(0, 0);
        for (double trial = 0.0; trial < trials && left_ > 0; ++trial) {
            const auto op = static_cast<std::size_t>(
                random.below(static_cast<std::int32_t>(network_.operators)));
            const std::int64_t other = random.below(static_cast<std::int32_t>(options(op)));
            const double rest = std::min(1.0 - trial / trials, static_cast<double>(left_) / pieces);
            const double worse = -kTolerance * rest * std::log(1.0 - random.uniform());
            const Outcome tolerated{now_.end * (1.0 + worse), kInfinite};
            if (other == option_[op] || !change(op, other, tolerated)) continue;
            if (now_ < best) best = now_, best_option = option_;
        }
        option_ = std::move(best_option);
    }

    std::vector<std::int64_t> option() && { return std::move(option_); }

  private:
    std::int64_t options(std::size_t op) const {
        return network_.option_first[op + 1] - network_.option_first[op];
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

std::vector<std::int64_t> improve(const Network &network, std::int64_t most) {
    Improvement improvement(network, most);
    improvement.descend();
    improvement.anneal();
    return std::move(improvement).option();
}

} // namespace loadmaster::cutting
