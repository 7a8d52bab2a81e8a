// The library for C and C++: answers hold, demands are kept, what makes no sense is refused by
// name, and threads do not disturb each other.
#include "checks.hpp"

#include <loadmaster/allocate.hpp>

#include <pthread.h>

#include <algorithm>
#include <limits>
#include <random>
#include <string>
#include <thread>

namespace {

using loadmaster::Buffer;
using loadmaster::Packing;
using loadmaster::PackingProblem;
using Int = std::int64_t;

constexpr Int kLargest = std::numeric_limits<Int>::max();

std::string refusal(const PackingProblem &problem) {
    try {
        loadmaster::allocate(problem);
    } catch (const std::invalid_argument &error) {
        return error.what();
    }
    return "";
}

bool says(const PackingProblem &problem, const char *words) {
    return refusal(problem).find(words) != std::string::npos;
}

// Any demands at all, from a few bytes and instants, so that many sets are tight.
PackingProblem random_problem(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto below = [&](Int limit) {
        return static_cast<Int>(random() % static_cast<std::uint64_t>(limit));
    };
    PackingProblem problem;
    const Int count = below(9);
    for (Int i = 0; i < count; ++i) {
        Buffer b;
        b.size = below(9), b.alignment = Int{1} << below(3), b.start = below(8) - 2,
        b.end = b.start + below(6);
        if (below(8) == 0) b.offset = b.alignment * below(4);
        if (below(4) == 0) b.group = 1 + below(2), b.shift = b.alignment * below(3);
        problem.buffers.push_back(b);
        if (b.end - b.start > 2 && below(3) == 0) {
            const Int low = below(b.size + 1);
            problem.gaps.push_back({static_cast<std::size_t>(i), b.start + 1, b.end - below(2), low,
                low + below(b.size - low + 1)});
        }
    }
    if (below(3) == 0) problem.reserved.push_back({below(12), 12 + below(4)});
    if (below(2) == 0) problem.capacity = 1 + below(30);
    const auto pair = [&] {
        return loadmaster::Pair{static_cast<std::size_t>(below(count)),
            static_cast<std::size_t>(below(count)), below(5) - 2};
    };
    for (Int left = count > 0 ? below(4) : 0; left > 0; --left) problem.in_place.push_back(pair());
    if (count > 0 && below(4) == 0) {
        problem.conflicts.emplace();
        for (Int left = below(9); left > 0; --left) problem.conflicts->push_back(pair());
    }
    return problem;
}

} // namespace

TEST("a plain set gets the packing and the proof that it should") {
    PackingProblem problem;
    problem.buffers = {{600, 1, 0, 4}, {300, 1, 2, 6}, {800, 1, 5, 9}};
    const Packing packing = loadmaster::allocate(problem);
    CHECK(packing.optimal() && packing.peak == 1100 && packing.bound == 1100);
    CHECK(packing.proof == LOADMASTER_LOAD && packing.instant == 5 &&
        packing.witnesses == std::vector<std::size_t>({1, 2}));
    CHECK(loadmaster::verify(problem, packing.offsets).empty());
    CHECK(loadmaster::verify(problem, {0, 0, 0}) == "two buffers share bytes at instant 2");
    problem.capacity = 1000;
    const Packing none = loadmaster::allocate(problem);
    CHECK(none.status == LOADMASTER_INFEASIBLE && !none && none.bound == 1100 &&
        none.witnesses.size() == 2);
}

TEST("in-place pairs share, and conflicts stand for lifetimes") {
    PackingProblem problem;
    problem.buffers = {{100, 1, 0, 4}, {100, 1, 3, 8}, {50, 1, 3, 8}};
    problem.in_place = {{0, 1, 0}};
    const Packing shared = loadmaster::allocate(problem);
    CHECK(shared.optimal() && shared.peak == 150 && shared.offsets[0] == shared.offsets[1]);
    CHECK(loadmaster::verify(problem, {0, 100, 200}).empty());
    CHECK(loadmaster::verify(problem, {0, 1, 200}) == "two buffers share bytes at instant 3");
    problem.in_place.clear();
    problem.conflicts = {{{0, 2, 0}, {1, 2, 0}}};
    const Packing apart = loadmaster::allocate(problem);
    CHECK(apart.optimal() && apart.peak == 150 && apart.offsets[0] == apart.offsets[1]);
    CHECK(loadmaster::verify(problem, {0, 0, 50}) ==
        "buffer 0 shares bytes with one that it conflicts with");
    for (Buffer &buffer : problem.buffers) buffer.start = buffer.end = 0;
    CHECK(loadmaster::allocate(problem).peak == 150);
    CHECK(!loadmaster::verify(problem, {0, 0, 0}).empty());
    problem.conflicts = {{{0, 3, 0}}};
    CHECK(says(problem, "pair: names a buffer that does not exist"));
    problem.conflicts.reset();
    problem.in_place = {{0, 1, 0}};
    problem.buffers[0].alignment = Int{1} << 33, problem.buffers[1].alignment = 3'486'784'401;
    CHECK(says(problem, "pairs: the alignments have no common multiple below 2^62"));
}

TEST("offsets at which sums would overflow do not hold") {
    PackingProblem problem;
    problem.buffers = {{16, 1, 0, 4}, {16, 1, 0, 4}};
    problem.capacity = 100;
    for (const Int far : {kLargest, kLargest - 8, Int{1} << 62})
        CHECK(loadmaster::verify(problem, {0, far}) == "buffer 1 lies beyond 2^62");
    CHECK(
        loadmaster::verify(problem, {0, (Int{1} << 62) - 1}) == "buffer 1 ends past the capacity");
}

TEST("what is alive two by two is a proof of its own") {
    PackingProblem problem;
    problem.buffers = {{5, 1, 0, 2}, {6, 1, 0, 3}, {7, 1, 1, 3}};
    problem.gaps = {{1, 1, 2, 0, 0}};
    const Packing packing = loadmaster::allocate(problem);
    CHECK(packing.optimal() && packing.peak == 18 && packing.proof == LOADMASTER_PAIRS &&
        packing.witnesses.size() == 3);
    problem.capacity = 17;
    CHECK(loadmaster::allocate(problem).proof == LOADMASTER_PAIRS);
    problem.capacity = 12;
    CHECK(loadmaster::allocate(problem).proof == LOADMASTER_LOAD);
}

TEST("an empty problem is packed") {
    CHECK(loadmaster::allocate({}).optimal());
    PackingProblem problem;
    problem.buffers = {{50, 1, 3, 3}, {0, 1, 0, 9}};
    const Packing packing = loadmaster::allocate(problem);
    CHECK(packing.optimal() && packing.peak == 0 && packing.offsets == std::vector<Int>({0, 0}));
}

TEST("alignment, pins, gaps, groups and reserved ranges are kept") {
    PackingProblem problem;
    problem.alignment = 8;
    problem.buffers = {{10, 1, 0, 4, 16}, {10, 4, 0, 4}, {30, 1, 0, 4, loadmaster::anywhere, 7, 0},
        {5, 1, 0, 4, loadmaster::anywhere, 7, 13}};
    problem.reserved = {{0, 8}};
    const Packing packing = loadmaster::allocate(problem);
    CHECK(packing && packing.offsets[0] == 16 && packing.offsets[3] == packing.offsets[2] + 13 &&
        packing.offsets[2] % 8 == 0);
    CHECK(*std::min_element(packing.offsets.begin(), packing.offsets.end()) >= 8);
    PackingProblem gapped;
    gapped.buffers = {{10, 1, 0, 9}, {8, 1, 3, 6}};
    gapped.gaps = {{0, 3, 6, 0, 2}};
    CHECK(loadmaster::allocate(gapped).peak == 10);
}

TEST("a proof is exhausted where the load does not say") {
    PackingProblem problem;
    problem.buffers = {{5, 4, 0, 4}, {5, 3, 0, 4}};
    const Packing packing = loadmaster::allocate(problem);
    CHECK(packing.optimal() && packing.peak == 11 && packing.proof == LOADMASTER_EXHAUSTED &&
        packing.witnesses.empty());
    problem.capacity = 10;
    CHECK(loadmaster::allocate(problem).status == LOADMASTER_INFEASIBLE);
}

TEST("what makes no sense is refused by name") {
    const auto one = [](const Buffer &buffer) {
        PackingProblem problem;
        problem.buffers = {{1, 1, 0, 1}, buffer};
        return problem;
    };
    CHECK(says(one({-1, 1, 0, 1}), "buffer 1: size"));
    CHECK(says(one({1, -1, 0, 1}), "buffer 1: alignment"));
    CHECK(says(one({1, 1, 2, 1}), "buffer 1: start, end"));
    CHECK(says(one({1, 1, 0, 1, -7}), "buffer 1: offset"));
    CHECK(says(one({1, 4, 0, 1, 2}), "not a multiple"));
    CHECK(says(one({1, 1, 0, 1, -1, 1, -3}), "buffer 1: shift"));
    CHECK(says(one({kLargest, 1, 0, 1}), "buffer 1: size"));
    CHECK(says(one({(Int{1} << 61) + 1, Int{1} << 61, 0, 1}), "2^62"));
    PackingProblem problem;
    problem.buffers = {{4, 1, 0, 4, 0}, {4, 1, 0, 4, 2}};
    CHECK(says(problem, "buffer 0 and buffer 1 are pinned"));
    problem.buffers = {{4, 4, 0, 4, -1, 1, 0}, {4, 4, 0, 4, -1, 1, 2}};
    CHECK(says(problem, "no address suits"));
    problem.buffers = {{4, 1, 0, 4}};
    problem.gaps = {{3, 0, 1, 0, 0}};
    CHECK(says(problem, "gap"));
    problem.gaps = {{0, 0, 5, 0, 0}};
    CHECK(says(problem, "not within the lifetime"));
    problem.gaps = {{0, 0, 3, 0, 2}, {0, 1, 4, 0, 2}};
    CHECK(says(problem, "overlap"));
    problem.gaps.clear();
    problem.reserved = {{5, 3}};
    CHECK(says(problem, "reserved"));
}

TEST("null pointers and senseless limits come back as invalid") {
    loadmaster_result result;
    CHECK(loadmaster_allocate(nullptr, nullptr, nullptr, nullptr, &result) == LOADMASTER_INVALID &&
        result.message[0]);
    CHECK(loadmaster_allocate(nullptr, nullptr, nullptr, nullptr, nullptr) == LOADMASTER_INVALID);
    const loadmaster_problem empty{};
    CHECK(loadmaster_allocate(&empty, nullptr, nullptr, nullptr, &result) == LOADMASTER_OPTIMAL);
    loadmaster_limits limits{};
    limits.seconds = std::numeric_limits<double>::quiet_NaN();
    CHECK(loadmaster_allocate(&empty, &limits, nullptr, nullptr, &result) == LOADMASTER_INVALID);
    limits = {};
    limits.threads = -1;
    CHECK(loadmaster_allocate(&empty, &limits, nullptr, nullptr, &result) == LOADMASTER_INVALID);
}

TEST("conflicts of buffers with lifetimes are refused") {
    const loadmaster_buffer buffers[2]{};
    const loadmaster_pair pair{0, 1, 0};
    loadmaster_problem problem{};
    problem.buffers = buffers, problem.buffer_count = 2;
    problem.conflicts = &pair, problem.conflict_count = 1;
    loadmaster_result result;
    std::int64_t offsets[2];
    CHECK(loadmaster_allocate(&problem, nullptr, offsets, nullptr, &result) == LOADMASTER_INVALID);
    problem.without_clock = 1;
    CHECK(loadmaster_allocate(&problem, nullptr, offsets, nullptr, &result) == LOADMASTER_OPTIMAL);
}

TEST("an invalid problem has no offsets") {
    loadmaster_buffer buffer{};
    buffer.end = 1;
    loadmaster_problem problem{};
    problem.buffers = &buffer;
    problem.buffer_count = 1;
    for (std::int64_t *wrong : {&buffer.size, &problem.alignment, &problem.capacity}) {
        *wrong = -1;
        loadmaster_result result;
        std::int64_t offset = 7;
        unsigned char witness = 7;
        CHECK(loadmaster_allocate(&problem, nullptr, &offset, &witness, &result) ==
            LOADMASTER_INVALID);
        CHECK(offset == -1 && witness == 0);
        *wrong = 0;
    }
}

TEST("random demands: packings hold, are no lower than what is proven, and are the same every "
     "time") {
    int packed = 0, refused = 0;
    for (std::uint64_t seed = 0; seed < 400; ++seed) {
        const PackingProblem problem = random_problem(seed);
        if (!refusal(problem).empty()) {
            ++refused;
            continue;
        }
        const Packing packing = loadmaster::allocate(problem, {0, 1, 0, 0}),
                      again = loadmaster::allocate(problem, {0, 1, 0, 3});
        CHECK(packing.offsets == again.offsets && packing.status == again.status);
        CHECK(packing.bound >= 0 &&
            (packing.status != LOADMASTER_FEASIBLE || packing.proof == LOADMASTER_NO_PROOF));
        if (packing.status == LOADMASTER_INFEASIBLE) CHECK(packing.bound > problem.capacity);
        if (!packing) continue;
        ++packed;
        CHECK(loadmaster::verify(problem, packing.offsets).empty());
        CHECK(
            packing.bound <= packing.peak && packing.optimal() == (packing.bound == packing.peak));
    }
    CHECK(packed > 100 && refused > 10);
}

TEST("callers in many threads get what one alone gets") {
    std::vector<Packing> alone, together(16);
    for (std::uint64_t seed = 0; seed < together.size(); ++seed) {
        PackingProblem problem;
        std::mt19937_64 random(seed);
        for (int i = 0; i < 40; ++i) {
            const Int start = static_cast<Int>(random() % 20);
            problem.buffers.push_back({static_cast<Int>(1 + random() % 60), Int{1} << random() % 4,
                start, start + 1 + static_cast<Int>(random() % 9)});
        }
        alone.push_back(loadmaster::allocate(problem, {0, 1, seed, 0}));
        together[seed].offsets.clear();
    }
    std::vector<std::thread> callers;
    for (std::uint64_t seed = 0; seed < together.size(); ++seed)
        callers.emplace_back([&, seed] {
            PackingProblem problem;
            std::mt19937_64 random(seed);
            for (int i = 0; i < 40; ++i) {
                const Int start = static_cast<Int>(random() % 20);
                problem.buffers.push_back({static_cast<Int>(1 + random() % 60),
                    Int{1} << random() % 4, start, start + 1 + static_cast<Int>(random() % 9)});
            }
            together[seed] = loadmaster::allocate(problem, {0, 1, seed, 0});
        });
    for (std::thread &caller : callers) caller.join();
    for (std::size_t i = 0; i < alone.size(); ++i)
        CHECK(alone[i].offsets == together[i].offsets && alone[i].peak == together[i].peak);
}

TEST("a time limit brings back the best so far") {
    // The load cannot be met, so that there is something to prove.
    PackingProblem problem;
    problem.buffers = {{5, 4, 0, 4}, {5, 3, 0, 4}};
    const Packing packing = loadmaster::allocate(problem, {1e-9, 0, 0, 0});
    CHECK(packing && packing.interrupted && !packing.optimal() &&
        loadmaster::verify(problem, packing.offsets).empty());
    CHECK(loadmaster::allocate(problem).optimal());
}

PackingProblem many(Int count) {
    std::mt19937_64 random(1);
    PackingProblem problem;
    for (Int i = 0; i < count; ++i) {
        const Int start = static_cast<Int>(random() % 1000);
        problem.buffers.push_back({static_cast<Int>(1 + random() % 4096), 1, start,
            start + 1 + static_cast<Int>(random() % 100)});
    }
    return problem;
}

TEST("a caller with a small stack may have many buffers") {
    Packing packing;
    const PackingProblem problem = many(1000);
    std::pair<const PackingProblem *, Packing *> both{&problem, &packing};
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 128 * 1024);
    pthread_t thread;
    const auto run = [](void *given) -> void * {
        auto [from, to] = *static_cast<std::pair<const PackingProblem *, Packing *> *>(given);
        *to = loadmaster::allocate(*from, {0, 20, 0, 2});
        return nullptr;
    };
    CHECK(pthread_create(&thread, &attributes, run, &both) == 0);
    pthread_join(thread, nullptr);
    CHECK(packing.optimal() && loadmaster::verify(problem, packing.offsets).empty());
}

TEST("a call is cancelled from outside, and brings back the best so far") {
    const PackingProblem problem = many(5000);
    int asked = 0;
    loadmaster::Limits limits;
    limits.cancel = [&] { return ++asked >= 2; };
    const Packing packing = loadmaster::allocate(problem, limits);
    CHECK(packing && packing.interrupted && asked >= 2 &&
        loadmaster::verify(problem, packing.offsets).empty());
}

TEST("pins that overlap are named") {
    PackingProblem problem;
    problem.buffers = {{4, 1, 0, 4}, {4, 1, 0, 4, 8}, {4, 1, 2, 6, 10}};
    CHECK(says(problem, "buffer 1 and buffer 2 are pinned"));
    problem.buffers.pop_back(), problem.reserved.push_back({10, 20});
    CHECK(says(problem, "buffer 1 and a reserved range are pinned"));
}

int main() { return checks::run_all(); }
