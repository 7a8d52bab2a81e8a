#include "allocation/small.hpp"

#include "common/limits.hpp"

#include "allocation/first_fit.hpp"
#include "allocation/restarts.hpp"

#include <utility>

namespace loadmaster::allocation {

namespace {

// With more buffers than this, or more pairs of them alive together, a search would take longer
// than a quick answer may.
constexpr std::int64_t kSearchedBuffers = 128, kPairs = 1'000'000;
constexpr std::int64_t kNodes = 2'000;

} // namespace

Answer allocate_small(const Buffers &buffers) {
    Budget budget(-1, kInfinite, nullptr);
    const std::int64_t bound = load_bound(buffers).bytes;
    Greedy greedy = best_first_fit(buffers, {}, bound, budget);
    Answer best{Status::feasible, std::move(greedy.offset), greedy.peak, bound};
    if (best.peak == best.bound || buffers.count() > kSearchedBuffers) return best;
    const Model model = make_model(buffers, kPairs);
    if (model.count < 0 || model.load * model.unit != best.bound) return best;
    Restarts search(model, {}, budget);
    if (search.run(model.load, kNodes) == Outcome::solved)
        best.offset = search.offsets(buffers), best.peak = best.bound;
    return best;
}

} // namespace loadmaster::allocation
