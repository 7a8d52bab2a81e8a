// Inference rules of the exact search. Each only saves work: answers agree with any of them off.
#pragma once

#include <cstdint>

namespace loadmaster::allocation {

enum Rule : std::int64_t {
    kSections = 1,        // floor + unplaced total of a slot above the capacity: fail
    kDominance = 2,       // nothing may start at or above a place where an unplaced buffer would fit whole
    kMonotonic = 4,       // offsets never decrease along the search, so the last one is a floor for all
    kDecomposition = 8,   // parts that share no instant are solved apart
    kTwins = 16,          // identical buffers take their offsets in the order of their indices
    kMemory = 32,         // states that failed are remembered, over restarts too
    // A buffer that was passed over must wait for something to stand on. Finds packings sooner, but can cut off all that are optimal:
    // what a search with this rule exhausts is no proof.
    kSupport = 64,
    kPreprocessing = 128, // instants that another one dominates are dropped
    kAllRules = 255,
};

}  // namespace loadmaster::allocation
