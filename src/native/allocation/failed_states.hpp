// States from which no packing was found, with the highest capacity for which that is known.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace loadmaster::allocation {

// What is still to come decides everything: which buffers, and the lowest place of each, counted from the lowest of them. A fixed number of
// slots, the newer state wins. States are kept whole and compared whole, so that what is known here is certain.
class FailedStates {
  public:
    using Whole = std::vector<std::pair<std::int32_t, std::int64_t>>;  // (buffer, lowest place)

    // Few buffers have few states.
    explicit FailedStates(std::int32_t buffers) : size_(std::min<std::size_t>(std::bit_ceil(static_cast<std::size_t>(buffers) * 16 + 1), 8192)) {}

    // `same(buffer, place)`: whether the state asked about has this buffer at this lowest place.
    template <typename Same>
    bool knows(std::uint64_t key, std::size_t count, std::int64_t capacity, Same same) const {
        if (slots_.empty()) return false;
        const Slot &slot = slots_[key & (size_ - 1)];
        if (slot.key != key || slot.state.size() != count || capacity > slot.capacity) return false;
        for (const auto &[buffer, place] : slot.state)
            if (!same(buffer, place)) return false;
        return true;
    }
    // The slot's old memory is used again.
    Whole &add(std::uint64_t key, std::int64_t capacity) {
        slots_.resize(size_);
        Slot &slot = slots_[key & (size_ - 1)];
        slot.key = key;
        slot.capacity = capacity;
        slot.state.clear();
        return slot.state;
    }
    void clear() {
        for (Slot &slot : slots_) slot.capacity = -1;
    }

  private:
    struct Slot {
        std::uint64_t key = 0;
        std::int64_t capacity = -1;
        Whole state;
    };
    std::size_t size_;
    std::vector<Slot> slots_;  // once there is something to remember
};

}  // namespace loadmaster::allocation
