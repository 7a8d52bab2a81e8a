// Memory for PyTorch's operators at addresses that a plan gives.
//
// PyTorch asks one allocator (c10::Allocator) for all CPU memory. Ours stands before the default
// one. While a thread runs a kernel under a script, its next allocations get the addresses of the
// script, in order; all others go to the default allocator. So operators write their results where
// the plan wants them, and their temporaries too, without copies.
//
// The classes behind it have the binary layout of c10::Allocator and c10::DataPtr of PyTorch 2.11
// to 2.13 (Itanium ABI); no header of PyTorch is needed to build. Whoever installs the allocator
// tries it first where it may crash, and sees that allocations come back at their addresses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace loadmaster::runtime {

// An allocation of a kernel: `bytes`, and where it goes, counted from the arena's base; -1 leaves
// it to the default allocator.
struct Grant {
    std::int64_t bytes;
    std::int64_t offset;
};

// An allocation that was seen: `freed` counts allocations of the recording made before it was given
// back, or is -1 if it lived on.
struct Seen {
    const void *address;
    std::int64_t bytes;
    std::int64_t freed;
};

// Puts our allocator before `standard`. Once a process.
void install(void (*set_allocator)(void *, std::uint8_t), void *standard);

// Memory that is never given back to the default allocator.
void add_arena(std::uintptr_t base, std::size_t bytes);
void remove_arena(std::uintptr_t base);

// This thread's allocations follow `grants` from now on; `grants` must outlive `end`.
void begin(std::span<const Grant> grants, std::uintptr_t base);
// Back to the default; how many allocations the script did not foresee.
std::int64_t end();

// Records this thread's allocations.
void start_recording();
std::vector<Seen> stop_recording();

} // namespace loadmaster::runtime
