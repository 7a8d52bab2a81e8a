// The cheapest path of one tensor: a shortest path in AutoTM's flow network (ASPLOS 2020,
// section 4.2).
//
// After a use the tensor is in one of three states: dirty (in the fast memory, no valid slow copy:
// DRAM_PRE), clean (in the fast memory and in the slow one: DRAM) or slow (PMEM). Where copies
// block computation it suffices to leave right after a use and to return right before one: what is
// not there in between saves the most memory, and a copy costs the same at any time.
#pragma once

#include "placement/tensors.hpp"

#include <array>
#include <vector>

namespace loadmaster::placement {

// Costs of one tensor's choices. `Number` is double for searching, a wide integer for proving. What
// is impossible costs `never`.
template <class Number> struct Choices {
    Number never;
    LiveRange live_range = LiveRange::inner;
    std::vector<Number> fast, slow,
        stay; // each use, in either memory; staying in the gap before it
    std::vector<Number> in,
        out; // copying to the fast memory, to the slow one, in the gap before each use
    std::vector<std::uint8_t> reads,
        writes; // whether each use needs the old bytes, and whether it changes them
    Number tail{},
        last{}; // staying in the gap after the last use; copying to the slow memory in it
    std::size_t uses() const { return fast.size(); }
    // Whether the tensor is there before its first use, and after its last one.
    bool begins() const {
        return live_range == LiveRange::cyclic || live_range == LiveRange::input;
    }
    bool lasts() const {
        return live_range == LiveRange::cyclic || live_range == LiveRange::output;
    }
    void resize(std::size_t uses) {
        for (auto *costs : {&fast, &slow, &stay, &in, &out}) costs->resize(uses);
        reads.resize(uses);
        writes.resize(uses);
    }
};

// What a tensor costs that never moves: in the fast memory, and in the slow one.
template <class Number> std::array<Number, 2> placed_once(const Choices<Number> &choices) {
    Number fast = choices.live_range == LiveRange::output ? choices.tail : Number{}, slow{};
    for (std::size_t i : indices(choices.uses())) {
        fast += choices.fast[i] + (i > 0 || choices.begins() ? choices.stay[i] : Number{});
        slow = std::min(choices.never, slow + choices.slow[i]);
    }
    return {fast, slow};
}

template <class Number> class ShortestPath {
  public:
    // The cost of the cheapest path, `never` if there is none; `path`, if given, receives it.
    Number solve(const Choices<Number> &choices, Path *path) {
        if (choices.live_range != LiveRange::cyclic) return once(choices, path);
        Number best = choices.never;
        State chosen = slow;
        // It starts as it ends: try every state.
        for (State state : {slow, clean, dirty}) {
            const Number cost = walk(choices, [&] {
                Costs start = none(choices);
                start[state] = Number{};
                return start;
            }())[state];
            if (cost < best) best = cost, chosen = state;
        }
        if (path && best < choices.never) {
            Costs start = none(choices);
            start[chosen] = Number{};
            walk(choices, start);
            path->tail = trace(choices, chosen, *path);
        }
        return best;
    }

  private:
    enum State : std::uint8_t { dirty, clean, slow };
    using Costs = std::array<Number, 3>;
    struct Step {
        std::array<State, 3> before; // state after the use before, for each state after this one
        std::array<std::uint8_t, 3> stays; // whether it stayed in between
    };

    static Costs none(const Choices<Number> &choices) {
        return {choices.never, choices.never, choices.never};
    }

    Number once(const Choices<Number> &choices, Path *path) {
        Costs start = none(choices);
        start[slow] = Number{};
        if (choices.live_range == LiveRange::input)
            start[dirty] = Number{}; // the caller supplies it in either memory
        Costs end = walk(choices, start);
        bool kept = false;
        if (choices.live_range == LiveRange::output && end[dirty] < choices.never) {
            kept = choices.tail < choices.never && choices.tail <= choices.last;
            end[dirty] += kept ? choices.tail : choices.last;
        }
        State last = dirty;
        for (State state : {clean, slow})
            if (end[state] < end[last]) last = state;
        if (path && end[last] < choices.never) {
            trace(choices, last, *path);
            path->tail = kept && last == dirty;
        }
        return end[last];
    }

    Costs walk(const Choices<Number> &c, Costs after) {
        steps_.resize(c.uses());
        for (std::size_t i : indices(c.uses())) {
            Costs before = none(c);
            Step gap{};
            const auto reach = [&](State to, State from, Number cost, bool stays) {
                if (after[from] >= c.never || cost >= c.never) return;
                const Number total = after[from] + cost;
                if (total < before[to])
                    before[to] = total, gap.before[to] = from, gap.stays[to] = stays;
            };
            // A use that does not read needs no copy of the bytes before it; but round the end of
            // time they must be somewhere.
            const Number in = c.reads[i] ? c.in[i] : Number{},
                         out = c.reads[i] || (i == 0 && c.live_range == LiveRange::cyclic)
                ? c.out[i]
                : Number{};
            reach(dirty, dirty, c.stay[i], true);
            reach(clean, clean, c.stay[i], true);
            reach(clean, clean, in, false);
            reach(clean, slow, in, false);
            reach(clean, dirty, out + in, false);
            reach(slow, slow, Number{}, false);
            reach(slow, clean, Number{}, false);
            reach(slow, dirty, out, false);
            after = none(c);
            steps_[i] = gap;
            const auto use = [&](State to, State from, Number cost) {
                if (before[from] >= c.never || cost >= c.never) return;
                const Number total = before[from] + cost;
                if (total < after[to])
                    after[to] = total, steps_[i].before[to] = gap.before[from],
                    steps_[i].stays[to] = gap.stays[from];
            };
            use(dirty, dirty, c.fast[i]);
            use(c.writes[i] ? dirty : clean, clean, c.fast[i]);
            use(slow, slow, c.slow[i]);
        }
        return after;
    }

    // Writes the path that ends in `state`; says whether it stays in the gap before the first use.
    std::uint8_t trace(const Choices<Number> &c, State state, Path &path) {
        for (std::size_t i = c.uses(); i-- > 0;) {
            path.fast[i] = state != slow;
            path.stays[i] = steps_[i].stays[state];
            state = steps_[i].before[state];
        }
        return c.uses() ? path.stays[0] : 0;
    }

    std::vector<Step> steps_;
};

} // namespace loadmaster::placement
