// A set of small numbers that is visited in their order.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace loadmaster {

// Some of 0, 1, ... below a size, a bit each. Visiting changes nothing: what is looked at and stays
// costs no more than a step.
class IndexSet {
  public:
    static constexpr std::size_t none = std::numeric_limits<std::size_t>::max();

    explicit IndexSet(std::size_t size = 0) { clear(size); }

    void clear(std::size_t size) {
        words_.assign(size / 64 + 1, 0);
        lowest_ = words_.size();
    }

    void insert(std::size_t index) {
        words_[index / 64] |= std::uint64_t{1} << index % 64;
        lowest_ = std::min(lowest_, index / 64);
    }

    void erase(std::size_t index) { words_[index / 64] &= ~(std::uint64_t{1} << index % 64); }

    // The first from `index` on, or none.
    std::size_t from(std::size_t index) {
        std::size_t word = std::max(index / 64, lowest_);
        if (word >= words_.size()) return none;
        std::uint64_t bits = words_[word];
        if (word == index / 64) bits &= ~std::uint64_t{0} << index % 64;
        while (bits == 0 && ++word < words_.size()) bits = words_[word];
        if (index == 0) lowest_ = word;
        return bits == 0 ? none : 64 * word + static_cast<std::size_t>(std::countr_zero(bits));
    }

  private:
    std::vector<std::uint64_t> words_;
    std::size_t lowest_; // no word before it has any
};

} // namespace loadmaster
