// From what a caller asks for to what every search can pack: groups become one buffer each,
// reserved ranges pinned ones.
#pragma once

#include "allocation/demands.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace loadmaster::allocation {

// The least address that, with each shift added, is a multiple of each member's alignment; none if
// there is none.
std::optional<std::int64_t> common_residue(const Buffers &buffers, const Group &group);

// Conflicts as lifetimes on one clock: an instant for each of some cliques that together hold every
// conflict. Two buffers that conflict are then alive together at some instant, and others never
// are, so that whatever works on lifetimes works on a partial order, and the load at an instant is
// the weight of a clique. None if that takes too many lifetimes. O(n^2) bits.
std::optional<OwnedBuffers> on_one_clock(const Demands &demands);

// Whether two buffers that must be apart would share bytes with `other` `up` bytes above `one`.
// Conflicts are in order, each pair with its lower number first.
bool meet(const Buffers &buffers, const std::optional<std::vector<Pair>> &conflicts,
    std::int64_t one, std::int64_t other, std::int64_t up);

// A row of in-place pairs with the lower number first.
InPlace in_order(const InPlace &row);

// Buffers in the caller's arrays where nothing had to be changed, else in arrays of their own.
class Rewritten {
  public:
    Rewritten(const Buffers &buffers, std::span<const std::int64_t> hint)
        : buffers_(buffers), hint_(hint) {}
    explicit Rewritten(OwnedBuffers &&made)
        : made_(std::move(made)), buffers_(made_.view()), hint_(made_.hint) {}
    // The views stay: vectors that move keep their elements where they are.
    Rewritten(Rewritten &&) = default;
    Rewritten &operator=(Rewritten &&) = default;
    const Buffers &buffers() const { return buffers_; }
    std::span<const std::int64_t> hint() const { return hint_; }

  private:
    OwnedBuffers made_;
    Buffers buffers_;
    std::span<const std::int64_t> hint_;
};

// Groups as one buffer each, after those that are in none, and where each original buffer went:
// `lift` bytes above the buffer in its `place`.
struct Merged {
    Buffers asked; // views of the caller's arrays
    Rewritten rewritten;
    std::vector<std::int64_t> places, lifts; // empty without groups: every buffer is its own place
    std::vector<InPlace> in_place = {};      // of the merged buffers, in order
    std::optional<std::vector<Pair>> conflicts = {};

    const Buffers &buffers() const { return rewritten.buffers(); }
    std::int64_t original() const {
        return places.empty() ? buffers().count() : std::ssize(places);
    }
    std::int64_t place(std::int64_t b) const { return places.empty() ? b : places[b]; }
    std::int64_t lift(std::int64_t b) const { return lifts.empty() ? 0 : lifts[b]; }
    // Whether some buffer never occupies some of its bytes, so that it may lie across a reserved
    // range.
    bool hollow() const;
};

Merged merge(const Demands &demands);

// The merged buffers that take space, then one pinned buffer for each reserved range.
struct Reduced {
    Rewritten rewritten;
    std::int64_t own; // buffers among them that are no range
    std::vector<std::int64_t>
        kept; // indices of these among the merged ones; empty where they are all of them
    std::vector<InPlace> in_place = {};
    std::optional<std::vector<Pair>> conflicts = {};

    const Buffers &buffers() const { return rewritten.buffers(); }
    std::int64_t merged(std::int64_t b) const { return kept.empty() ? b : kept[b]; }
    // Offsets of the original buffers; what takes no space goes where it is pinned, or to 0.
    std::vector<std::int64_t> offsets(
        const Merged &merged, std::span<const std::int64_t> solved) const;
    // Highest address of a buffer, reserved ranges left out.
    std::int64_t peak(std::span<const std::int64_t> solved) const;
};

// Ranges from `limit` on do not matter.
Reduced without_empty(
    const Merged &merged, std::span<const AddressRange> ranges, std::int64_t limit);

} // namespace loadmaster::allocation
