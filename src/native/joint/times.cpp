#include "joint/times.hpp"

#include <algorithm>
#include <cmath>

namespace loadmaster::joint {

std::int64_t whole(double seconds) {
    return std::max<std::int64_t>(
        1, static_cast<std::int64_t>(std::ceil(seconds * kPicoseconds - 1e-6)));
}

Times job_times(const Work &work, const Machine &machine, const Stays &stays) {
    const std::size_t cells = work.jobs * work.cores;
    Times times{std::vector<std::int64_t>(cells), std::vector<double>(cells * kLinks, 0.0)};
    for (std::size_t r : indices(work.row_job.size())) {
        const bool write = work.row_write[r], fast = stays.row_stay[r] >= 0,
                   main = write ? machine.in_place && stays.in_main[work.row_tensor[r]] : !fast;
        const auto &speed = write ? machine.write : machine.read;
        const std::array<double, kLinks> per_byte{
            main ? 1.0 / speed[kMain] : 0.0, fast ? 1.0 / speed[kFast] : 0.0};
        double *demand = &times.demand[work.row_job[r] * work.cores * kLinks];
        for (std::size_t c : indices(work.cores)) {
            const double bytes = static_cast<double>(work.moved[r * work.cores + c]);
            for (std::size_t link : indices(kLinks))
                demand[c * kLinks + link] += bytes * per_byte[link];
        }
    }
    for (std::size_t cell : indices(cells)) {
        double *demand = &times.demand[cell * kLinks];
        times.duration[cell] = whole(std::max({work.compute[cell], demand[0], demand[1]}));
        const double seconds = static_cast<double>(times.duration[cell]) / kPicoseconds;
        for (std::size_t link : indices(kLinks)) demand[link] /= seconds;
    }
    return times;
}

} // namespace loadmaster::joint
