#include "allocation/verify.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

namespace loadmaster::allocation {

namespace {

using Int = std::int64_t;

std::string number(const char *before, Int value, const char *after) {
    return before + std::to_string(value) + after;
}

std::optional<std::string> each_buffer(
    const Buffers &b, std::span<const Int> offset, Int capacity) {
    for (Int i = 0; i < b.count(); ++i) {
        if (offset[i] < 0) return number("buffer ", i, " has no offset");
        if (offset[i] >= Int{1} << 62) return number("buffer ", i, " lies beyond 2^62");
        if (offset[i] % b.alignment[i] != 0) return number("buffer ", i, " is not aligned");
        if (b.pin[i] >= 0 && b.pin[i] != offset[i])
            return number("buffer ", i, " is not where it is pinned");
        for (Int s = b.first[i]; s < b.first[i + 1]; ++s)
            if (b.begin[s] < b.end[s] && b.low[s] < b.high[s] && capacity >= 0 &&
                offset[i] + b.size[i] > capacity)
                return number("buffer ", i, " ends past the capacity");
    }
    return std::nullopt;
}

std::optional<std::string> together(const Demands &demands, std::span<const Int> offset) {
    for (const auto &group : demands.aliases)
        for (const Member &member : group)
            if (offset[member.buffer] - member.shift != offset[group[0].buffer] - group[0].shift)
                return number("buffer ", member.buffer, " is not where its group is");
    return std::nullopt;
}

// Who may share bytes: buffers of one group, and in-place pairs that lie as they say.
class Sharing {
  public:
    Sharing(const Demands &demands, std::span<const Int> offset)
        : offset_(offset), owner_(offset.size(), -1), paired_(offset.size(), 0) {
        for (const auto &group : demands.aliases)
            for (const Member &member : group) owner_[member.buffer] = group[0].buffer;
        for (const auto &[one, other, shift] : demands.in_place) {
            rows_.insert({one, other, shift}), rows_.insert({other, one, -shift});
            paired_[one] = paired_[other] = 1;
        }
    }
    bool ever(Int b) const { return owner_[b] >= 0 || paired_[b]; }
    bool may(Int one, Int other) const {
        return one == other || (owner_[one] >= 0 && owner_[one] == owner_[other]) ||
            rows_.contains({one, other, offset_[other] - offset_[one]});
    }

  private:
    std::span<const Int> offset_;
    std::vector<Int> owner_;
    std::vector<char> paired_;
    std::set<InPlace> rows_;
};

std::optional<std::string> conflicts_hold(
    const Demands &demands, std::span<const Int> offset, const Sharing &sharing) {
    const Buffers &b = demands.buffers;
    for (const auto &[one, other] : *demands.conflicts)
        if (b.matters(one) && b.matters(other) && offset[one] < offset[other] + b.size[other] &&
            offset[other] < offset[one] + b.size[one] && !sharing.may(one, other))
            return number("buffer ", one, " shares bytes with one that it conflicts with");
    return std::nullopt;
}

struct Piece {
    Int begin, end, low, high, buffer;
    bool shares;
};

// Ranges alive at one time. Those of buffers that share with no other do not overlap one another,
// so that neighbours are enough.
class Live {
  public:
    explicit Live(const Sharing &sharing) : sharing_(sharing) {}
    // Whether a range overlaps one that it may not share with.
    bool clashes(const Piece &piece) const {
        const auto above = alone_.upper_bound(piece.low);
        if (above != alone_.end() && above->first < piece.high) return true;
        if (above != alone_.begin() && std::prev(above)->second > piece.low) return true;
        auto at = grouped_.lower_bound(piece.low - longest_);
        for (; at != grouped_.end() && at->first < piece.high; ++at)
            if (at->second.high > piece.low && !sharing_.may(at->second.buffer, piece.buffer))
                return true;
        return false;
    }
    void add(const Piece &piece) {
        if (!piece.shares) alone_.emplace(piece.low, piece.high);
        if (!piece.shares) return;
        longest_ = std::max(longest_, piece.high - piece.low);
        grouped_.emplace(piece.low, piece);
    }
    void remove(const Piece &piece) {
        if (!piece.shares) alone_.erase(piece.low);
        if (!piece.shares) return;
        auto [from, to] = grouped_.equal_range(piece.low);
        while (from->second.buffer != piece.buffer || from->second.end != piece.end ||
            from->second.high != piece.high)
            ++from;
        grouped_.erase(from);
    }

  private:
    const Sharing &sharing_;
    std::map<Int, Int> alone_;
    std::multimap<Int, Piece> grouped_;
    Int longest_ = 0;
};

std::optional<std::string> apart(const std::vector<Piece> &pieces, const Sharing &sharing) {
    std::vector<const Piece *> births, deaths;
    for (const Piece &piece : pieces) births.push_back(&piece), deaths.push_back(&piece);
    std::sort(births.begin(), births.end(),
        [](const Piece *a, const Piece *b) { return a->begin < b->begin; });
    std::sort(deaths.begin(), deaths.end(),
        [](const Piece *a, const Piece *b) { return a->end < b->end; });
    Live live(sharing);
    std::size_t dead = 0;
    for (const Piece *piece : births) {
        for (; deaths[dead]->end <= piece->begin; ++dead) live.remove(*deaths[dead]);
        if (live.clashes(*piece))
            return number("two buffers share bytes at instant ", piece->begin, "");
        live.add(*piece);
    }
    return std::nullopt;
}

} // namespace

std::optional<std::string> broken_rule(
    const Demands &demands, std::span<const Int> offset, Int capacity) {
    const Buffers &b = demands.buffers;
    if (std::ssize(offset) != b.count()) return "not as many offsets as buffers";
    if (auto broken = each_buffer(b, offset, capacity)) return broken;
    if (auto broken = together(demands, offset)) return broken;
    const Sharing sharing(demands, offset);
    std::vector<Piece> pieces;
    for (Int i = 0; i < b.count(); ++i)
        for (Int s = b.first[i]; s < b.first[i + 1]; ++s) {
            if (b.begin[s] >= b.end[s] || b.low[s] >= b.high[s]) continue;
            pieces.push_back({b.begin[s], b.end[s], offset[i] + b.low[s], offset[i] + b.high[s], i,
                sharing.ever(i)});
            for (const auto &[low, high] : demands.reserved)
                if (low < high && pieces.back().low < high && low < pieces.back().high)
                    return number("buffer ", i, " touches a reserved range");
        }
    return demands.conflicts ? conflicts_hold(demands, offset, sharing) : apart(pieces, sharing);
}

} // namespace loadmaster::allocation
