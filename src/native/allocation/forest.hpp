// A sum of regression trees, as arrays; fitted elsewhere.
#pragma once

#include <cstdint>
#include <span>

namespace loadmaster::allocation {

struct Forest {
    std::span<const std::int64_t> root; // node of each tree
    std::span<const std::int64_t> feature, left,
        right; // feature: -1 at a leaf; children come after their parents
    std::span<const double> threshold, value; // left where feature <= threshold

    double operator()(const double *features) const {
        double sum = 0;
        for (std::int64_t node : root) {
            while (feature[node] >= 0)
                node = features[feature[node]] <= threshold[node] ? left[node] : right[node];
            sum += value[node];
        }
        return sum;
    }
};

} // namespace loadmaster::allocation
