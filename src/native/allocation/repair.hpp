// Places for buffers that a packing left out.
#pragma once

#include "common/budget.hpp"
#include "allocation/plain.hpp"

#include <cstdint>
#include <vector>

namespace loadmaster::allocation {

// Puts whoever has no offset (-1) below the ceiling, the largest first, where that puts out the least of others, which are then placed in
// their turn. A buffer that was put in weighs more when it stands in the way again. Says whether all are in; not if the budget or
// `work`, the number of neighbours to look at, is spent first.
bool repair(const Plain &plain, const Company &company, std::vector<std::int64_t> &offset, std::int64_t ceiling, std::int64_t &work, Budget &budget);

// Puts each below the ceiling if it finds a gap, or a place where everybody in the way finds one elsewhere; else leaves it out.
void squeeze_in(const Plain &plain, const Company &company, std::vector<std::int64_t> &offset, std::int64_t ceiling, std::int64_t &work, Budget &budget);

// Puts them at their lowest gap, however high, the largest first; false if budget or work is spent first.
bool top_up(const Plain &plain, const Company &company, std::vector<std::int64_t> &offset, std::int64_t &work, Budget &budget);

}  // namespace loadmaster::allocation
