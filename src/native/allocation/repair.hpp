// Finds places for buffers that a packing left out.
#pragma once

#include "allocation/neighbours.hpp"
#include "common/random.hpp"
#include "common/budget.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace loadmaster::allocation {

// Places each buffer without an offset (-1) below the ceiling, the largest first, where the buffers
// in the way weigh least; those are ejected and placed in their turn. A buffer weighs `growth`
// times as much each time it is placed, and is less likely to be ejected again. Returns whether all
// are placed; not if the budget or `work`, the number of neighbours to look at, is spent first.
bool repair(const Neighbours &neighbours, std::vector<std::int64_t> &offset, std::int64_t ceiling,
    double growth, std::int64_t &work, Budget &budget);

// The same in random order, with places that seem dearer than they are by a random part, and
// weights that grow by the same amount each time: what circles when the largest is always first
// finds out of it.
bool repair_at_random(const Neighbours &neighbours, std::vector<std::int64_t> &offset,
    std::int64_t ceiling, Random &random, std::int64_t &work, Budget &budget);

// Places buffers below the ceiling so that the others are worth little in sum: at random one of
// these takes the place at which what is in the way is worth least, and ejects that, mostly if it
// is worth less. That takes about half as long as so many `nodes` of exact search.
void place_most_worth(const Neighbours &neighbours, std::span<const double> worth,
    std::vector<std::int64_t> &offset, std::int64_t ceiling, std::int64_t nodes);

// Places each buffer without an offset at its lowest gap, however high, the largest first; false if
// budget or work is spent first.
bool place_at_lowest_gap(const Neighbours &neighbours, std::vector<std::int64_t> &offset,
    std::int64_t &work, Budget &budget);

} // namespace loadmaster::allocation
