// What keeps a buffer from lying at an offset: the placed buffers whose lifetimes overlap its own.
#pragma once

#include "allocation/plain.hpp"

#include <cstdint>
#include <optional>
#include <vector>

namespace loadmaster::allocation {

// The offsets strictly between the two overlap a placed buffer.
struct Forbidden {
    std::int64_t from, to;
    std::int32_t buffer;
};

// Any buffers, by the caller's numbers. A list takes time that grows with the sections that live at
// the same time.
class Neighbours {
  public:
    explicit Neighbours(const Buffers &buffers);
    virtual ~Neighbours() = default;
    // What is forbidden to a buffer by those with an offset of at least 0, in order of `from`.
    virtual void list(std::int32_t buffer, const std::vector<std::int64_t> &offset,
        std::vector<Forbidden> &forbidden) const;
    std::int32_t count() const { return static_cast<std::int32_t>(size.size()); }

    std::vector<std::int64_t> size, alignment;
    std::vector<double> weight; // bytes times instants; infinite for those that may not move

  private:
    const Plain sections_;
    const LiveIndex live_;
    std::vector<std::int32_t> first_;      // sections of buffer b: first_[b] .. first_[b + 1] - 1
    std::vector<std::int64_t> low_, high_; // bytes of its owner that a section occupies
    bool several_sections_ = false;
};

// The same, with every pair stored, in the order of address that it had last: few moves change it
// little. Memory grows with the pairs.
class StoredNeighbours : public Neighbours {
  public:
    explicit StoredNeighbours(const Buffers &buffers);
    void list(std::int32_t buffer, const std::vector<std::int64_t> &offset,
        std::vector<Forbidden> &forbidden) const override;

  private:
    mutable std::vector<std::vector<Forbidden>>
        pairs_; // for each buffer, relative to the offsets of the others
};

// Two buffers whose pins have them occupy the same addresses at once.
struct PinClash {
    std::int64_t one, other;
};

// Two pinned buffers that overlap, so that there is no packing.
std::optional<PinClash> pins_clash(const Buffers &buffers);

} // namespace loadmaster::allocation
