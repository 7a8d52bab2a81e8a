#include "cutting/improve.hpp"

#include "common/random.hpp"
#include "cutting/piece_simulator.hpp"

#include <algorithm>
#include <cmath>

namespace loadmaster::cutting {

namespace {

constexpr std::size_t most_changed = 3; // operators that are changed together
constexpr double tolerance =
    0.001; // share by which what is gone on from ends later, in the mean and at the start
constexpr double behind = 0.01; // share of all time by which what is changed may be behind for a
                                // while and still end in time
constexpr std::size_t settling = 3; // operators after those changed before that is looked at

class Improvement {
  public:
    Improvement(const Network &network, std::int64_t most)
        : network_(network), simulator_(network), random_(0, 0), option_(network.operators, 0),
          left_(most), best_(simulator_.run(option_)), passed_(simulator_.passed()) {
        simulator_.keep();
        readers_.resize(network.operators);
        for (std::size_t op = 0; op < network.operators; ++op)
            for (std::int64_t at = network.source_first[op]; at < network.source_first[op + 1];
                ++at)
                readers_[network.source[at]].push_back(op);
    }

    void allow(std::int64_t most) { left_ = most; }

    // Changes one operator after the other, round and round, until none has helped since the last
    // that did.
    void descend() {
        std::size_t settled = 0;
        for (std::size_t op = 0; settled < network_.operators && left_ > 0;
            op = (op + 1) % network_.operators, ++settled)
            for (std::int64_t other = 0; other < options(op) && left_ > 0; ++other)
                if (other != option_[op] && change(op, other)) settled = 0;
    }

    // Simulated annealing: changes operators at random, a few that read from one another at once,
    // and goes on from what ends hardly later, less and less of which it tolerates; the best is
    // kept.
    void anneal() {
        const std::int64_t most = left_;
        std::vector<std::int64_t> best_option = option_, before;
        std::vector<double> passed = passed_;
        Outcome best = best_;
        while (left_ > 0) {
            before = option_;
            if (!change_some()) continue;
            const double warmth =
                tolerance * static_cast<double>(left_) / static_cast<double>(most);
            const double tolerated = best_.end * (1.0 - warmth * std::log(1.0 - random_.uniform()));
            const Outcome now = run(tolerated);
            if (!(now < best_) && now.end > tolerated) {
                option_ = before;
                continue;
            }
            accept(now);
            if (now < best) best = now, best_option = option_, passed = passed_;
        }
        option_ = std::move(best_option), best_ = best, passed_ = std::move(passed);
    }

    Choice choice() && { return {std::move(option_), best_.end}; }

  private:
    std::int64_t options(std::size_t op) const {
        return network_.option_first[op + 1] - network_.option_first[op];
    }

    // How what is chosen now runs; given up where it certainly ends after `limit`, or is so far
    // behind that it seldom ends before: most changes are.
    Outcome run(double limit) {
        const Outcome outcome = simulator_.run(option_,
            {std::max(best_.end, limit), passed_, last_ + settling,
                limit - best_.end + behind * best_.end});
        left_ -= simulator_.pieces();
        return outcome;
    }

    void accept(const Outcome &outcome) {
        best_ = outcome;
        passed_ = simulator_.passed();
        simulator_.keep();
    }

    // Another option for an operator and, once in three times, for one or two that read from one
    // another behind it; whether any differs.
    bool change_some() {
        std::size_t op = below(network_.operators);
        bool any = false;
        last_ = 0;
        for (std::size_t more = below(3) == 0 ? 1 + below(most_changed - 1) : 0;; --more) {
            const std::int64_t other =
                static_cast<std::int64_t>(below(static_cast<std::size_t>(options(op))));
            any |= other != option_[op];
            option_[op] = other;
            last_ = std::max(last_, op);
            if (more == 0 || readers_[op].empty()) break;
            op = readers_[op][below(readers_[op].size())];
        }
        if (!any) --left_;
        return any;
    }

    std::size_t below(std::size_t limit) {
        return static_cast<std::size_t>(random_.below(static_cast<std::int32_t>(limit)));
    }

    bool change(std::size_t op, std::int64_t other) {
        const std::int64_t now = option_[op];
        option_[op] = other;
        const Outcome outcome = simulator_.run(option_, {best_.end});
        left_ -= simulator_.size();
        if (outcome < best_) {
            accept(outcome);
            return true;
        }
        option_[op] = now;
        return false;
    }

    const Network &network_;
    PieceSimulator simulator_;
    mapping::Random random_;
    std::vector<std::int64_t> option_;
    std::vector<std::vector<std::size_t>> readers_;
    std::int64_t left_;
    std::size_t last_ = 0; // of the operators that were changed for a run
    Outcome best_;
    std::vector<double> passed_;
};

} // namespace

Choice explore(const Network &network, std::int64_t annealed, std::int64_t descended) {
    Improvement improvement(network, annealed);
    if (network.operators > 0) improvement.anneal();
    improvement.allow(descended);
    improvement.descend();
    return std::move(improvement).choice();
}

} // namespace loadmaster::cutting
