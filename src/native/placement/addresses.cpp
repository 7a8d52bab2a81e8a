#include "placement/addresses.hpp"

#include "common/rows.hpp"

#include <algorithm>

namespace loadmaster::placement {

void Addresses::list(std::span<const Block> blocks) {
    blocks_ = blocks;
    by_start_.clear();
    evicts_.clear();
    for (std::size_t b : indices(blocks.size()))
        if (blocks[b].size > 0) by_start_.push_back(b);
    by_end_ = by_start_;
    const auto end = [&](std::int64_t b) { return blocks[b].end; };
    const auto start = [&](std::int64_t b) { return blocks[b].start; };
    std::ranges::stable_sort(by_start_, {}, start);
    std::ranges::stable_sort(by_end_, {}, end);
    std::ranges::copy_if(
        by_end_, std::back_inserter(evicts_), [&](std::int64_t b) { return blocks[b].evict >= 0; });
    for (auto *places : {&ended_before_, &begin_after_, &evicts_before_})
        places->assign(blocks.size(), 0);
    for (std::int64_t b : by_start_) {
        ended_before_[b] =
            std::ranges::upper_bound(by_end_, blocks[b].start, {}, end) - by_end_.begin();
        begin_after_[b] =
            std::ranges::lower_bound(by_start_, blocks[b].end, {}, start) - by_start_.begin();
        evicts_before_[b] =
            std::ranges::upper_bound(evicts_, blocks[b].start, {}, end) - evicts_.begin();
    }
}

std::int64_t Addresses::last_before(std::span<const std::int64_t> offset, std::int64_t b) const {
    for (std::int64_t i = ended_before_[b]; i-- > 0;)
        if (touch(offset, by_end_[i], b)) return by_end_[i];
    return -1;
}

std::int64_t Addresses::free_until(
    std::span<const std::int64_t> offset, std::int64_t b, std::int64_t otherwise) const {
    for (auto i = static_cast<std::size_t>(begin_after_[b]); i < by_start_.size(); ++i)
        if (touch(offset, by_start_[i], b)) return std::min(otherwise, blocks_[by_start_[i]].start);
    return otherwise;
}

} // namespace loadmaster::placement
