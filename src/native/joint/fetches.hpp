// When what is fetched into the fast memory takes its room, and until when its fetch may wait.
#pragma once

#include "joint/joint.hpp"

#include <algorithm>

namespace loadmaster::joint {

// The last of `positions` for which room is held that is last used at one of them: `delay` later.
inline std::int64_t held_until(std::int64_t position, std::int64_t delay, std::size_t positions) {
    return std::min(position + delay, static_cast<std::int64_t>(positions) - 1);
}

// Lets every fetch begin as early as there is room, those that are needed first before the others;
// `used`, bytes at every position, grows accordingly. `position` is that of every job in the order.
void fetch_early(std::vector<Stay> &stays, const Work &work, const Options &options,
    std::int64_t delay, std::span<const std::int64_t> position, std::vector<std::int64_t> &used);

// Notes from when on fetches, which follow one another, would be late if they waited any longer.
// `elapsed`: seconds before every position, and of all jobs.
void find_pressing(std::vector<Stay> &stays, const Work &work, const Machine &machine,
    const Options &options, std::span<const double> elapsed);

} // namespace loadmaster::joint
