#include "joint/fetches.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace loadmaster::joint {

namespace {

// The stays that are fetched: indices, in the order in which they are needed.
std::vector<std::size_t> fetched(const std::vector<Stay> &stays) {
    std::vector<std::size_t> result;
    for (std::size_t s = 0; s < stays.size(); ++s)
        if (stays[s].fetched) result.push_back(s);
    std::sort(result.begin(), result.end(), [&](std::size_t a, std::size_t b) {
        return std::pair(stays[a].begin, stays[a].tensor) <
            std::pair(stays[b].begin, stays[b].tensor);
    });
    return result;
}

} // namespace

void fetch_early(std::vector<Stay> &stays, const Work &work, const Options &options,
    std::int64_t delay, std::span<const std::int64_t> position, std::vector<std::int64_t> &used) {
    for (std::size_t s : fetched(stays)) {
        Stay &stay = stays[s];
        const std::int64_t room = work.room[stay.tensor], producer = work.producer[stay.tensor];
        // An earlier stay of the same tensor must be over: it has one place at a time.
        std::int64_t floor = producer < 0 ? 0 : position[producer] + 1;
        if (s > 0 && stays[s - 1].tensor == stay.tensor)
            floor = held_until(stays[s - 1].last, delay, used.size()) + 1;
        if (stay.begin >= options.urgent_positions)
            floor = std::max(floor, options.urgent_positions);
        while (stay.first > floor && used[stay.first - 1] + room <= options.prefetched_bytes)
            used[--stay.first] += room;
    }
}

void find_pressing(std::vector<Stay> &stays, const Work &work, const Machine &machine,
    const Options &options, std::span<const double> elapsed) {
    if (!std::isfinite(options.fetch_lead)) return;
    const std::vector<std::size_t> order = fetched(stays);
    const double lead = options.fetch_lead * elapsed.back();
    double latest = elapsed.back();
    for (auto s = order.rbegin(); s != order.rend(); ++s) {
        Stay &stay = stays[*s];
        latest = std::min(latest, elapsed[stay.begin] - lead) -
            static_cast<double>(work.bytes[stay.tensor]) / machine.read[kMain];
        stay.urgent_from =
            std::lower_bound(elapsed.begin(), elapsed.end(), latest) - elapsed.begin();
    }
}

} // namespace loadmaster::joint
