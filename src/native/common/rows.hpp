// Tables whose rows lie one after the other in one array.
#pragma once

#include <numeric>
#include <ranges>

namespace loadmaster {

// Where the elements of a row are: from first[row] up to first[row + 1], where the next row begins,
// which is not below it.
auto row_of(const auto &first, auto row) { return std::views::iota(first[row], first[row + 1]); }

// 0, 1 and so on below a count, which is not negative.
auto indices(auto count) { return std::views::iota(decltype(count){0}, count); }

// Makes of the lengths of rows, each a place further on, where they begin: running sums.
void add_up(auto &first) { std::partial_sum(first.begin(), first.end(), first.begin()); }

} // namespace loadmaster
