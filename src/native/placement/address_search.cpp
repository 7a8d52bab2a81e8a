#include "placement/address_search.hpp"

#include <algorithm>
#include <random>

namespace loadmaster::placement {

namespace {

class AddressSearch {
  public:
    AddressSearch(Schedule &schedule, std::span<const std::int64_t> offset, std::int64_t capacity,
        std::int64_t alignment, std::uint64_t seed, allocation::Budget &budget)
        : schedule_(schedule), blocks_(schedule.blocks()), capacity_(capacity),
          alignment_(alignment), random_(seed), budget_(budget) {
        found_.offset.assign(offset.begin(), offset.end());
        for (std::size_t b : indices(blocks_.size())) {
            if (blocks_[b].size == 0) continue;
            movable_.push_back(b);
            weight_.push_back(
                (weight_.empty() ? 0.0 : weight_.back()) + static_cast<double>(blocks_[b].size));
        }
        upwards_ = movable_;
        std::ranges::sort(
            upwards_, {}, [&](std::int64_t b) { return std::pair(found_.offset[b], b); });
    }

    FoundOffsets run(double goal) {
        found_.seconds = schedule_.run_at(found_.offset);
        late_ = schedule_.held_up();
        while (movable_.size() > 1 && found_.seconds > goal && budget_.look() && !budget_.spent())
            attempt();
        return std::move(found_);
    }

  private:
    std::int64_t below(std::size_t count) { return static_cast<std::int64_t>(random_() % count); }

    // A block at random, a large one more often.
    std::int64_t any() {
        const double at = static_cast<double>(random_() >> 11) * 0x1p-53 * weight_.back();
        return movable_[std::min<std::size_t>(
            std::ranges::upper_bound(weight_, at) - weight_.begin(), movable_.size() - 1)];
    }

    bool alive_together(std::int64_t a, std::int64_t b) const {
        return blocks_[a].start < blocks_[b].end && blocks_[b].start < blocks_[a].end;
    }

    std::int64_t top(std::int64_t b) const { return found_.offset[b] + blocks_[b].size; }

    // Takes a block to another address; what is in its way goes to gaps that take it, if there are
    // any.
    void attempt() {
        moved_.clear();
        const std::int64_t b = !late_.empty() && below(4) ? late_[below(late_.size())] : any(),
                           to = target(b);
        budget_.add(std::ssize(movable_));
        if (to < 0 || to == found_.offset[b]) return;
        move(b, to);
        homeless_.clear();
        for (std::int64_t other : movable_)
            if (other != b && alive_together(b, other) && found_.offset[other] < top(b) &&
                to < top(other))
                homeless_.push_back(other);
        if (settle_all() && improves()) return;
        for (; !moved_.empty(); moved_.pop_back()) put(moved_.back().first, moved_.back().second);
    }

    bool improves() {
        budget_.add(
            std::ssize(movable_) + kLooks * static_cast<std::int64_t>(schedule_.copies().size()));
        const double seconds = schedule_.run_at(found_.offset);
        if (seconds > found_.seconds) return false;
        found_.seconds = seconds;
        late_ = schedule_.held_up();
        return true;
    }

    void move(std::int64_t b, std::int64_t to) {
        moved_.emplace_back(b, found_.offset[b]);
        put(b, to);
    }

    // Gives a block another address, and its place in the order of addresses.
    void put(std::int64_t b, std::int64_t to) {
        const auto key = [&](std::int64_t other) { return std::pair(found_.offset[other], other); };
        const auto from = std::ranges::lower_bound(upwards_, key(b), {}, key),
                   at = std::ranges::lower_bound(upwards_, std::pair(to, b), {}, key);
        if (from < at)
            std::rotate(from, from + 1, at);
        else
            std::rotate(at, from, from + 1);
        found_.offset[b] = to;
    }

    // An address at either end of another block's, or at an end of the memory; -1 if there is no
    // room.
    std::int64_t target(std::int64_t b) {
        const std::int64_t other = any(), size = blocks_[b].size;
        const std::int64_t options[] = {found_.offset[other], top(other),
            found_.offset[other] - size, top(other) - size, below(2) ? 0 : capacity_ - size};
        const std::int64_t to = options[below(std::size(options))];
        return to >= 0 && to + size <= capacity_ ? to - to % alignment_ : -1;
    }

    // Finds addresses for those without one, the largest first.
    bool settle_all() {
        if (homeless_.size() > kMost) return false;
        std::ranges::sort(homeless_, std::greater{},
            [&](std::int64_t b) { return std::pair(blocks_[b].size, -b); });
        std::ranges::reverse(homeless_);
        while (!homeless_.empty()) {
            const std::int64_t b = homeless_.back();
            homeless_.pop_back();
            if (!settle(b)) return false;
        }
        return true;
    }

    // Puts a block into one of the gaps that take it, at random, at its lower or upper end.
    bool settle(std::int64_t b) {
        budget_.add(std::ssize(movable_));
        taken_.clear();
        for (std::int64_t other : upwards_)
            if (other != b && alive_together(b, other) &&
                std::ranges::find(homeless_, other) == homeless_.end())
                taken_.emplace_back(found_.offset[other], top(other));
        taken_.emplace_back(capacity_, capacity_);
        gaps_.clear();
        std::int64_t low = 0;
        for (const auto &[begin, end] : taken_) {
            if (const std::int64_t high = begin - blocks_[b].size; high >= low) {
                gaps_.push_back(low);
                gaps_.push_back(high - high % alignment_);
            }
            low = std::max(low, (end + alignment_ - 1) / alignment_ * alignment_);
        }
        if (gaps_.empty()) return false;
        move(b, gaps_[below(gaps_.size())]);
        return true;
    }

    static constexpr std::size_t kMost = 6;    // blocks that may be in the way
    static constexpr std::int64_t kLooks = 16; // how often a schedule looks at each copy, about

    Schedule &schedule_;
    const std::vector<Block> &blocks_;
    const std::int64_t capacity_, alignment_;
    std::mt19937_64 random_;
    allocation::Budget &budget_;
    FoundOffsets found_;
    std::vector<std::int64_t> upwards_; // movable blocks by address
    std::vector<double> weight_;
    std::vector<std::int64_t> late_; // blocks that hold copies up, or whose copies are held up
    std::vector<std::int64_t> movable_, homeless_, gaps_;
    std::vector<std::pair<std::int64_t, std::int64_t>> moved_,
        taken_; // block and its offset before; begin and end
};

} // namespace

FoundOffsets search_addresses(Schedule &schedule, std::span<const std::int64_t> offset,
    std::int64_t capacity, std::int64_t alignment, double goal, std::uint64_t seed,
    allocation::Budget &budget) {
    return AddressSearch(schedule, offset, capacity, alignment, seed, budget).run(goal);
}

} // namespace loadmaster::placement
