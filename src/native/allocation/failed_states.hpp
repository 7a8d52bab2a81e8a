// States from which no packing was found, with the highest capacity for which that is known.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace loadmaster::allocation {

// What is still to come decides everything: which buffers, and the lowest place of each, counted
// from the lowest of them. A hash table without chains, the newer state wins; it grows as it fills.
// States are kept whole and compared whole, so that what is known here is certain.
class FailedStates {
  public:
    // (buffer, lowest place).
    using Whole = std::vector<std::pair<std::int32_t, std::int64_t>>;

    explicit FailedStates(std::int32_t buffers)
        : most_(std::clamp(std::bit_floor(kMostNumbers / static_cast<std::size_t>(buffers + 1)),
              kFewestSlots, kMostSlots)) {}

    // `same(entry, number)`: whether the state asked about has this one.
    template <typename Same>
    bool knows(std::uint64_t key, std::size_t count, std::int64_t capacity, Same same) const {
        if (slots_.empty()) return false;
        const Slot &slot = slots_[key & (slots_.size() - 1)];
        if (slot.key != key || slot.state.size() != count || capacity > slot.capacity) return false;
        for (const auto &[entry, number] : slot.state)
            if (!same(entry, number)) return false;
        return true;
    }
    // The slot's old memory is used again.
    Whole &add(std::uint64_t key, std::int64_t capacity) {
        if (2 * used_ >= slots_.size() && slots_.size() < most_) grow();
        Slot &slot = slots_[key & (slots_.size() - 1)];
        used_ += slot.capacity < 0;
        slot.key = key;
        slot.capacity = capacity;
        slot.state.clear();
        return slot.state;
    }
    void clear() {
        for (Slot &slot : slots_) slot.capacity = -1;
        used_ = 0;
    }

  private:
    struct Slot {
        std::uint64_t key = 0;
        std::int64_t capacity = -1;
        Whole state;
    };
    // Numbers in all states at most, which are 16 bytes each.
    static constexpr std::size_t kMostNumbers = std::size_t{1} << 21;
    static constexpr std::size_t kFirstSlots = 256, kFewestSlots = 256,
                                 kMostSlots = std::size_t{1} << 18;

    void grow() {
        std::vector<Slot> before =
            std::exchange(slots_, std::vector<Slot>(std::max(kFirstSlots, 2 * slots_.size())));
        used_ = 0;
        for (Slot &slot : before) {
            if (slot.capacity < 0) continue;
            Slot &to = slots_[slot.key & (slots_.size() - 1)];
            used_ += to.capacity < 0;
            to = std::move(slot);
        }
    }

    const std::size_t most_;
    std::size_t used_ = 0;
    std::vector<Slot> slots_; // a power of two, once there is something to remember
};

} // namespace loadmaster::allocation
