// Python binding of the tilings of loop nests.
#include "bindings/arguments.hpp"
#include "cost/tiling.hpp"

#include <cmath>

namespace nb = nanobind;
using namespace loadmaster;

namespace {

constexpr std::size_t nest_fields = sizeof(cost::Nest) / sizeof(double),
                      tiling_fields = sizeof(cost::Tiling) / sizeof(double);
static_assert(sizeof(cost::Nest) == nest_fields * sizeof(double) &&
    sizeof(cost::Tiling) == tiling_fields * sizeof(double));

void require_positive(std::span<const double> values, const char *what) {
    for (double value : values) require(value > 0.0, what);
}

// Rows of figures of nests and tilings, in the order in which the records of the header name them.
nb::object choose_tilings(const Array<double, 2> &nests, const Array<double, 1> &rate,
    const Array<double, 1> &capacity, std::int64_t style, const Array<double, 2> &shapes,
    double clock, double local_buffer, double network, double loading,
    const Array<double, 2> &prices, double read, double write, double burst, double accumulator,
    bool whole) {
    const std::size_t count = nests.shape(0);
    require(nests.shape(1) == nest_fields, "nests: a row has a figure for every field of a nest");
    require(
        rate.size() == count && capacity.size() == count, "rate and capacity: one for every nest");
    require(style >= 0 && style <= static_cast<std::int64_t>(cost::Style::roofline),
        "style: there is no such one");
    require(shapes.shape(0) >= 1 && shapes.shape(1) == 2,
        "shapes: rows and columns of at least one array");
    require_positive(view(shapes), "shapes: must be positive");
    require_positive(view(rate), "rate: must be positive");
    require(prices.shape(0) >= 1 && prices.shape(1) == 3,
        "prices: rows of seconds a byte of input, weights and output, at least one");
    require_positive(view(prices), "prices: must be positive");
    for (double figure : {clock, network, loading, read, write, burst, accumulator})
        require(figure > 0.0, "clock, bandwidths, burst and accumulator must be positive");
    require(local_buffer >= 0.0, "local_buffer: must not be negative");
    const auto all = view(nests);
    for (std::size_t i : indices(all.size())) {
        const std::size_t field = i % nest_fields;
        require(std::isfinite(all[i]) && (field < nest_fields - 3 ? all[i] > 0.0 : all[i] >= 0.0),
            "nests: extents must be positive, and bytes not negative");
    }
    const std::span<const cost::Nest> rows{
        reinterpret_cast<const cost::Nest *>(nests.data()), count};
    const cost::Core core{static_cast<cost::Style>(style),
        {reinterpret_cast<const cost::Shape *>(shapes.data()), shapes.shape(0)}, clock,
        local_buffer, network, loading,
        {reinterpret_cast<const cost::Prices *>(prices.data()), prices.shape(0)}, read, write,
        burst, accumulator};
    const std::size_t kinds = prices.shape(0);
    std::vector<double> result(count * kinds * tiling_fields);
    {
        nb::gil_scoped_release release;
        auto *tilings = reinterpret_cast<cost::Tiling *>(result.data());
        for (std::size_t i : indices(count)) {
            const std::span<cost::Tiling> best{tilings + i * kinds, kinds};
            if (whole)
                cost::single_tiles(rows[i], core, rate.data()[i], best);
            else
                cost::choose_tilings(rows[i], core, rate.data()[i], capacity.data()[i], best);
        }
    }
    return to_numpy(std::move(result), {count, kinds, tiling_fields});
}

} // namespace

void bind_cost(nb::module_ &module) {
    module.def("choose_tilings", &choose_tilings, nb::kw_only(), "nests"_a, "rate"_a, "capacity"_a,
        "style"_a, "shapes"_a, "clock"_a, "local_buffer"_a, "network"_a, "loading"_a, "prices"_a,
        "read"_a, "write"_a, "burst"_a, "accumulator"_a, "whole"_a);
}
