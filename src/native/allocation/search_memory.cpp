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

bool Search::known_to_fail(const Part &part, const Level &level) const {
    const auto same = [&](std::int32_t buffer, Int place) {
        return lowest_[buffer] == place + level.base &&
            model_.hull_begin[buffer] >= part.slot_from && model_.hull_end[buffer] <= part.slot_to;
    };
    return failed_.knows(
        level.key, static_cast<std::size_t>(part.to - part.from), capacity_ - level.base, same);
}

void Search::remember(const Part &part, const Level &level) {
    FailedStates::Whole &state = failed_.add(level.key, capacity_ - level.base);
    for (std::int32_t i = part.from; i < part.to; ++i)
        state.emplace_back(order_[i], lowest_[order_[i]] - level.base);
}

} // namespace loadmaster::allocation
