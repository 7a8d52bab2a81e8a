#include "cutting/improve.hpp"

#include "cutting/piece_simulator.hpp"

namespace loadmaster::cutting {

std::vector<std::int64_t> improve(const Network &network, std::int64_t most) {
    PieceSimulator simulator(network);
    std::vector<std::int64_t> option(network.operators, 0);
    Outcome best = simulator.run(option);
    std::size_t settled = 0; // operators since the last change that has helped
    for (std::size_t op = 0; settled < network.operators && most > 0;
        op = (op + 1) % network.operators, ++settled) {
        const std::int64_t options = network.option_first[op + 1] - network.option_first[op];
        for (std::int64_t other = 0; other < options && most > 0; ++other) {
            const std::int64_t now = option[op];
            if (other == now) continue;
            option[op] = other;
            const Outcome outcome = simulator.run(option, best.end);
            most -= simulator.pieces();
            if (outcome < best)
                best = outcome, settled = 0;
            else
                option[op] = now;
        }
    }
    return option;
}

} // namespace loadmaster::cutting
