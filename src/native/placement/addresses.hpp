// What addresses of stays demand of the copies at their ends: what was there before has left, what
// comes after has room.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace loadmaster::placement {

// A stay without its copies: from the first use that finds the tensor there to the end of the last
// one; or a kernel's workspace.
struct Block {
    std::int64_t start = 0, end = 0, size = 0;
    std::int64_t tensor = -1;            // of a stay
    std::int64_t fetch = -1, evict = -1; // copies at either end, if any
};

// Blocks sorted by time, so that those that share addresses with one of them are found from the
// nearest on.
class Addresses {
  public:
    void list(std::span<const Block> blocks);

    // The last block before block b that lies at some of its addresses, -1 if there is none.
    std::int64_t last_before(std::span<const std::int64_t> offset, std::int64_t b) const;
    // The start of the first such block after it, `otherwise` if there is none.
    std::int64_t free_until(
        std::span<const std::int64_t> offset, std::int64_t b, std::int64_t otherwise) const;
    // Calls visit(copy) for the copies out of the blocks before it at some of its addresses, the
    // last one first.
    template <class Visit>
    void evicted_before(std::span<const std::int64_t> offset, std::int64_t b, Visit visit) const {
        for (std::int64_t i = evicts_before_[b]; i-- > 0;)
            if (touch(offset, evicts_[i], b)) visit(blocks_[evicts_[i]].evict);
    }

  private:
    bool touch(std::span<const std::int64_t> offset, std::int64_t a, std::int64_t b) const {
        return offset[a] < offset[b] + blocks_[b].size && offset[b] < offset[a] + blocks_[a].size;
    }

    std::span<const Block> blocks_;
    std::vector<std::int64_t> by_start_, by_end_, evicts_; // blocks, those without bytes left out
    std::vector<std::int64_t> ended_before_, begin_after_,
        evicts_before_; // for each block, its place in those lists
};

} // namespace loadmaster::placement
