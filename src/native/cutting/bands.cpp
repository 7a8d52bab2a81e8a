#include "cutting/bands.hpp"

#include <algorithm>

namespace loadmaster::cutting {

namespace {

constexpr std::int64_t most_ahead = 16;

} // namespace

std::int64_t steps_of(std::int64_t bands) { return bands + std::min(bands / 4, most_ahead); }

BandNetwork::BandNetwork(std::span<const std::int64_t> read_first,
    std::span<const std::int64_t> read, std::span<const std::int64_t> read_bytes,
    std::span<const std::int64_t> write_first, std::span<const std::int64_t> write,
    std::span<const std::int64_t> bytes, std::span<const std::int64_t> kind,
    std::span<const std::int64_t> output, Axis rows, Axis columns)
    : read_first(read_first), read(read), read_bytes(read_bytes), write_first(write_first),
      write(write), bytes(bytes), kind(kind), output(output), axes{rows, columns},
      operators(read_first.size() - 1), home(bytes.size(), -1), uses(bytes.size()) {
    for (std::size_t op : indices(operators)) {
        for (std::int64_t k : row_of(read_first, op))
            uses[read[k]].push_back({op, static_cast<std::size_t>(k)});
        for (std::int64_t k : row_of(write_first, op)) home[write[k]] = op;
    }
}

Ends BandNetwork::ends_of(const Axis &axis, std::size_t op, std::size_t last, std::int64_t bands,
    std::int64_t steps, std::span<const Ends> ends) const {
    const std::int64_t extent = axis.extent[op], step = axis.step[op], ahead = steps - bands;
    Ends wanted(steps, 0);
    for (std::int64_t k : row_of(write_first, op))
        for (const Use use : uses[write[k]])
            if (op < use.op && use.op < last)
                for (std::int64_t i : indices(steps))
                    wanted[i] = std::max(wanted[i], high(axis, use, ends[last - 1 - use.op][i]));
    if (wanted.back() == 0) {
        for (std::int64_t i : indices(bands)) wanted[ahead + i] = extent * (i + 1) / bands;
    } else if (ahead > 0) {
        std::int64_t pace = 1;
        for (std::int64_t i = ahead + 1; i + 1 < steps; ++i)
            pace = std::max(pace, wanted[i] - wanted[i - 1]);
        for (std::int64_t i : indices(ahead))
            wanted[i] = std::max({std::int64_t{0}, wanted[i], wanted[ahead] - pace * (ahead - i)});
    }
    std::int64_t reached = 0;
    for (std::int64_t &end : wanted)
        end = reached = std::max(reached, std::min((end + step - 1) / step * step, extent));
    wanted.back() = extent;
    return wanted;
}

Ends BandNetwork::own_of(
    const Axis &across, std::size_t op, std::size_t last, std::span<const Ends> ends) const {
    const Ends &own = ends[last - 1 - op];
    const std::int64_t step = across.step[op];
    Ends kept = own;
    for (std::int64_t k : row_of(write_first, op))
        for (const Use use : uses[write[k]])
            if (op < use.op && use.op < last)
                for (std::size_t i : indices(kept.size()))
                    kept[i] = std::min(kept[i], low(across, use, ends[last - 1 - use.op][i]));
    for (std::size_t i : indices(kept.size()))
        kept[i] = std::max(i == 0 ? 0 : own[i - 1], kept[i] / step * step);
    kept.back() = own.back(); // the last is no halo of any, however little the readers need
    return kept;
}

} // namespace loadmaster::cutting
