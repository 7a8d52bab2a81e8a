#include "allocation/sharing.hpp"

#include "common/limits.hpp"

#include "allocation/neighbours.hpp"

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <utility>

namespace loadmaster::allocation {

namespace {

using Int = std::int64_t;

// Groups of buffers, without those that move alone.
struct Groups {
    std::set<Group> sets;
    std::map<Int, Int> first; // of each member: the first of its group

    bool operator<(const Groups &other) const { return sets < other.sets; }

    Group of(Int buffer) const {
        const auto found = first.find(buffer);
        if (found == first.end()) return {{buffer, 0}};
        return *sets.lower_bound({{found->second, std::numeric_limits<Int>::min()}});
    }
    void insert(Group group) {
        for (const Member &member : group) first[member.buffer] = group.front().buffer;
        sets.insert(std::move(group));
    }
};

// Buffers of a component up to which the fewest bytes are found; beyond, those of a set of which
// no two may share are a bound.
constexpr std::size_t kExact = 10;

// Buffers that are looked at, together over all instants, for the bytes that are alive at least.
constexpr Int kLooks = 5'000'000;

// Pairs of members that are compared while groups are joined, about a tenth of a second: chains of
// thousands of pairs would take their square. Further pairs stay apart, which is allowed.
constexpr Int kMeetings = 50'000'000;

class Partitions {
  public:
    Partitions(const Reduced &reduced, std::size_t most) : reduced_(reduced) {
        const Buffers &buffers = reduced.buffers();
        pairs_ = reduced.in_place;
        const auto smaller = [&](const InPlace &row) {
            return std::min(buffers.size[row.one], buffers.size[row.other]);
        };
        std::ranges::stable_sort(pairs_, std::greater{}, smaller);
        std::erase_if(pairs_, [&](const InPlace &row) {
            Groups alone;
            return !join(alone, row);
        });
        Groups start;
        for (const InPlace &row : pairs_)
            if (buffers.pin[row.one] >= 0 && buffers.pin[row.other] >= 0 &&
                buffers.pin[row.one] + row.shift == buffers.pin[row.other])
                join(start, row);
        found = {start};
        std::set<Groups> seen{start};
        for (std::size_t at = 0; at < found.size() && few(most); ++at)
            for (const InPlace &row : pairs_) {
                if (!few(most)) break;
                Groups larger = found[at];
                if (join(larger, row) && seen.insert(larger).second) found.push_back(larger);
            }
        complete = few(most);
        if (complete) return;
        Groups joint = start;
        left_ = kMeetings;
        for (auto row = pairs_.begin(); row != pairs_.end() && left_ > 0; ++row) join(joint, *row);
        found = {joint, start};
    }
    std::vector<Groups> found;
    bool complete;

  private:
    bool few(std::size_t most) const { return std::max(pairs_.size(), found.size()) <= most; }
    static Int shift_of(const Group &group, Int buffer) {
        return std::ranges::find(group, buffer, &Member::buffer)->shift;
    }
    // Joins the groups of a pair; not if they are one, or pins, alignments or two that must be
    // apart forbid it.
    bool join(Groups &groups, const InPlace &row) {
        const Group mine = groups.of(row.one), theirs = groups.of(row.other);
        left_ -= static_cast<Int>(mine.size() * theirs.size());
        if (mine == theirs) return false;
        const Int up = row.shift + shift_of(mine, row.one) - shift_of(theirs, row.other);
        Group whole = mine;
        for (const auto &[b, shift] : theirs) {
            for (const auto &[a, below] : mine) {
                const InPlace together{a, b, shift + up - below};
                if (meet(reduced_.buffers(), reduced_.conflicts, a, b, together.shift) &&
                    !std::ranges::binary_search(reduced_.in_place, in_order(together)))
                    return false;
            }
            whole.push_back({b, shift + up});
        }
        std::inplace_merge(whole.begin(), whole.begin() + mine.size(), whole.end());
        Int lowest = 0;
        for (const Member &member : whole) lowest = std::min(lowest, member.shift);
        for (Member &member : whole) member.shift -= lowest;
        if (fault_of(reduced_.buffers(), whole)) return false;
        groups.sets.erase(mine), groups.sets.erase(theirs);
        groups.insert(std::move(whole));
        return true;
    }

    const Reduced &reduced_;
    std::vector<InPlace> pairs_;
    Int left_ = 0;
};

// Buffers that hang together by pairs, the largest first, and for each those it may share with.
struct Component {
    std::vector<Int> bytes;
    std::vector<std::vector<std::size_t>> linked;
};

// The cheapest partition into sets whose members are all linked; a set costs what its largest
// member does, which comes first.
Int fewest(const Component &component) {
    const std::size_t count = component.bytes.size(), sets = std::size_t{1} << count;
    std::vector<std::size_t> links(count, 0);
    for (std::size_t a : indices(count))
        for (std::size_t b : component.linked[a]) links[a] |= std::size_t{1} << b;
    std::vector<char> whole(sets, 1);
    std::vector<Int> cost(sets, 0);
    for (std::size_t left = 1; left < sets; ++left) {
        const auto first = static_cast<std::size_t>(std::countr_zero(left));
        const std::size_t rest = left & (left - 1), near = rest & links[first];
        whole[left] = near == rest && whole[rest];
        Int least = kUnlimited;
        for (std::size_t some = near;; some = (some - 1) & near) {
            if (whole[some]) least = std::min(least, cost[rest & ~some]);
            if (some == 0) break;
        }
        cost[left] = component.bytes[first] + least;
    }
    return cost[sets - 1];
}

// Bytes of a set of which no two are linked: greedily, the largest first, or those that bar the
// least.
Int apart(const Component &component) {
    const std::size_t count = component.bytes.size();
    Int best = 0;
    for (const bool by_links : {false, true}) {
        const auto order = sorted_by<std::size_t>(
            count, [&](std::size_t a) { return by_links ? component.linked[a].size() : 0; });
        std::vector<char> barred(count, 0);
        Int total = 0;
        for (std::size_t a : order) {
            if (barred[a]) continue;
            total += component.bytes[a];
            for (std::size_t b : component.linked[a]) barred[b] = 1;
        }
        best = std::max(best, total);
    }
    return best;
}

// A lower bound on the bytes of buffers that are alive together. `nested`: all that share an
// address have its lowest byte in common. Then they are all linked, and take what the largest of
// them takes; else two may lie apart in a third, and only those that are not linked count.
Int least_bytes(
    const std::map<Int, Int> &bytes, const std::map<Int, std::set<Int>> &near, bool nested) {
    Int total = 0;
    std::map<Int, Int> open = bytes;
    while (!open.empty()) {
        std::vector<std::pair<Int, Int>> members; // bytes, negative, and buffer
        std::vector<Int> front{open.begin()->first};
        open.erase(open.begin());
        while (!front.empty()) {
            const Int b = front.back();
            front.pop_back();
            members.emplace_back(-bytes.at(b), b);
            if (const auto found = near.find(b); found != near.end())
                for (Int other : found->second)
                    if (open.erase(other)) front.push_back(other);
        }
        std::ranges::sort(members);
        Component component;
        std::map<Int, std::size_t> number;
        for (const auto &[negative, b] : members) number.emplace(b, number.size());
        for (const auto &[negative, b] : members) {
            component.bytes.push_back(-negative);
            auto &row = component.linked.emplace_back();
            if (const auto found = near.find(b); found != near.end())
                for (Int other : found->second)
                    if (const auto at = number.find(other); at != number.end())
                        row.push_back(at->second);
        }
        total += nested && members.size() <= kExact ? fewest(component) : apart(component);
    }
    return total;
}

// A buffer's bytes begin to be alive, or end (negative); `slack` of them may be shared.
struct Change {
    Int instant, buffer, bytes, slack;
};

} // namespace

Cases cases_of(const Reduced &reduced, std::size_t most) {
    const Partitions partitions(reduced, most);
    Cases found{{}, partitions.complete};
    const Groups &apart = partitions.complete ? partitions.found.front() : partitions.found.back();
    for (const Groups &groups : partitions.found) {
        Demands demands{reduced.buffers(), reduced.rewritten.hint()};
        demands.aliases.assign(groups.sets.begin(), groups.sets.end());
        demands.conflicts = reduced.conflicts;
        Merged merged = merge(demands);
        if (pins_clash(merged.buffers())) continue;
        Reduced made = without_empty(merged, {}, kUnlimited);
        Bound bound = lower_bound(made.buffers(), {}, kUnlimited);
        found.cases.push_back(
            {std::move(merged), std::move(made), std::move(bound), &groups == &apart});
    }
    std::ranges::stable_sort(found.cases, {}, [](const Case &one) { return one.bound.bytes; });
    return found;
}

Bound shared_load(
    const Buffers &buffers, std::span<const Int> high, std::span<const InPlace> in_place) {
    std::vector<Change> changes;
    bool nested = true;
    for (Int b : indices(buffers.count()))
        for (Int s : buffers.occupied(b)) {
            const Int bytes = high[s] - buffers.low[s], slack = high[s] - buffers.high[s];
            changes.push_back({buffers.begin[s], b, bytes, slack});
            changes.push_back({buffers.end[s], b, -bytes, slack});
            nested &= buffers.low[s] == 0;
        }
    std::ranges::sort(changes, {}, &Change::instant);
    std::map<Int, std::set<Int>> near;
    for (const auto &[one, other, shift] : in_place) {
        near[one].insert(other), near[other].insert(one);
        nested &= shift == 0;
    }
    Bound best;
    Int highest = 0, left = kLooks;
    const auto sweep = [&](const auto &wanted) {
        std::map<Int, Int> bytes; // of each buffer that is alive
        std::multiset<Int> slacks;
        Int level = 0;
        for (std::size_t i : indices(changes.size())) {
            const auto &[instant, b, change, slack] = changes[i];
            level += change;
            if ((bytes[b] += change) == 0) bytes.erase(b);
            if (change > 0)
                slacks.insert(slack);
            else
                slacks.erase(slacks.find(slack));
            const bool settled = i + 1 == changes.size() || changes[i + 1].instant != instant;
            if (!settled || !wanted(level) || left <= 0) continue;
            left -= std::ssize(bytes);
            const Int total = least_bytes(bytes, near, nested) - *slacks.rbegin();
            if (total > best.bytes) best = {total, instant, -1, {}};
        }
    };
    // Where most is alive first: what is alive at other instants is below that nearly everywhere.
    sweep([&](Int level) {
        highest = std::max(highest, level);
        return false;
    });
    sweep([&](Int level) { return level == highest; });
    sweep([&](Int level) { return level > best.bytes; });
    return best;
}

} // namespace loadmaster::allocation
