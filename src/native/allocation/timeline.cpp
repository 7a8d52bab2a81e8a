#include "allocation/timeline.hpp"

#include <algorithm>

namespace loadmaster::allocation {

namespace {

// Maxima of all stretches whose length is a power of two.
class Maxima {
  public:
    explicit Maxima(std::vector<std::int64_t> values) {
        levels_.push_back(std::move(values));
        for (std::size_t width = 1; 2 * width <= levels_[0].size(); width *= 2) {
            const auto &below = levels_.back();
            std::vector<std::int64_t> level(below.size() - width);
            for (std::size_t i = 0; i < level.size(); ++i) level[i] = std::max(below[i], below[i + width]);
            levels_.push_back(std::move(level));
        }
    }
    std::int64_t over(std::size_t begin, std::size_t end) const {
        std::size_t level = 0;
        while ((std::size_t{2} << level) <= end - begin) ++level;
        return std::max(levels_[level][begin], levels_[level][end - (std::size_t{1} << level)]);
    }

  private:
    std::vector<std::vector<std::int64_t>> levels_;
};

}  // namespace

Timeline::Timeline(const Buffers &buffers) {
    const std::int64_t count = buffers.count();
    // A slot begins wherever something starts: in between, the live set only shrinks.
    std::vector<std::int64_t> starts;
    for (std::int64_t s = 0; s < static_cast<std::int64_t>(buffers.begin.size()); ++s)
        if (buffers.occupies(s)) starts.push_back(buffers.begin[s]);
    std::sort(starts.begin(), starts.end());
    starts.erase(std::unique(starts.begin(), starts.end()), starts.end());
    slots_ = static_cast<std::int32_t>(starts.size());
    const auto slot = [&](std::int64_t when) { return static_cast<std::int32_t>(std::lower_bound(starts.begin(), starts.end(), when) - starts.begin()); };

    first_.push_back(0);
    length_.assign(count, 0);
    contention_.assign(count, 0);
    std::vector<std::int64_t> load(slots_ + 1, 0);
    for (std::int64_t b = 0; b < count; ++b) {
        for (std::int64_t s = buffers.first[b]; s < buffers.first[b + 1]; ++s) {
            if (!buffers.occupies(s)) continue;
            const Section section{slot(buffers.begin[s]), slot(buffers.end[s]), buffers.low[s], buffers.high[s]};
            sections_.push_back(section);
            length_[b] += static_cast<double>(buffers.end[s]) - static_cast<double>(buffers.begin[s]);
            load[section.begin] += section.high - section.low;
            load[section.end] -= section.high - section.low;
        }
        first_.push_back(sections_.size());
    }
    for (std::int32_t s = 0; s < slots_; ++s) load[s + 1] += load[s];
    if (slots_ == 0) return;
    load.pop_back();
    load_ = *std::max_element(load.begin(), load.end());
    const Maxima maxima(std::move(load));
    for (std::int64_t b = 0; b < count; ++b)
        for (const Section &section : sections(b)) contention_[b] = std::max(contention_[b], maxima.over(section.begin, section.end));
}

}  // namespace loadmaster::allocation
