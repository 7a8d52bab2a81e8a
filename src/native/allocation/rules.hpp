// The inference rules of the exact search. Each of them only saves work: answers agree with any of
// them switched off.
#pragma once

namespace loadmaster::allocation {

struct SearchRules {
    // A branch fails if the lowest place in some slot and the unplaced bytes of that slot together
    // exceed the capacity.
    bool section_inference = true;
    // A branch fails if it leaves a gap into which a buffer above it could be moved.
    bool dominance = true;
    // Offsets at which no buffer could rest on another one are skipped.
    bool level_skipping = true;
    // Groups of unplaced buffers that share no slot are solved one by one.
    bool decomposition = true;
    // Identical buffers take their offsets in the order of their indices.
    bool symmetry_breaking = true;
    // States from which no packing was found are remembered, over restarts too.
    bool failed_states = true;
    // Buffers alive throughout a subproblem are put on top of it.
    bool spanning_buffers = true;
    // Slots whose live set is part of another slot's live set are dropped before the search.
    bool slot_reduction = true;
};

} // namespace loadmaster::allocation
