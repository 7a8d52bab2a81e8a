// What the search remembers of states from which it found no packing.
#include "allocation/search.hpp"

namespace loadmaster::allocation {

namespace {

std::uint64_t mix(std::uint64_t x) {
    x = (x ^ (x >> 31)) * 0x7fb5d329728ea185ULL;
    x = (x ^ (x >> 27)) * 0x81dadef4bc2dd44dULL;
    return x ^ (x >> 33);
}

std::uint64_t mixed(std::int32_t entry, std::int64_t number) {
    return mix(static_cast<std::uint64_t>(number) * 0x9e3779b97f4a7c15ULL +
        static_cast<std::uint64_t>(entry));
}

} // namespace

std::uint64_t Search::key_of(const Part &part, Int base) const {
    std::uint64_t key = static_cast<std::uint64_t>(part.to - part.from);
    for (std::int32_t i = part.from; i < part.to; ++i)
        key += mixed(order_[i], lowest_[order_[i]] - base);
    return key;
}

// Free bytes of a slot between what is placed and the floor; holes that hold no buffer are none.
Search::Int Search::hole(std::int32_t slot) const {
    if (floor_[slot] == kPlaced) return 0;
    const Int height = floor_[slot] - top_[slot];
    return height < smallest_ ? 0 : height;
}

std::uint64_t Search::key_with_holes(const Part &part, std::uint64_t key) const {
    key = ~key;
    for (std::int32_t s = part.slot_from; s < part.slot_to; ++s)
        if (const Int height = hole(s)) key += mixed(-1 - s, height);
    return key;
}

bool Search::known_to_fail(const Part &part, const Level &level) const {
    const auto same = [&](std::int32_t entry, Int number) {
        if (entry < 0) return hole(-1 - entry) == number;
        return lowest_[entry] == number + level.base &&
            model_.hull_begin[entry] >= part.slot_from && model_.hull_end[entry] <= part.slot_to;
    };
    const auto count = static_cast<std::size_t>(part.to - part.from);
    const Int capacity = part.capacity - level.base;
    if (failed_.knows(level.key, count, capacity, same)) return true;
    if (!rules_.dominance || model_.windows) return false;
    const auto slots = static_cast<std::size_t>(part.slot_to - part.slot_from);
    return failed_.knows(level.key_with_holes, count + slots, capacity, same);
}

// `complete`: no branch was cut by dominance; else the state may have a packing above other holes.
void Search::remember(const Part &part, const Level &level, bool complete) {
    FailedStates::Whole &state =
        failed_.add(complete ? level.key : level.key_with_holes, part.capacity - level.base);
    for (std::int32_t i = part.from; i < part.to; ++i)
        state.emplace_back(order_[i], lowest_[order_[i]] - level.base);
    if (complete) return;
    for (std::int32_t s = part.slot_from; s < part.slot_to; ++s)
        state.emplace_back(-1 - s, hole(s));
}

} // namespace loadmaster::allocation
