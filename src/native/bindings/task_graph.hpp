// A task graph as Python holds it: successors in compressed rows, checked once.
#pragma once

#include "bindings/arguments.hpp"
#include "simulation/kernels.hpp"

#include <cmath>

namespace loadmaster {

inline void require_finite(std::span<const double> values, const char *what) {
    for (double value : values) require(std::isfinite(value) && value >= 0, what);
}

template <typename T>
void require_below(std::span<const T> values, std::int64_t limit, const char *what) {
    for (T value : values) require(value >= 0 && value < limit, what);
}

// Every number below `count` once.
inline void require_permutation(std::span<const std::int64_t> order, std::size_t count) {
    require_below(order, static_cast<std::int64_t>(count), "order: names no task");
    std::vector<char> seen(count, 0);
    for (std::int64_t task : order) require(!seen[task]++, "order: names a task twice");
    require(order.size() == count, "order: must name every task");
}

// It keeps the arrays that it views alive.
class TaskGraph {
  public:
    TaskGraph(Array<std::int64_t, 1> first, Array<std::int64_t, 1> next)
        : first_(first), next_(next) {
        require(first.size() >= 1, "first: must start with 0");
        require_rows(first, tasks(), next.size(), "first: must rise from 0 to the length of next");
        require_below(view(next), successors().tasks(), "next: names no task");
    }
    Successors successors() const { return {view(first_), view(next_)}; }
    std::size_t tasks() const { return first_.size() - 1; }

  private:
    Array<std::int64_t, 1> first_, next_;
};

} // namespace loadmaster
