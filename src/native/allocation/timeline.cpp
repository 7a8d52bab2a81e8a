#include "allocation/timeline.hpp"

#include <algorithm>

namespace loadmaster::allocation {

namespace {

// Maxima of stretches of values, from a tree of twice as many.
class Maxima {
  public:
    explicit Maxima(std::span<const std::int64_t> values)
        : count_(values.size()), tree_(2 * values.size()) {
        std::ranges::copy(values, tree_.begin() + count_);
        for (std::size_t node = count_ - 1; node > 0; --node)
            tree_[node] = std::max(tree_[2 * node], tree_[2 * node + 1]);
    }
    // Of values of at least 0; [begin, end) is not empty.
    std::int64_t over(std::size_t begin, std::size_t end) const {
        std::int64_t found = 0;
        for (begin += count_, end += count_; begin < end; begin /= 2, end /= 2) {
            if (begin % 2) found = std::max(found, tree_[begin++]);
            if (end % 2) found = std::max(found, tree_[--end]);
        }
        return found;
    }

  private:
    std::size_t count_;
    std::vector<std::int64_t> tree_;
};

} // namespace

Timeline::Timeline(const Buffers &buffers) {
    const std::int64_t count = buffers.count();
    // A slot begins wherever something starts: in between, the live set only shrinks.
    std::vector<std::int64_t> starts;
    for (std::int64_t s : indices(std::ssize(buffers.begin)))
        if (buffers.occupies(s)) starts.push_back(buffers.begin[s]);
    sort_distinct(starts);
    slots_ = static_cast<std::int32_t>(starts.size());
    const auto slot = [&](std::int64_t when) {
        return static_cast<std::int32_t>(std::ranges::lower_bound(starts, when) - starts.begin());
    };

    first_.push_back(0);
    length_.assign(count, 0);
    contention_.assign(count, 0);
    std::vector<std::int64_t> load(slots_ + 1, 0);
    for (std::int64_t b : indices(count)) {
        for (std::int64_t s : buffers.occupied(b)) {
            const Section section{
                slot(buffers.begin[s]), slot(buffers.end[s]), buffers.low[s], buffers.high[s]};
            sections_.push_back(section);
            length_[b] +=
                static_cast<double>(buffers.end[s]) - static_cast<double>(buffers.begin[s]);
            load[section.begin] += section.high - section.low;
            load[section.end] -= section.high - section.low;
        }
        first_.push_back(sections_.size());
    }
    for (std::int32_t s : indices(slots_)) load[s + 1] += load[s];
    if (slots_ == 0) return;
    load.pop_back();
    load_ = std::ranges::max(load);
    const Maxima maxima(load);
    for (std::int64_t b : indices(count))
        for (const Section &section : sections(b))
            contention_[b] = std::max(contention_[b], maxima.over(section.begin, section.end));
}

} // namespace loadmaster::allocation
