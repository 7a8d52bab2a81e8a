#include "allocation/plain.hpp"

#include <algorithm>

namespace loadmaster::allocation {

namespace {

// Between two snapshots of the live set there are at least this many births.
constexpr std::size_t kFewestBirthsPerSnapshot = 16;

} // namespace

bool Plain::possible(const Buffers &buffers) {
    if (!buffers.near_first.empty()) return false;
    for (std::int64_t b : indices(buffers.count())) {
        if (buffers.pin[b] >= 0 || buffers.first[b + 1] - buffers.first[b] > 1) return false;
        if (buffers.matters(b) && !buffers.whole(b, buffers.first[b])) return false;
    }
    return true;
}

Plain::Plain(const Buffers &buffers, bool backwards) : callers_(buffers.size.size()) {
    for (std::int64_t b : indices(buffers.count())) {
        if (!buffers.matters(b)) continue;
        const std::int64_t s = buffers.first[b];
        begin.push_back(backwards ? -buffers.end[s] : buffers.begin[s]);
        end.push_back(backwards ? -buffers.begin[s] : buffers.end[s]);
        size.push_back(buffers.size[b]);
        alignment.push_back(buffers.alignment[b]);
        buffer.push_back(b);
    }
    sort_by_time();
}

Plain Plain::of_sections(const Buffers &buffers) {
    Plain sections(buffers.size.size());
    for (std::int64_t b : indices(buffers.count()))
        for (std::int64_t s : buffers.occupied(b)) {
            sections.begin.push_back(buffers.begin[s]);
            sections.end.push_back(buffers.end[s]);
            sections.size.push_back(buffers.high[s] - buffers.low[s]);
            sections.alignment.push_back(1);
            sections.buffer.push_back(b);
        }
    sections.sort_by_time();
    return sections;
}

std::vector<std::int64_t> Plain::of_caller(const std::vector<std::int64_t> &offset) const {
    std::vector<std::int64_t> found(callers_, 0);
    for (std::size_t b : indices(offset.size())) found[buffer[b]] = offset[b];
    return found;
}

void Plain::sort_by_time() {
    births = sorted_by<std::int32_t>(
        size.size(), [&](std::int32_t b) { return std::pair(begin[b], -size[b]); });
    deaths = sorted_by<std::int32_t>(size.size(), [&](std::int32_t b) { return end[b]; });
}

LiveIndex::LiveIndex(const Plain &plain) : plain_(plain), snapshot_of_(plain.size.size()) {
    born_.push_back(0);
    first_ = {0, 0};
    for (std::size_t i : indices(plain.births.size())) {
        const std::size_t written = first_.back() - first_[first_.size() - 2];
        if (i - born_.back() >= std::max(written, kFewestBirthsPerSnapshot)) {
            const std::int64_t now = plain.begin[plain.births[i]];
            const std::size_t last = first_[first_.size() - 2], end = first_.back();
            for (std::size_t k = last; k < end; ++k)
                if (const std::int32_t b = alive_[k]; plain.end[b] > now) alive_.push_back(b);
            for (std::size_t k = born_.back(); k < i; ++k)
                if (const std::int32_t b = plain.births[k]; plain.end[b] > now) alive_.push_back(b);
            born_.push_back(i);
            first_.push_back(alive_.size());
        }
        snapshot_of_[plain.births[i]] = static_cast<std::int32_t>(born_.size()) - 1;
    }
}

} // namespace loadmaster::allocation
