// Instants numbered, and the load over them: what first-fit needs to know about time.
#pragma once

#include "allocation/buffers.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace loadmaster::allocation {

struct Section {
    std::int32_t begin, end; // slots
    std::int64_t low, high;
};

class Timeline {
  public:
    explicit Timeline(const Buffers &buffers);
    std::int32_t slots() const { return slots_; }
    std::int64_t load() const { return load_; }
    std::span<const Section> sections(std::int64_t b) const {
        return {sections_.data() + first_[b], sections_.data() + first_[b + 1]};
    }
    double length(std::int64_t b) const { return length_[b]; }
    std::int64_t contention(std::int64_t b) const { return contention_[b]; }

  private:
    std::int32_t slots_ = 0;
    std::int64_t load_ = 0;
    std::vector<std::size_t> first_;
    std::vector<Section> sections_;
    std::vector<double> length_;
    std::vector<std::int64_t> contention_;
};

} // namespace loadmaster::allocation
