// Schedules of copies for blocks that have addresses: not bytes are counted, but what was there
// before has to have left.
#include "placement/schedule.hpp"

#include <algorithm>

namespace loadmaster::placement {

bool Schedule::list(const PathsView &paths) {
    if (!occupy(paths)) return false;
    list_copies(paths);
    listed_ = copies_;
    addresses_.list(blocks_);
    return true;
}

double Schedule::run_at(std::span<const std::int64_t> offset) {
    addressed_ = true;
    copies_ = listed_;
    follow_addresses(offset);
    file_copies();
    return run();
}

// Copies in begin after the blocks that were at their addresses before, and copies out end before
// those that come after.
void Schedule::follow_addresses(std::span<const std::int64_t> offset) {
    before_.clear();
    awaits_.resize(copies_.size());
    for (std::int64_t b : indices(std::ssize(blocks_))) {
        const Block &block = blocks_[b];
        if (block.size == 0) continue;
        if (block.evict >= 0)
            copies_[block.evict].needed =
                addresses_.free_until(offset, b, copies_[block.evict].needed);
        if (block.fetch < 0) continue;
        if (const std::int64_t other = addresses_.last_before(offset, b); other >= 0) {
            copies_[block.fetch].ready = std::max(copies_[block.fetch].ready, blocks_[other].end);
            before_.emplace_back(b, other);
        }
        awaits_[block.fetch].clear();
        addresses_.evicted_before(
            offset, b, [&](std::int64_t copy) { awaits_[block.fetch].push_back(copy); });
    }
}

std::vector<std::int64_t> Schedule::held_up() const {
    std::vector<std::int64_t> held;
    for (const auto &[block, other] : before_) {
        const ScheduledCopy &copy = copies_[blocks_[block].fetch];
        const std::int64_t evict = blocks_[other].evict,
                           free = std::max(blocks_[other].end, evict < 0 ? 0 : copies_[evict].end);
        if (copy.start <= free) held.insert(held.end(), {block, other});
    }
    return held;
}

// Whether the copies out of what was at a copy's addresses are complete by position p.
bool Schedule::vacated(const ScheduledCopy &copy, std::int64_t p) const {
    const auto &outs = awaits_[&copy - copies_.data()];
    return std::ranges::all_of(
        outs, [&](std::int64_t out) { return copies_[out].end >= 0 && copies_[out].end <= p; });
}

} // namespace loadmaster::placement
