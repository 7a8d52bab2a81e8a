#include "mapping/contents.hpp"

#include <algorithm>

namespace loadmaster::mapping {

namespace {

// Some jobs of a kind, taken together.
struct Bundle {
    std::size_t kind;
    std::int32_t jobs, parts;
    double worth;
};

// Bundles of 1, 2, 4, ... and a remainder make up every number of jobs.
std::vector<Bundle> bundles(const Wares &wares, std::int32_t grid) {
    std::vector<Bundle> all;
    for (std::size_t kind = 0; kind < wares.parts.size(); ++kind) {
        const std::int32_t parts = wares.parts[kind];
        if (!(wares.worth[kind] > 0.0) || parts > grid) continue;
        std::int32_t left = parts > 0 ? std::min(wares.count[kind], grid / parts) : wares.count[kind];
        for (std::int32_t jobs = 1; left > 0; jobs *= 2) {
            const std::int32_t some = std::min(jobs, left);
            all.push_back({kind, some, some * parts, some * wares.worth[kind]});
            left -= some;
        }
    }
    return all;
}

}  // namespace

Content best_content(const Wares &wares, std::int32_t grid) {
    const std::vector<Bundle> all = bundles(wares, grid);
    const std::size_t width = static_cast<std::size_t>(grid) + 1;
    std::vector<double> value(width, 0.0);
    std::vector<char> taken(all.size() * width, 0);
    for (std::size_t i = 0; i < all.size(); ++i) {
        char *row = taken.data() + i * width;
        for (std::size_t room = width; room-- > static_cast<std::size_t>(all[i].parts);) {
            const double sum = value[room - all[i].parts] + all[i].worth;
            if (sum > value[room]) {
                value[room] = sum;
                row[room] = 1;
            }
        }
    }
    Content best{value[grid], std::vector<std::int32_t>(wares.parts.size(), 0)};
    std::size_t room = grid;
    for (std::size_t i = all.size(); i-- > 0;) {
        if (!taken[i * width + room]) continue;
        best.jobs[all[i].kind] += all[i].jobs;
        room -= all[i].parts;
    }
    return best;
}

}  // namespace loadmaster::mapping
