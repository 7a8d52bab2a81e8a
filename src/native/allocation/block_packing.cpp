#include "allocation/block_packing.hpp"

#include "allocation/blocks.hpp"
#include "allocation/portfolio.hpp"
#include "common/parallel.hpp"

#include <atomic>
#include <limits>
#include <thread>
#include <utility>

namespace loadmaster::allocation {

namespace {

struct Packing {
    std::vector<std::int64_t> offset;
    std::int64_t peak = std::numeric_limits<std::int64_t>::max();
    bool interrupted = false;
    Counters counters;
};

Packing packed(const Buffers &buffers, const Bound &bound, std::int64_t capacity,
    std::int64_t enough, const BlockAttempt &attempt, const Effort &effort) {
    Packing packing;
    const Blocks blocks(buffers, {enough, attempt.most_empty, attempt.seed});
    if (blocks.buffers().count() == buffers.count()) return packing;
    Portfolio portfolio(blocks.buffers(), {}, bound, capacity, effort);
    portfolio.run();
    packing.interrupted = portfolio.interrupted();
    packing.counters = portfolio.counters();
    if (!portfolio.found()) return packing;
    packing.offset = blocks.offsets(portfolio.offset());
    packing.peak = portfolio.peak();
    return packing;
}

} // namespace

PackedBlocks pack_blocks(const Buffers &buffers, const Bound &bound, std::int64_t capacity,
    std::int64_t enough, std::span<const BlockAttempt> attempts, const Effort &effort) {
    std::vector<Packing> packings(attempts.size());
    std::atomic<std::size_t> settled = attempts.size();
    std::atomic<bool> signalled = false;
    const auto main_thread = std::this_thread::get_id();
    const auto run = [&](std::size_t i) {
        if (settled < i || signalled) return;
        Effort share = effort;
        share.seed = attempts[i].seed, share.work = attempts[i].work, share.threads = 1;
        share.poll = [&, i] {
            if (std::this_thread::get_id() == main_thread && effort.poll && effort.poll())
                signalled = true;
            return signalled || settled < i;
        };
        packings[i] = packed(buffers, bound, capacity, enough, attempts[i], share);
        if (packings[i].peak > enough) return;
        for (std::size_t first = settled; i < first && !settled.compare_exchange_weak(first, i);) {
        }
    };
    mapping::each_in_parallel(attempts.size(), static_cast<int>(effort.threads), run);

    PackedBlocks best;
    std::int64_t peak = std::numeric_limits<std::int64_t>::max();
    for (std::size_t i = 0; i < attempts.size() && i <= settled; ++i) {
        best.counters += packings[i].counters;
        best.interrupted |= packings[i].interrupted;
        if (packings[i].peak >= peak) continue;
        peak = packings[i].peak;
        best.offset = std::move(packings[i].offset), best.attempt = i;
    }
    best.interrupted |= signalled;
    return best;
}

} // namespace loadmaster::allocation
