#include "allocation/blocks.hpp"

#include <algorithm>
#include <functional>
#include <tuple>

namespace loadmaster::allocation {

namespace {

// Equal sizes one after the other are rarely chance, but a value that is written anew or that once
// was one: the empty part between seems so much smaller.
constexpr double kEqualSizes = 0.1;
// Empty parts seem up to so much larger, as a multiple of themselves.
constexpr double kNoise = 2;

bool joinable(const Buffers &buffers, std::int64_t b) {
    const std::int64_t s = buffers.first[b];
    return buffers.pin[b] < 0 && buffers.first[b + 1] == s + 1 && buffers.whole(b, s);
}

} // namespace

bool Blocks::Pair::operator>(const Pair &other) const {
    return std::tie(empty, first, second) > std::tie(other.empty, other.first, other.second);
}

Blocks::Blocks(const Buffers &buffers, const Joining &joining)
    : joining_(joining), random_(joining.seed) {
    number_slots(buffers);
    for (std::int64_t b : indices(buffers.count())) add_buffer(buffers, b);
    const auto count = static_cast<std::int32_t>(blocks_.size());
    for (std::int32_t b : indices(count))
        for (std::int32_t other : indices(b)) consider(other, b);
    join_all();
    list_blocks(buffers);
}

void Blocks::number_slots(const Buffers &buffers) {
    for (std::int64_t s : indices(std::ssize(buffers.begin)))
        if (buffers.occupies(s))
            instants_.insert(instants_.end(), {buffers.begin[s], buffers.end[s]});
    sort_distinct(instants_);
    load_.assign(instants_.size(), 0);
}

std::int32_t Blocks::slot(std::int64_t instant) const {
    return static_cast<std::int32_t>(
        std::ranges::lower_bound(instants_, instant) - instants_.begin());
}

double Blocks::area(const Block &block) const {
    return static_cast<double>(block.size) *
        (static_cast<double>(instants_[block.end]) - static_cast<double>(instants_[block.begin]));
}

void Blocks::add_buffer(const Buffers &buffers, std::int64_t b) {
    for (std::int64_t s : buffers.occupied(b)) {
        for (std::int32_t t = slot(buffers.begin[s]); t < slot(buffers.end[s]); ++t)
            load_[t] += buffers.high[s] - buffers.low[s];
    }
    Block block;
    block.size = buffers.size[b], block.alignment = buffers.alignment[b],
    block.apart = !joinable(buffers, b);
    if (!block.apart) {
        block.begin = slot(buffers.begin[buffers.first[b]]),
        block.end = slot(buffers.end[buffers.first[b]]);
        block.area = area(block);
    }
    blocks_.push_back(block);
}

Blocks::Block Blocks::together(std::int32_t first, std::int32_t second) const {
    const Block &lower = blocks_[first], &upper = blocks_[second];
    Block block;
    block.first = first, block.second = second;
    block.begin = std::min(lower.begin, upper.begin), block.end = std::max(lower.end, upper.end);
    block.alignment = std::max(lower.alignment, upper.alignment);
    const bool at_once = lower.begin < upper.end && upper.begin < lower.end;
    if (at_once) block.rise = align_up(lower.size, upper.alignment);
    block.size = std::max(lower.size, block.rise + upper.size);
    block.area = area(block);
    return block;
}

// Of two alignments one has to divide the other, or no single one would do for the block.
void Blocks::consider(std::int32_t first, std::int32_t second) {
    const Block &lower = blocks_[first], &upper = blocks_[second];
    if (lower.apart || upper.apart ||
        std::max(lower.alignment, upper.alignment) % std::min(lower.alignment, upper.alignment) !=
            0)
        return;
    const Block block = together(first, second);
    double empty = 1 - (lower.area + upper.area) / block.area;
    if (empty >= joining_.most_empty) return;
    if (block.rise == 0 && lower.size == upper.size) empty *= kEqualSizes;
    pairs_.push_back({empty * (1 + kNoise * random_.uniform()), first, second});
    std::ranges::push_heap(pairs_, std::greater<>());
}

// Adds what is empty in a block to the load; false, with nothing changed, if that has no room for
// it.
bool Blocks::claim(const Block &block) {
    const auto used = [&](std::int32_t part, std::int32_t at) {
        return at >= blocks_[part].begin && at < blocks_[part].end ? blocks_[part].size : 0;
    };
    const auto empty = [&](std::int32_t at) {
        return block.size - used(block.first, at) - used(block.second, at);
    };
    for (std::int32_t at = block.begin; at < block.end; ++at)
        if (empty(at) > 0 && load_[at] + empty(at) > joining_.ceiling) return false;
    for (std::int32_t at = block.begin; at < block.end; ++at) load_[at] += empty(at);
    return true;
}

void Blocks::join_all() {
    while (!pairs_.empty()) {
        std::ranges::pop_heap(pairs_, std::greater<>());
        const Pair pair = pairs_.back();
        pairs_.pop_back();
        if (blocks_[pair.first].apart || blocks_[pair.second].apart) continue;
        const Block block = together(pair.first, pair.second);
        if (!claim(block)) continue;
        blocks_[pair.first].apart = blocks_[pair.second].apart = true;
        const auto made = static_cast<std::int32_t>(blocks_.size());
        blocks_.push_back(block);
        for (std::int32_t other : indices(made)) consider(other, made);
    }
}

void Blocks::list_blocks(const Buffers &buffers) {
    std::vector<char> inside(blocks_.size(), 0);
    for (const Block &block : blocks_)
        if (block.first >= 0) inside[block.first] = inside[block.second] = 1;
    for (std::int32_t b = 0; b < static_cast<std::int32_t>(blocks_.size()); ++b) {
        if (inside[b]) continue;
        const Block &block = blocks_[b];
        left_.push_back(b);
        made_.add(block.size, block.alignment, b < buffers.count() ? buffers.pin[b] : -1, -1);
        if (block.first >= 0)
            made_.add_section(instants_[block.begin], instants_[block.end], 0, block.size);
        else
            for (std::int64_t s : buffers.sections(b))
                made_.add_section(
                    buffers.begin[s], buffers.end[s], buffers.low[s], buffers.high[s]);
    }
}

std::vector<std::int64_t> Blocks::offsets(std::span<const std::int64_t> of_blocks) const {
    std::vector<std::int64_t> offset(blocks_.size());
    for (std::size_t i : indices(left_.size())) offset[left_[i]] = of_blocks[i];
    std::size_t b = blocks_.size();
    for (; b > 0 && blocks_[b - 1].first >= 0; --b) {
        offset[blocks_[b - 1].first] = offset[b - 1];
        offset[blocks_[b - 1].second] = offset[b - 1] + blocks_[b - 1].rise;
    }
    offset.resize(b);
    return offset;
}

} // namespace loadmaster::allocation
