// Packs many buffers, whatever they demand, below ever lower ceilings.
#pragma once

#include "allocation/buffers.hpp"
#include "common/budget.hpp"

#include <cstdint>
#include <vector>

namespace loadmaster::allocation {

// Starts from a packing. What reaches above a ceiling is taken out and put where the buffers in its way weigh least, which go elsewhere in
// their turn; the next ceiling is lower if that succeeds, else nearer. Ends at a peak of `enough`, where steps are small, or once `work`,
// the number of neighbours to look at, is spent. Returns the best packing; memory grows with n.
std::vector<std::int64_t> lower_ceilings(const Buffers &buffers, std::vector<std::int64_t> offset, std::int64_t enough, std::int64_t work, Budget &budget);

}  // namespace loadmaster::allocation
