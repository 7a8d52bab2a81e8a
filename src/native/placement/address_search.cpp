#include "placement/address_search.hpp"

#include <algorithm>
#include <random>
#include <cstdlib>
#include <cstdio>

namespace loadmaster::placement {

namespace {

class AddressSearch {
  public:
    AddressSearch(Schedule &schedule, std::span<const std::int64_t> offset, std::int64_t capacity, std::int64_t alignment, std::uint64_t seed,
                  allocation::Budget &budget)
        : schedule_(schedule), blocks_(schedule.blocks()), capacity_(capacity), alignment_(alignment), random_(seed), budget_(budget) {
        found_.offset.assign(offset.begin(), offset.end());
        for (std::size_t b = 0; b < blocks_.size(); ++b)
            if (blocks_[b].size > 0) {
                movable_.push_back(static_cast<std::int64_t>(b));
                weight_.push_back((weight_.empty() ? 0.0 : weight_.back()) + static_cast<double>(blocks_[b].size));
            }
    }

    FoundOffsets run(double goal) {
        found_.seconds = now_ = schedule_.run_at(found_.offset);
        best_ = found_.offset;
        const double t0 = getenv("T0") ? atof(getenv("T0")) : 0.0;
        while (movable_.size() > 1 && found_.seconds > goal && budget_.look() && !budget_.spent()) {
            slack_ = 1 + t0 * (1 - static_cast<double>(budget_.nodes()) / static_cast<double>(nodes_));
            attempt();
            if (now_ < found_.seconds) found_.seconds = now_, best_ = found_.offset;
            ++found_.rounds;
        }
        fprintf(stderr, "evaluated %ld of %ld\n", (long)evaluated_, (long)found_.rounds);
        found_.offset = best_;
        return std::move(found_);
    }

  private:
    std::int64_t below(std::size_t count) { return static_cast<std::int64_t>(random_() % count); }

    // A block at random, more often a large one.
    std::int64_t any() {
        const double at = static_cast<double>(random_() >> 11) * 0x1p-53 * weight_.back();
        return movable_[std::min<std::size_t>(std::upper_bound(weight_.begin(), weight_.end(), at) - weight_.begin(), movable_.size() - 1)];
    }

    bool meet(std::int64_t a, std::int64_t b) const { return blocks_[a].start < blocks_[b].end && blocks_[b].start < blocks_[a].end; }

    // Takes a block to an address; what is in its way goes to another gap that takes it, if there is one.
    void attempt() {
        moved_.clear();
        const std::int64_t b = any();
        const std::int64_t to = target(b);
        budget_.add(static_cast<std::int64_t>(blocks_.size()));
        if (to < 0 || to == found_.offset[b]) return;
        move(b, to);
        bool placed = true;
        evicted_.clear();
        for (std::int64_t other : movable_)
            if (other != b && meet(b, other) && found_.offset[other] < to + blocks_[b].size && to < found_.offset[other] + blocks_[other].size) evicted_.push_back(other);
        placed = evicted_.size() <= kMost;
        std::sort(evicted_.begin(), evicted_.end(), [&](std::int64_t x, std::int64_t y) { return std::pair(-blocks_[x].size, x) < std::pair(-blocks_[y].size, y); });
        away_ = evicted_;
        for (std::size_t i = 0; placed && i < evicted_.size(); ++i) placed = settle(evicted_[i]);
        if (placed) {
            budget_.add(static_cast<std::int64_t>(blocks_.size()));
            const double seconds = schedule_.run_at(found_.offset);
            ++evaluated_;
            if (seconds <= now_ * slack_) {
                now_ = seconds;
                return;
            }
        }
        for (auto it = moved_.rbegin(); it != moved_.rend(); ++it) found_.offset[it->first] = it->second;
    }

    void move(std::int64_t b, std::int64_t to) {
        moved_.emplace_back(b, found_.offset[b]);
        found_.offset[b] = to;
    }

    // An address for a block: where another one begins or ends that was or will be there, or an end of the memory.
    std::int64_t target(std::int64_t b) {
        const std::int64_t size = blocks_[b].size, other = any();
        std::int64_t to = 0;
        switch (below(5)) {
            case 0: to = found_.offset[other]; break;
            case 1: to = found_.offset[other] + blocks_[other].size; break;
            case 2: to = found_.offset[other] - size; break;
            case 3: to = found_.offset[other] + blocks_[other].size - size; break;
            default: to = below(2) ? 0 : capacity_ - size;
        }
        if (to < 0) return -1;
        to -= to % alignment_;
        return to + size <= capacity_ ? to : -1;
    }

    // Puts a block into one of the gaps that take it, at random, at its lower or upper end.
    bool settle(std::int64_t b) {
        budget_.add(static_cast<std::int64_t>(blocks_.size()));
        away_.erase(std::find(away_.begin(), away_.end(), b));
        taken_.clear();
        for (std::int64_t other : movable_)
            if (other != b && meet(b, other) && std::find(away_.begin(), away_.end(), other) == away_.end())
                taken_.emplace_back(found_.offset[other], found_.offset[other] + blocks_[other].size);
        std::sort(taken_.begin(), taken_.end());
        taken_.emplace_back(capacity_, capacity_);
        gaps_.clear();
        std::int64_t low = 0;
        for (const auto &[begin, end] : taken_) {
            if (begin - low >= blocks_[b].size) {
                gaps_.push_back(low);
                const std::int64_t high = begin - blocks_[b].size;
                gaps_.push_back(high - high % alignment_);
            }
            low = std::max(low, (end + alignment_ - 1) / alignment_ * alignment_);
        }
        if (gaps_.empty()) return false;
        move(b, gaps_[below(gaps_.size())]);
        return true;
    }

    static constexpr std::size_t kMost = 6;  // blocks that may be in the way

    Schedule &schedule_;
    const std::vector<Block> &blocks_;
    const std::int64_t capacity_, alignment_;
    std::mt19937_64 random_;
    allocation::Budget &budget_;
    FoundOffsets found_;
    std::vector<double> weight_;
    double now_ = 0, slack_ = 1;
    std::vector<std::int64_t> best_;
  public: std::int64_t nodes_ = 1, evaluated_ = 0; private:
    std::vector<std::int64_t> movable_, evicted_, away_, gaps_;
    std::vector<std::pair<std::int64_t, std::int64_t>> moved_, taken_;
};

}  // namespace

FoundOffsets search_addresses(Schedule &schedule, std::span<const std::int64_t> offset, std::int64_t capacity, std::int64_t alignment, double goal,
                              std::uint64_t seed, allocation::Budget &budget) {
    AddressSearch search(schedule, offset, capacity, alignment, seed, budget);
    search.nodes_ = getenv("NODES") ? atol(getenv("NODES")) : 100000000;
    return search.run(goal);
}

}  // namespace loadmaster::placement
