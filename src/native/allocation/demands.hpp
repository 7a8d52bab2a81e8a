// What a caller asks for, before it is made simpler: buffers with their demands.
#pragma once

#include "allocation/buffers.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace loadmaster::allocation {

struct Pair {
    std::int64_t one, other;
    auto operator<=>(const Pair &) const = default;
};

struct OwnedBuffers {
    std::vector<std::int64_t> size, alignment, pin, hint; // pin, hint: an offset, or -1
    std::vector<std::int64_t> first{0}, begin, end, low, high, near_first, near;

    std::int64_t count() const { return std::ssize(size); }
    Buffers view() const {
        return {size, alignment, pin, first, begin, end, low, high, near_first, near};
    }
    // A buffer that has no sections yet; `add_section` gives them to the one added last.
    void add(std::int64_t bytes, std::int64_t step, std::int64_t pinned, std::int64_t hinted) {
        size.push_back(bytes), alignment.push_back(step), pin.push_back(pinned),
            hint.push_back(hinted);
        first.push_back(std::ssize(begin));
    }
    void add_section(
        std::int64_t from, std::int64_t to, std::int64_t lowest, std::int64_t highest) {
        begin.push_back(from), end.push_back(to), low.push_back(lowest), high.push_back(highest);
        first.back() = std::ssize(begin);
    }
    // Each two of these must be apart, and no others.
    void keep_apart(std::vector<Pair> pairs);
};

struct AddressRange {
    std::int64_t low, high;
};

// A buffer that lies `shift` bytes above the address of its group.
struct Member {
    std::int64_t buffer, shift;
    auto operator<=>(const Member &) const = default;
};
using Group = std::vector<Member>;

// Two buffers that may lie so that `other` is `shift` bytes above `one`, instead of being apart.
struct InPlace {
    std::int64_t one, other, shift;
    auto operator<=>(const InPlace &) const = default;
};

struct Demands {
    Buffers buffers;                         // in the caller's arrays
    std::span<const std::int64_t> hint;      // an offset for each, or -1
    std::vector<Group> aliases = {};         // no buffer is in two groups; no group is empty
    std::vector<AddressRange> reserved = {}; // where nothing is ever occupied
    std::vector<InPlace> in_place = {};
    // What must be apart, whatever lifetimes say: of buffers without a common clock, whose sections
    // then only say whether they take space.
    std::optional<std::vector<Pair>> conflicts = {};
};

// Throws std::invalid_argument or std::overflow_error, with a message that names the buffer by its
// number, unless all arrays fit together, every number is in its range, and no sum of them
// overflows. O(n log n).
void check(const Buffers &buffers);
void check(const Demands &demands);

// What is wrong with a group's alignments and pins, and the buffer at which it shows.
struct GroupFault {
    std::int64_t buffer;
    const char *what;
};
std::optional<GroupFault> fault_of(const Buffers &buffers, const Group &group);

// Ranges that touch as one, in order; without empty ones.
std::vector<AddressRange> joined(std::vector<AddressRange> ranges);

} // namespace loadmaster::allocation
