// The allocation library from C++: packings hold, optima that are known by construction are found,
// and proofs are right.
#include "allocation/blocks.hpp"
#include "allocation/first_fit.hpp"
#include "allocation/lower_ceilings.hpp"
#include "allocation/plain.hpp"
#include "allocation/portfolio.hpp"
#include "allocation/small.hpp"
#include "allocation/solver.hpp"
#include "allocation/telamalloc.hpp"
#include "checks.hpp"
#include "common/limits.hpp"

#include <algorithm>
#include <numeric>
#include <random>
#include <tuple>

using namespace loadmaster;
using namespace loadmaster::allocation;

namespace {

using Int = std::int64_t;

// Buffers that own their arrays.
struct Set {
    std::vector<Int> size, alignment, pin, first{0}, begin, end, low, high;

    void add_section(Int from, Int to, Int lowest, Int highest) {
        begin.push_back(from), end.push_back(to), low.push_back(lowest), high.push_back(highest);
        first.back() = static_cast<Int>(begin.size());
    }
    // The first section of a new buffer, which uses all its bytes; `add_section` adds more.
    void add(Int from, Int to, Int bytes, Int aligned = 1, Int pinned = -1) {
        size.push_back(bytes), alignment.push_back(aligned), pin.push_back(pinned);
        first.push_back(0);
        add_section(from, to, 0, bytes);
    }
    Buffers buffers() const { return {size, alignment, pin, first, begin, end, low, high}; }

    // Every pair of sections compared; shares nothing with the library.
    bool valid(const std::vector<Int> &offset, Int capacity) const {
        const std::size_t count = size.size();
        if (offset.size() != count) return false;
        for (std::size_t i = 0; i < count; ++i) {
            if (offset[i] < 0 || offset[i] + size[i] > capacity) return false;
            if (pin[i] >= 0 ? offset[i] != pin[i] : offset[i] % alignment[i] != 0) return false;
            for (std::size_t j = 0; j < i; ++j)
                for (Int a = first[i]; a < first[i + 1]; ++a)
                    for (Int b = first[j]; b < first[j + 1]; ++b)
                        if (begin[a] < end[b] && begin[b] < end[a] &&
                            offset[i] + low[a] < offset[j] + high[b] &&
                            offset[j] + low[b] < offset[i] + high[a])
                            return false;
        }
        return true;
    }
};

// A rectangle of 256 instants by `height` bytes cut into `count` pieces in random order: the load
// bound, `height`, can be reached.
Set tiling(std::size_t count, Int height, std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto below = [&](Int limit) {
        return static_cast<Int>(random() % static_cast<std::uint64_t>(limit));
    };
    std::vector<std::tuple<Int, Int, Int, Int>> pieces{{0, 256, 0, height}};
    while (pieces.size() < count) {
        const auto area = [](const auto &p) {
            return (std::get<1>(p) - std::get<0>(p)) * (std::get<3>(p) - std::get<2>(p));
        };
        const auto largest = std::max_element(pieces.begin(), pieces.end(),
            [&](const auto &a, const auto &b) { return area(a) < area(b); });
        const auto [left, right, bottom, top] = *largest;
        pieces.erase(largest);
        const bool wide = right - left > 1 && (top - bottom < 2 || below(2) == 0);
        const Int cut =
            wide ? left + 1 + below(right - left - 1) : bottom + 1 + below(top - bottom - 1);
        if (wide)
            pieces.insert(pieces.end(), {{left, cut, bottom, top}, {cut, right, bottom, top}});
        else
            pieces.insert(pieces.end(), {{left, right, bottom, cut}, {left, right, cut, top}});
    }
    for (std::size_t i = pieces.size() - 1; i > 0; --i)
        std::swap(pieces[i], pieces[static_cast<std::size_t>(below(static_cast<Int>(i) + 1))]);
    Set set;
    for (const auto &[left, right, bottom, top] : pieces) set.add(left, right, top - bottom);
    return set;
}

Answer fit_within(const Set &set, Int capacity, const Settings &settings = {}) {
    Budget budget(200'000, kInfinite, nullptr);
    return fit(set.buffers(), {}, capacity, settings, budget);
}

Answer smallest(const Set &set, const Settings &settings = {}) {
    Budget budget(200'000, kInfinite, nullptr);
    return minimise(set.buffers(), {}, settings, budget);
}

} // namespace

TEST("minimise reaches the optimum of tilings") {
    for (std::uint64_t seed = 0; seed < 12; ++seed) {
        const Set set = tiling(20 + 3 * seed, 1000, seed);
        const Answer answer = smallest(set);
        CHECK(answer.status == Status::optimal);
        CHECK(answer.peak == 1000 && answer.bound == 1000);
        CHECK(set.valid(answer.offset, 1000));
        CHECK(peak_of(set.buffers(), answer.offset) == 1000);
    }
}

TEST("a tiling does not fit into one byte less") {
    const Set set = tiling(30, 1000, 3);
    CHECK(load_bound(set.buffers()).bytes == 1000);
    CHECK(fit_within(set, 1000).status == Status::feasible);
    CHECK(fit_within(set, 999).status == Status::infeasible);
}

TEST("an exhausted search proves what the load bound does not show") {
    Set set;
    for (const auto &[from, to, bytes] : std::vector<std::tuple<Int, Int, Int>>{
             {3, 6, 2}, {2, 4, 3}, {0, 3, 3}, {7, 11, 3}, {5, 7, 1}, {3, 7, 1}, {6, 10, 3}})
        set.add(from, to, bytes);
    CHECK(load_bound(set.buffers()).bytes == 6);
    const Answer answer = smallest(set);
    CHECK(answer.status == Status::optimal && answer.peak == 7 && answer.bound == 7);
    CHECK(set.valid(answer.offset, 7));
    CHECK(fit_within(set, 7).status == Status::feasible);
    CHECK(fit_within(set, 6).status == Status::infeasible);
}

TEST("the number of threads changes nothing") {
    const Set set = tiling(60, 5000, 11);
    Settings four;
    four.threads = 4;
    const Answer one = smallest(set), other = smallest(set, four);
    CHECK(one.offset == other.offset && one.peak == other.peak && one.bound == other.bound);
}

TEST("pinned buffers stay where they are, and the others keep out of their way") {
    Set set;
    set.add(0, 10, 8, 1, 4);
    set.add(0, 5, 4);
    set.add(5, 10, 4);
    set.add(0, 10, 3, 8);
    // The load is 15; the only free multiple of 8 below 16 is 0, and the buffers of 4 bytes then go
    // on top of the pinned one.
    const Answer answer = smallest(set);
    CHECK(answer.status == Status::optimal && answer.peak == 16);
    CHECK(set.valid(answer.offset, 16));
    CHECK(fit_within(set, 15).status == Status::infeasible);
}

TEST("pinned buffers that overlap have no packing") {
    Set set;
    set.add(0, 4, 8, 1, 0);
    set.add(2, 6, 8, 1, 7);
    CHECK(smallest(set).status == Status::infeasible);
    const std::vector<Int> order{0, 1};
    CHECK(!place_in_order(set.buffers(), order, false, kUnlimited).packed);
}

TEST("a buffer leaves room during its gap") {
    Set set;
    set.add(0, 2, 10);
    set.add_section(4, 6, 0, 10);
    set.add(2, 4, 10);
    CHECK(load_bound(set.buffers()).bytes == 10);
    const Answer answer = smallest(set);
    CHECK(answer.status == Status::optimal && answer.peak == 10);
    CHECK(set.valid(answer.offset, 10));
    CHECK(fit_within(set, 9).status == Status::infeasible);
}

TEST("aligned buffers start at multiples") {
    Set set;
    set.add(0, 4, 5, 8);
    set.add(0, 4, 5, 8);
    set.add(0, 4, 4);
    // The load is 14, but the four bytes do not fit between the two.
    const Answer answer = smallest(set);
    CHECK(answer.status == Status::optimal && answer.peak == 17);
    CHECK(set.valid(answer.offset, 17));
}

TEST("TelaMalloc packs tilings, and no set beyond its capacity") {
    for (std::uint64_t seed = 0; seed < 6; ++seed) {
        const Set set = tiling(40, 1000, seed);
        for (Int capacity : {Int{1000}, Int{999}}) {
            Budget budget(-1, kInfinite, nullptr);
            TelamallocOptions options;
            options.steps = 20'000;
            Telamalloc search(set.buffers(), capacity, options, budget);
            const bool found = search.run();
            CHECK(found == (capacity == 1000));
            if (found) CHECK(set.valid(search.offsets(), capacity));
            if (found) CHECK(search.counts().steps >= 40);
        }
    }
}

TEST("TelaMalloc packs with every feature switched off") {
    const Set set = tiling(24, 1000, 2);
    for (bool TelamallocFeatures::*feature :
        {&TelamallocFeatures::contention, &TelamallocFeatures::rules, &TelamallocFeatures::phases,
            &TelamallocFeatures::propagate, &TelamallocFeatures::jump,
            &TelamallocFeatures::prioritise, &TelamallocFeatures::unstick,
            &TelamallocFeatures::lowest}) {
        Budget budget(-1, kInfinite, nullptr);
        TelamallocOptions options;
        options.features.*feature = false;
        options.steps = 20'000;
        Telamalloc search(set.buffers(), 1200, options, budget);
        CHECK(search.run());
        CHECK(set.valid(search.offsets(), 1200));
    }
}

TEST("the propagator blames placements that conflict without the others") {
    Set set;
    set.add(0, 1, 4); // not to blame
    set.add(2, 4, 4);
    set.add(2, 4, 4);
    set.add(2, 4, 4);
    const Timeline timeline(set.buffers());
    Skyline sky(set.buffers(), timeline, 12);
    CHECK(sky.root_feasible(true));
    CHECK(sky.place(0, true));
    CHECK(!sky.place(1, 1, true));
    CHECK((sky.conflict().levels == std::vector<std::int32_t>{1}));
    CHECK(sky.depth() == 1 && sky.lowest(2) == 0);
    CHECK(sky.place(1, true) && sky.lowest(2) == 4 && sky.lowest(3) == 4);
}

TEST("a few plain buffers are packed at once") {
    for (std::uint64_t seed = 0; seed < 10; ++seed) {
        const Set set = tiling(16, 100, seed);
        const Answer small = allocate_small(set.buffers());
        CHECK(small.bound == 100 && small.peak >= small.bound);
        CHECK(set.valid(small.offset, small.peak));
    }
}

TEST("thousands of buffers come within 4 % of the load") {
    std::mt19937_64 random(5);
    Set set;
    for (Int i = 0; i < 3000; ++i) {
        const Int from = static_cast<Int>(random() % 3000);
        set.add(from, from + 1 + static_cast<Int>(random() % 300),
            1 + static_cast<Int>(random() % 65536));
    }
    Budget budget(-1, kInfinite, nullptr);
    const Int bound = simple_bound(set.buffers());
    const Greedy greedy = best_first_fit(set.buffers(), {}, bound, budget);
    CHECK(greedy.packed && set.valid(greedy.offset, greedy.peak));
    CHECK(bound <= greedy.peak && greedy.peak <= bound + bound / 25);
}

TEST("first fit takes the lowest gap and best fit the tightest") {
    Set set;
    set.add(0, 4, 2, 1, 3); // leaves 0 .. 3
    set.add(0, 4, 2, 1, 7); // leaves 5 .. 7
    set.add(0, 4, 2);
    const std::vector<Int> order{0, 1, 2};
    CHECK(place_in_order(set.buffers(), order, false, 100).offset[2] == 0);
    CHECK(place_in_order(set.buffers(), order, true, 100).offset[2] == 5);
}

TEST("the live index names every buffer alive together with another") {
    const Set set = tiling(200, 100'000, 1);
    const Plain plain(set.buffers(), false);
    const LiveIndex live(plain);
    for (std::int32_t b = 0; b < plain.count(); ++b) {
        std::vector<std::int32_t> found, expected;
        live.overlapping(b, [&](std::int32_t other) { found.push_back(other); });
        for (std::int32_t other = 0; other < plain.count(); ++other)
            if (other != b && plain.begin[other] < plain.end[b] &&
                plain.begin[b] < plain.end[other])
                expected.push_back(other);
        std::sort(found.begin(), found.end());
        CHECK(found == expected);
    }
}

TEST("ever lower ceilings move what lies above them, whatever it demands, but no pinned buffer") {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
        std::mt19937_64 random(seed);
        const auto below = [&](Int limit) {
            return static_cast<Int>(random() % static_cast<std::uint64_t>(limit));
        };
        Set set;
        for (Int b = 0; b < 120; ++b) {
            const Int from = below(60), bytes = 1 + below(40), gap = from + 1 + below(6),
                      again = gap + below(8);
            const Int aligned = below(4) ? 1 : 8, pinned = b % 40 == 0 ? b * 10 : -1;
            set.add(from, gap, bytes, aligned, pinned);
            if (below(2))
                set.add_section(gap, again, below(bytes), bytes); // windows: low bytes are free
            if (below(3)) set.add_section(again, again + 1 + below(20), 0, bytes);
        }
        const std::vector<Int> order = [] {
            std::vector<Int> all(120);
            std::iota(all.begin(), all.end(), 0);
            return all;
        }();
        const Greedy start = place_in_order(set.buffers(), order, false, kUnlimited);
        CHECK(start.packed && set.valid(start.offset, start.peak));
        for (const Ejections ejections : {Ejections::largest_first, Ejections::at_random}) {
            Budget budget(-1, kInfinite, nullptr);
            const std::vector<Int> lower = lower_ceilings(set.buffers(), start.offset,
                load_bound(set.buffers()).bytes, ejections, seed, 1'000'000, budget);
            const Int peak = peak_of(set.buffers(), lower);
            CHECK(set.valid(lower, peak) && peak <= start.peak);
            Budget none(-1, 0, nullptr);
            CHECK(lower_ceilings(set.buffers(), start.offset, 0, ejections, seed, 1'000'000,
                      none) == start.offset);
        }
    }
}

TEST("in dense sets ejections at random end lower than those of the largest first, for the same "
     "work") {
    double largest = 0, random = 0;
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
        const Set set = tiling(100, 100'000, seed);
        const std::vector<Int> order = [] {
            std::vector<Int> all(100);
            std::iota(all.begin(), all.end(), 0);
            return all;
        }();
        const Greedy start = place_in_order(set.buffers(), order, false, kUnlimited);
        for (const Ejections ejections : {Ejections::largest_first, Ejections::at_random}) {
            Budget budget(-1, kInfinite, nullptr);
            const std::vector<Int> lower = lower_ceilings(
                set.buffers(), start.offset, 100'000, ejections, seed, 8'000'000, budget);
            (ejections == Ejections::at_random ? random : largest) +=
                static_cast<double>(peak_of(set.buffers(), lower));
        }
    }
    CHECK(random - 300'000 < 0.7 * (largest - 300'000));
}

TEST("a packing of blocks is one of the buffers, and their load stays below the ceiling") {
    for (std::uint64_t seed = 0; seed < 200; ++seed) {
        std::mt19937_64 random(seed);
        const auto below = [&](Int limit) {
            return static_cast<Int>(random() % static_cast<std::uint64_t>(limit));
        };
        Set set;
        for (Int b = 0, from = 0; b < 20; ++b) {
            from = below(30);
            set.add(from, from + 1 + below(12), 1 + below(6), Int{1} << below(3), b == 7 ? 24 : -1);
            if (b % 9 == 5) set.add_section(from + 15, from + 16 + below(5), 0, set.size.back());
        }
        const Int ceiling = load_bound(set.buffers()).bytes + 1;
        const Blocks blocks(set.buffers(), {ceiling, 0.4, seed});
        CHECK(blocks.buffers().count() < set.buffers().count() &&
            load_bound(blocks.buffers()).bytes <= ceiling);
        Budget budget(-1, kInfinite, nullptr);
        const Greedy packed = best_first_fit(blocks.buffers(), {}, 0, budget);
        if (packed.packed) CHECK(set.valid(blocks.offsets(packed.offset), packed.peak));
    }
}

TEST("dense sets whose ends do not line up are packed by blocks, alike on any number of threads") {
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
        Set set = tiling(200, 100'000, seed);
        for (std::size_t b = 0; b < set.begin.size(); ++b)
            if (set.end[b] - set.begin[b] >= 20) set.end[b] -= (set.end[b] - set.begin[b]) / 20;
        const Bound bound = lower_bound(set.buffers(), {}, -1);
        Effort effort;
        Portfolio one(set.buffers(), {}, bound, -1, effort);
        one.run();
        effort.threads = 3;
        Portfolio three(set.buffers(), {}, bound, -1, effort);
        three.run();
        CHECK(one.offset() == three.offset() && one.counters().nodes == three.counters().nodes);
        CHECK(set.valid(one.offset(), one.peak()) &&
            static_cast<double>(one.peak()) < 1.01 * static_cast<double>(bound.bytes));
    }
}

TEST("a node budget ends a search without a claim") {
    const Set set = tiling(120, 100'000, 9);
    Budget budget(50, kInfinite, nullptr);
    const Answer answer = fit(set.buffers(), {}, 100'000, {}, budget);
    CHECK(answer.status == Status::unknown || set.valid(answer.offset, 100'000));
    CHECK(budget.nodes() <= 50);
}

int main() { return checks::run_all(); }
