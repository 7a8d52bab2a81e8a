#include "allocation/skyline.hpp"

#include <algorithm>

namespace loadmaster::allocation {

namespace {

// With more cells than this, the propagator only checks the buffers that overlap the last
// placement.
constexpr std::size_t kCellLimit = 16'000'000;

} // namespace

Skyline::Skyline(const Buffers &buffers, const Timeline &timeline, Int capacity)
    : buffers_(buffers), timeline_(timeline), capacity_(capacity), lowest_(buffers.count(), 0),
      level_(buffers.count(), kAbsent), head_(buffers.count(), -1),
      completion_(timeline.slots(), 0), dirty_(timeline.slots() + 1, 0) {
    for (std::int32_t b = 0; b < buffers.count(); ++b) {
        if (timeline.sections(b).empty()) continue;
        level_[b] = buffers.pin[b] >= 0 ? kPinned : kWaiting;
        free_ += level_[b] == kWaiting;
        if (level_[b] != kPinned) continue;
        lowest_[b] = buffers.pin[b];
        for (const Section &s : timeline.sections(b))
            pins_.push_back({s.begin, s.end, buffers.pin[b] + s.low, buffers.pin[b] + s.high});
    }
    std::ranges::sort(pins_, {}, [](const Pin &pin) { return std::pair(pin.low, pin.begin); });
    index_sections();
    list_cells();
    for (std::int32_t b = 0; b < buffers.count(); ++b)
        if (level_[b] == kWaiting) lowest_[b] = clear_of_pins(b, 0);
}

void Skyline::index_sections() {
    std::vector<std::pair<std::int32_t, Section>> found;
    for (std::int32_t b = 0; b < buffers_.count(); ++b)
        for (const Section &s : timeline_.sections(b)) found.emplace_back(b, s);
    std::ranges::stable_sort(found, {}, [](const auto &each) { return each.second.begin; });
    starts_.assign(timeline_.slots() + 1, 0);
    for (const auto &[b, s] : found) {
        owner_.push_back(b);
        sections_.push_back(s);
        ++starts_[s.begin + 1];
    }
    add_up(starts_);
    reach_.assign(sections_.size() / kBlock + 1, 0);
    for (std::size_t i : indices(sections_.size()))
        reach_[i / kBlock] = std::max(reach_[i / kBlock], sections_[i].end);
}

void Skyline::list_cells() {
    std::size_t count = 0;
    for (const Section &s : sections_) count += static_cast<std::size_t>(s.end - s.begin);
    if (count > kCellLimit) return;
    first_cell_.assign(timeline_.slots() + 1, 0);
    for (const Section &s : sections_)
        for (std::int32_t slot = s.begin; slot < s.end; ++slot) ++first_cell_[slot + 1];
    add_up(first_cell_);
    cells_.resize(count);
    std::vector<std::size_t> next(first_cell_.begin(), first_cell_.end() - 1);
    for (std::size_t i : indices(sections_.size()))
        for (std::int32_t slot = sections_[i].begin; slot < sections_[i].end; ++slot)
            cells_[next[slot]++] = {
                owner_[i], sections_[i].low, sections_[i].high - sections_[i].low};
}

bool Skyline::alive(std::int32_t buffer, std::int32_t slot) const {
    for (const Section &s : timeline_.sections(buffer))
        if (s.begin <= slot && slot < s.end) return true;
    return false;
}

// The lowest aligned offset from `at` on at which no pinned buffer is in the way.
Skyline::Int Skyline::clear_of_pins(std::int32_t buffer, Int at) const {
    at = align_up(at, buffers_.alignment[buffer]);
    if (pins_.empty()) return at;
    for (bool moved = true; moved;) {
        moved = false;
        for (const Pin &pin : pins_)
            for (const Section &s : timeline_.sections(buffer)) {
                if (s.begin >= pin.end || pin.begin >= s.end || at + s.high <= pin.low ||
                    pin.high <= at + s.low)
                    continue;
                at = align_up(pin.high - s.low, buffers_.alignment[buffer]);
                moved = true;
            }
    }
    return at;
}

// Raises the lowest offset of a buffer; false if the buffer no longer fits.
bool Skyline::raise(std::int32_t buffer, Int at) {
    at = clear_of_pins(buffer, at);
    trail_.push_back({buffer, depth() - 1, head_[buffer], lowest_[buffer]});
    head_[buffer] = static_cast<std::int32_t>(trail_.size()) - 1;
    lowest_[buffer] = at;
    return at + buffers_.size[buffer] <= capacity_;
}

// Adds to the conflict the earliest placement that raised a buffer to at least `threshold`, if any
// was needed for that.
void Skyline::explain_raise(std::int32_t buffer, Int threshold) {
    std::int32_t level = -1;
    for (std::int32_t at = head_[buffer]; at >= 0 && level_[buffer] == kWaiting;
        at = trail_[at].before) {
        level = trail_[at].level;
        if (trail_[at].lowest < threshold) break;
        if (trail_[at].before < 0) level = -1; // it was there from the start
    }
    if (level >= 0) conflict_.levels.push_back(level);
}

Skyline::Int Skyline::release_of(const Cell &cell) const {
    return level_[cell.buffer] >= 0 ? kNeverReleased : lowest_[cell.buffer] + cell.low;
}

// Whether the slot gets through its unplaced buffers below the capacity; sets completion_[slot].
bool Skyline::slot_feasible(std::int32_t slot) {
    Cell *const first = cells_.data() + first_cell_[slot],
                *const last = cells_.data() + first_cell_[slot + 1];
    for (Cell *at = first; at < last; ++at) {
        at->release = release_of(*at);
        if (at == first || at[-1].release <= at->release) continue;
        const Cell moving = *at;
        Cell *to = at;
        for (; to > first && to[-1].release > moving.release; --to) *to = to[-1];
        *to = moving;
    }
    Int now = std::numeric_limits<Int>::min();
    const Cell *since = first;
    for (const Cell *at = first; at < last; ++at) {
        const Int from = at->release;
        if (from == kNeverReleased) break;
        if (from > now) since = at, now = from;
        now += at->bytes;
        if (now <= capacity_) continue;
        completion_[slot] = capacity_ + 1;
        Int bytes = 0;
        for (const Cell *each = since; each <= at; ++each) bytes += each->bytes;
        for (const Cell *each = since; each <= at; ++each)
            explain_raise(each->buffer, capacity_ - bytes + 1 - each->low);
        return false;
    }
    // Undoing the last placement must leave a bound, too.
    completion_[slot] = placed_.empty()
        ? now
        : std::max(now, lowest_[placed_.back()] + buffers_.size[placed_.back()]);
    return true;
}

bool Skyline::root_feasible(bool propagate) {
    for (std::int32_t b = 0; b < buffers_.count(); ++b)
        if (level_[b] != kAbsent && lowest_[b] + buffers_.size[b] > capacity_) return false;
    for (std::int32_t slot = 0; propagate && !first_cell_.empty() && slot < timeline_.slots();
        ++slot)
        if (!slot_feasible(slot)) return false;
    return true;
}

bool Skyline::place(std::int32_t buffer, Int at, bool propagate) {
    conflict_.levels.clear();
    conflict_.victim = -1;
    if (at + buffers_.size[buffer] > capacity_) {
        conflict_.victim = buffer;
        explain_raise(buffer, capacity_ - buffers_.size[buffer] + 1);
        return false;
    }
    level_[buffer] = depth();
    placed_.push_back(buffer);
    marks_.push_back(trail_.size());
    if (at > lowest_[buffer]) raise(buffer, at);
    std::int32_t begin = timeline_.slots(), end = 0;
    const auto mark = [&](std::int32_t from, std::int32_t to) {
        ++dirty_[from], --dirty_[to];
        begin = std::min(begin, from), end = std::max(end, to);
    };
    bool fine = true;
    Int most = 0;
    for (const Section &mine : timeline_.sections(buffer)) {
        mark(mine.begin, mine.end);
        overlapping(mine.begin, mine.end, [&](std::int32_t index) {
            const std::int32_t other = owner_[index];
            const Int up = at + mine.high - sections_[index].low;
            if (level_[other] != kWaiting || lowest_[other] >= up || !fine) return;
            const Int before = lowest_[other];
            const bool fits = raise(other, up);
            most = std::max(most, lowest_[other] - before);
            if (!fits && propagate) {
                conflict_.victim = other;
                fine = false;
            }
            for (const Section &theirs : timeline_.sections(other)) mark(theirs.begin, theirs.end);
        });
    }
    if (!fine) explain_raise(conflict_.victim, capacity_ - buffers_.size[conflict_.victim] + 1);
    std::int32_t open = 0;
    for (std::int32_t slot = begin; slot <= end; ++slot) {
        open += dirty_[slot];
        dirty_[slot] = 0;
        if (open == 0 || !fine || !propagate || first_cell_.empty()) continue;
        completion_[slot] += most; // nothing was raised by more
        if (completion_[slot] > capacity_) fine = slot_feasible(slot);
    }
    if (fine) return true;
    sort_distinct(conflict_.levels);
    undo();
    return false;
}

void Skyline::undo() {
    for (const std::size_t mark = marks_.back(); trail_.size() > mark; trail_.pop_back()) {
        const Raise &step = trail_.back();
        lowest_[step.buffer] = step.lowest;
        head_[step.buffer] = step.before;
    }
    marks_.pop_back();
    level_[placed_.back()] = kWaiting;
    placed_.pop_back();
}

} // namespace loadmaster::allocation
