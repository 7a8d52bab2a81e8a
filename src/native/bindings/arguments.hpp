// What all bindings share: array types, checks, and vectors handed to numpy without a copy.
#pragma once

#include "common/require.hpp"
#include "common/rows.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

namespace loadmaster {

// Names of arguments: "name"_a.
using namespace nanobind::literals;

template <typename T, int Dimensions>
using Array = nanobind::ndarray<const T, nanobind::ndim<Dimensions>, nanobind::c_contig,
    nanobind::device::cpu>;

template <typename AnyArray> auto view(const AnyArray &array) {
    return std::span(array.data(), array.size());
}

// Where rows begin rises from 0 to where the last one ends.
void require_rows(const auto &first, std::size_t rows, std::size_t end, const char *what) {
    require(first.size() == rows + 1 && first.data()[0] == 0 &&
            first.data()[rows] == static_cast<std::int64_t>(end),
        what);
    require(std::is_sorted(first.data(), first.data() + first.size()), what);
}

// Hands a vector to numpy without copying it.
template <typename T>
nanobind::object to_numpy(std::vector<T> &&values, std::initializer_list<std::size_t> shape) {
    auto owner = std::make_unique<std::vector<T>>(std::move(values));
    T *data = owner->data();
    nanobind::capsule capsule(
        owner.release(), [](void *held) noexcept { delete static_cast<std::vector<T> *>(held); });
    return nanobind::cast(nanobind::ndarray<nanobind::numpy, T>(data, shape, capsule));
}

template <typename T> nanobind::object to_numpy(std::vector<T> &&values) {
    const std::size_t count = values.size();
    return to_numpy(std::move(values), {count});
}

} // namespace loadmaster
