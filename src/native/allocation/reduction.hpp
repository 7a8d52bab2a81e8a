// From what a caller asks for to what every search can pack: groups become one buffer each, reserved ranges pinned ones.
#pragma once

#include "allocation/demands.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace loadmaster::allocation {

// The least address that, with each shift added, is a multiple of each member's alignment; none if there is none.
std::optional<std::int64_t> common_residue(const Buffers &buffers, const std::vector<Member> &group);

// Groups as one buffer each, after those that are in none, and where each original buffer went: `lift` bytes above the buffer in its `place`.
struct Merged {
    OwnedBuffers buffers;
    std::vector<std::int64_t> place, lift;

    // Whether some buffer never occupies some of its bytes, so that it may lie across a reserved range.
    bool hollow() const;
};

Merged merge(const Demands &demands);

// The merged buffers that take space, then one pinned buffer for each reserved range.
struct Reduced {
    OwnedBuffers buffers;
    std::vector<std::int64_t> kept;  // indices among the merged ones

    std::int64_t own() const { return static_cast<std::int64_t>(kept.size()); }
    // Offsets of the original buffers; what takes no space goes where it is pinned, or to 0.
    std::vector<std::int64_t> offsets(const Merged &merged, std::span<const std::int64_t> solved) const;
    // Highest address of a buffer, reserved ranges left out.
    std::int64_t peak(std::span<const std::int64_t> solved) const;
};

// Ranges from `limit` on do not matter.
Reduced without_empty(const Merged &merged, std::span<const AddressRange> ranges, std::int64_t limit);

}  // namespace loadmaster::allocation
