#include "cutting/improve.hpp"

#include "cutting/rehearsal.hpp"

namespace loadmaster::cutting {

Choice improve(const Network &network, std::span<const std::int64_t> given, std::int64_t most) {
    std::vector<std::int64_t> option(given.begin(), given.end());
    Rehearsal rehearsal(network);
    Outcome best = rehearsal.run(option);
    for (bool improves = true; improves && most > 0;) {
        improves = false;
        for (std::size_t op = 0; op < network.operators; ++op)
            for (std::int64_t other = 0; other < network.option_first[op + 1] - network.option_first[op] && most > 0; ++other) {
                const std::int64_t now = option[op];
                if (other == now) continue;
                option[op] = other;
                const Outcome outcome = rehearsal.run(option);
                most -= rehearsal.pieces();
                if (outcome < best) best = outcome, improves = true;
                else option[op] = now;
            }
    }
    return {std::move(option), best.end};
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
