// Packs many buffers, whatever they demand, below ever lower ceilings.
#pragma once

#include "allocation/buffers.hpp"
#include "common/budget.hpp"

#include <cstdint>
#include <vector>

namespace loadmaster::allocation {

// Starts from a packing. What reaches above a ceiling is taken out and put where the buffers in its
// way weigh least, which go elsewhere in their turn; the next ceiling is lower if that succeeds,
// else nearer. Ends at a peak of `enough`, where steps are small, or once `work`, the number of
// neighbours to look at, is spent. Returns the best packing; memory grows with n, or with the
// pairs.
//
// `largest_first` is for many buffers, of which each moves a few times. `at_random` goes on where
// that circles, and stores all pairs: it is for few buffers and much work.
enum class Ejections { largest_first, at_random };
std::vector<std::int64_t> lower_ceilings(const Buffers &buffers, std::vector<std::int64_t> offset,
    std::int64_t enough, Ejections ejections, std::uint64_t seed, std::int64_t work,
    Budget &budget);

} // namespace loadmaster::allocation
