// Python bindings of what packs without a problem that was checked before.
#include "allocation/small.hpp"
#include "allocation/solver.hpp"
#include "allocation/verify.hpp"
#include "bindings/allocation.hpp"
#include "bindings/search_budget.hpp"
#include "loadmaster/allocate.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <numeric>

namespace nb = nanobind;
using namespace loadmaster;
using namespace loadmaster::allocation;

namespace {

// Plain buffers as a problem: whatever it needs beyond the caller's arrays.
struct PlainArrays {
    explicit PlainArrays(std::size_t count)
        : ones(count, 1), none(count, -1), zeros(count, 0), first(count + 1) {
        std::iota(first.begin(), first.end(), 0);
    }
    Buffers buffers(const Ints &lower, const Ints &upper, const Ints &size) const {
        return {view(size), ones, none, first, view(lower), view(upper), zeros, view(size)};
    }
    std::vector<std::int64_t> ones, none, zeros, first;
};

nb::object py_allocate_small(const Ints &lower, const Ints &upper, const Ints &size) {
    require(lower.size() == size.size() && upper.size() == size.size(),
        "buffers: arrays of different lengths");
    require(size.size() <= kQuickBuffers, "buffers: too many for a quick allocation");
    const PlainArrays arrays(size.size());
    const Buffers buffers = arrays.buffers(lower, upper, size);
    check(buffers);
    Answer small;
    {
        nb::gil_scoped_release release;
        small = allocate_small(buffers);
    }
    return nb::make_tuple(to_numpy(std::move(small.offset)), small.peak, small.bound);
}

bool py_packing_holds(
    const Ints &lower, const Ints &upper, const Ints &size, const Ints &offset, std::int64_t peak) {
    const std::size_t count = size.size();
    require(lower.size() == count && upper.size() == count && offset.size() == count,
        "buffers: arrays of different lengths");
    const PlainArrays arrays(count);
    const Buffers buffers = arrays.buffers(lower, upper, size);
    const auto before_all = [](std::int64_t instant) { return instant < 0; };
    return std::none_of(lower.data(), lower.data() + count, before_all) &&
        peak_of(buffers, view(offset)) == peak && !broken_rule({buffers, {}}, view(offset), peak);
}

} // namespace

void bind_allocation_policy(nb::module_ &module) {
    module.attr("LOADMASTER_ALLOCATE") = reinterpret_cast<std::uintptr_t>(&loadmaster_allocate);
    module.def(
        "packing_holds", &py_packing_holds, "lower"_a, "upper"_a, "size"_a, "offset"_a, "peak"_a);
    module.def("allocate_small", &py_allocate_small, "lower"_a, "upper"_a, "size"_a);
}
