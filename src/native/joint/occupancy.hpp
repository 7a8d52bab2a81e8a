// Bytes in use at every position of an order, asked and changed over ranges of positions.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace loadmaster::joint {

// Every block of positions has its peak, and what is added to all of it. A range costs a step a
// block, but for its ends and for blocks that may be too full.
class Occupancy {
  public:
    explicit Occupancy(std::size_t positions)
        : used_(positions, 0), peak_(positions / kBlock + 1, 0), added_(peak_.size(), 0) {}

    // The lowest position, from `floor` on, of which up to `over` none has more than `most`.
    std::int64_t lowest_with(std::int64_t floor, std::int64_t over, std::int64_t most) const {
        while (over > floor) {
            const std::int64_t block = (over - 1) / kBlock;
            if (peak_[block] <= most)
                over = std::max(floor, block * kBlock);
            else if (used_[over - 1] + added_[block] <= most)
                --over;
            else
                break;
        }
        return over;
    }

    void add(std::int64_t begin, std::int64_t over, std::int64_t bytes) {
        while (begin < over) {
            const std::int64_t block = begin / kBlock, end = (block + 1) * kBlock;
            if (begin % kBlock == 0 && end <= over) {
                added_[block] += bytes;
                peak_[block] += bytes;
                begin = end;
            }
            std::int64_t most = peak_[block] - added_[block];
            for (; begin < std::min(end, over); ++begin)
                most = std::max(most, used_[begin] += bytes);
            peak_[block] = most + added_[block];
        }
    }

    // Of every position.
    std::vector<std::int64_t> bytes() const {
        std::vector<std::int64_t> result = used_;
        for (std::size_t at : indices(result.size())) result[at] += added_[at / kBlock];
        return result;
    }

  private:
    static constexpr std::int64_t kBlock = 64;
    std::vector<std::int64_t> used_, peak_, added_;
};

} // namespace loadmaster::joint
