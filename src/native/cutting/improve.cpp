#include "cutting/improve.hpp"

#include "common/random.hpp"
#include "cutting/rehearsal.hpp"

#include <cmath>

namespace loadmaster::cutting {

namespace {

constexpr std::size_t most_changed = 3;  // operators that are changed together
constexpr double tolerance = 0.001;      // share by which what is gone on from ends later, in the mean and at the start

class Improvement {
  public:
    Improvement(const Network &network, std::span<const std::int64_t> option, std::int64_t most)
        : network_(network), rehearsal_(network), random_(0, 0), option_(option.begin(), option.end()), left_(most), best_(rehearsal_.run(option_)) {
        readers_.resize(network.operators);
        for (std::size_t op = 0; op < network.operators; ++op)
            for (std::int64_t at = network.source_first[op]; at < network.source_first[op + 1]; ++at) readers_[network.source[at]].push_back(op);
    }

    void allow(std::int64_t most) { left_ = most; }

    // Changes one operator after the other, round and round, until none has helped since the last that did.
    void descend() {
        std::size_t settled = 0;
        for (std::size_t op = 0; settled < network_.operators && left_ > 0; op = (op + 1) % network_.operators, ++settled)
            for (std::int64_t other = 0; other < options(op) && left_ > 0; ++other)
                if (other != option_[op] && change(op, other)) settled = 0;
    }

    // Simulated annealing: changes operators at random, a few that read from one another at once, and goes on from what ends hardly later, less and less
    // of which it tolerates; the best is kept.
    void anneal() {
        const std::int64_t most = left_;
        std::vector<std::int64_t> best_option = option_, before;
        Outcome best = best_;
        while (left_ > 0) {
            before = option_;
            if (!change_some()) continue;
            const double warmth = tolerance * static_cast<double>(left_) / static_cast<double>(most);
            const double tolerated = best_.end * (1.0 - warmth * std::log(1.0 - random_.uniform()));
            const Outcome now = run(std::max(best_.end, tolerated));
            if (!(now < best_) && now.end > tolerated) {
                option_ = before;
                continue;
            }
            best_ = now;
            if (now < best) best = now, best_option = option_;
        }
        option_ = std::move(best_option), best_ = best;
    }

    Choice choice() && { return {std::move(option_), best_.end}; }

  private:
    std::int64_t options(std::size_t op) const { return network_.option_first[op + 1] - network_.option_first[op]; }

    Outcome run(double limit) {
        const Outcome outcome = rehearsal_.run(option_, limit);
        left_ -= rehearsal_.pieces();
        return outcome;
    }

    // Another option for an operator and, once in three times, for one or two that read from one another behind it; whether any differs.
    bool change_some() {
        std::size_t op = below(network_.operators);
        bool any = false;
        for (std::size_t more = below(3) == 0 ? 1 + below(most_changed - 1) : 0;; --more) {
            const std::int64_t other = static_cast<std::int64_t>(below(static_cast<std::size_t>(options(op))));
            any |= other != option_[op];
            option_[op] = other;
            if (more == 0 || readers_[op].empty()) break;
            op = readers_[op][below(readers_[op].size())];
        }
        if (!any) --left_;
        return any;
    }

    std::size_t below(std::size_t limit) { return static_cast<std::size_t>(random_.below(static_cast<std::int32_t>(limit))); }

    bool change(std::size_t op, std::int64_t other) {
        const std::int64_t now = option_[op];
        option_[op] = other;
        const Outcome outcome = run(best_.end);
        if (outcome < best_) {
            best_ = outcome;
            return true;
        }
        option_[op] = now;
        return false;
    }

    const Network &network_;
    Rehearsal rehearsal_;
    mapping::Random random_;
    std::vector<std::int64_t> option_;
    std::vector<std::vector<std::size_t>> readers_;
    std::int64_t left_;
    Outcome best_;
};

}  // namespace

Choice improve(const Network &network, std::span<const std::int64_t> option, std::int64_t most) {
    Improvement improvement(network, option, most);
    improvement.descend();
    return std::move(improvement).choice();
}

Choice explore(const Network &network, std::span<const std::int64_t> option, std::int64_t most) {
    Improvement improvement(network, option, most);
    if (network.operators > 0) improvement.anneal();
    improvement.allow(most / 4);
    improvement.descend();
    return std::move(improvement).choice();
}

std::vector<double> changes(const Network &network, std::span<const std::int64_t> given) {
    std::vector<std::int64_t> option(given.begin(), given.end());
    std::vector<double> found;
    Rehearsal rehearsal(network);
    for (std::size_t op = 0; op < network.operators; ++op) {
        for (option[op] = 0; option[op] < network.option_first[op + 1] - network.option_first[op]; ++option[op]) found.push_back(rehearsal.run(option).end);
        option[op] = given[op];
    }
    return found;
}

}  // namespace loadmaster::cutting
