// Inference rules of the exact search. Each only saves work: answers agree with any of them off.
#pragma once

#include <cstdint>

namespace loadmaster::allocation {

enum Rule : std::int64_t {
    kSections = 1,        // lowest place + unplaced total of a slot above the capacity: fail
    kDominance = 2,       // no hole may stay below a buffer that would fit into it
    kLevels = 4,          // nothing starts where nothing can hold it up: levels at which nothing could begin are passed over
    kDecomposition = 8,   // parts that share no instant are solved apart
    kTwins = 16,          // identical buffers take their offsets in the order of their indices
    kMemory = 32,         // states that failed are remembered, over restarts too
    kThroughout = 64,     // what is alive throughout a part goes on top of it
    kPreprocessing = 128, // instants that another one dominates are dropped
    kAllRules = 255,
};

}  // namespace loadmaster::allocation
