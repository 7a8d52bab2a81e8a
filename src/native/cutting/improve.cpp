#include "cutting/improve.hpp"

#include "common/random.hpp"
#include "cutting/rehearsal.hpp"

#include <numeric>

namespace loadmaster::cutting {

namespace {

constexpr std::int32_t most_changed = 4;  // operators that are changed together

class Improvement {
  public:
    Improvement(const Network &network, std::span<const std::int64_t> option, std::int64_t most)
        : network_(network), rehearsal_(network), random_(0, 0), option_(option.begin(), option.end()), left_(most), best_(rehearsal_.run(option_)) {
        readers_.resize(network.operators);
        for (std::size_t op = 0; op < network.operators; ++op)
            for (std::int64_t at = network.source_first[op]; at < network.source_first[op + 1]; ++at) readers_[network.source[at]].push_back(op);
    }

    void allow(std::int64_t most) { left_ = most; }

    void descend() {
        std::vector<std::size_t> all(network_.operators);
        std::iota(all.begin(), all.end(), std::size_t{0});
        descend(all);
    }

    // Changes one of these operators after the other as long as that helps.
    void descend(std::span<const std::size_t> operators) {
        for (bool improves = true; improves && left_ > 0;) {
            improves = false;
            for (const std::size_t op : operators)
                for (std::int64_t other = 0; other < options(op) && left_ > 0; ++other) improves |= other != option_[op] && change(op, other);
        }
    }

    // Changes several operators at random, each a reader of the one before, and then one after the other; takes it back unless that helps.
    void perturb() {
        const std::vector<std::int64_t> before = option_;
        const Outcome best = best_;
        std::vector<std::size_t> chain{static_cast<std::size_t>(random_.below(static_cast<std::int32_t>(network_.operators)))};
        for (std::int32_t more = 1 + random_.below(most_changed - 1); more > 0; --more) {
            const std::vector<std::size_t> &readers = readers_[chain.back()];
            if (readers.empty()) break;
            chain.push_back(readers[random_.below(static_cast<std::int32_t>(readers.size()))]);
        }
        for (const std::size_t op : chain) option_[op] = random_.below(static_cast<std::int32_t>(options(op)));
        best_ = run();
        descend(chain);
        if (best_ < best) return;
        option_ = before, best_ = best;
    }

    bool goes_on() const { return left_ > 0; }
    Choice choice() && { return {std::move(option_), best_.end}; }

  private:
    std::int64_t options(std::size_t op) const { return network_.option_first[op + 1] - network_.option_first[op]; }

    Outcome run() {
        const Outcome outcome = rehearsal_.run(option_);
        left_ -= rehearsal_.pieces();
        return outcome;
    }

    bool change(std::size_t op, std::int64_t other) {
        const std::int64_t now = option_[op];
        option_[op] = other;
        const Outcome outcome = run();
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
    while (network.operators > 0 && improvement.goes_on()) improvement.perturb();
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
