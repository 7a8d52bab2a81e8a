// What jobs and copies take alone, in picoseconds.
#pragma once

#include "joint/joint.hpp"
#include "simulation/event_engine.hpp"

#include <cstdint>
#include <vector>

namespace loadmaster::joint {

// As `whole_picoseconds` in loadmaster/cost/base.py; tests/test_twins.py holds the two
// together.
std::int64_t whole(double seconds);

// Picoseconds that every job takes alone on every core, and its share of each link meanwhile.
struct Times {
    std::vector<std::int64_t> duration; // jobs x cores
    std::vector<double> demand;         // jobs x cores x links
};

// As `job_times` in loadmaster/cost/base.py, to the last bit; the same test. O(operand rows x
// cores).
Times job_times(const Work &work, const Machine &machine, const Stays &stays);

} // namespace loadmaster::joint
