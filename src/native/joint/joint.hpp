// The joint planner's evaluation: along one order of jobs, what stays in the fast memory, what is
// fetched when, and how long it all takes.
#pragma once

#include "simulation/kernels.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace loadmaster::joint {

// Jobs, tensors and operands as the job table has them. Operand rows are sorted by job; `moved` and
// `compute` have a column per core.
struct Work {
    std::size_t jobs, tensors, cores;
    std::span<const double> compute; // seconds (jobs x cores)
    std::span<const std::int64_t> row_job, row_tensor;
    std::span<const std::uint8_t> row_write;
    std::span<const std::int64_t> moved; // bytes (rows x cores)
    std::span<const std::int64_t> bytes,
        room; // of every tensor: its size, and what it takes of the fast memory
    std::span<const std::int64_t> producer; // job that writes a tensor, -1 for none
    std::span<const std::uint8_t> output;   // whether a tensor must be in main memory at the end
    Successors successors;                  // job -> jobs that need its results
    std::span<const std::int64_t> release;  // picosecond before which each job may not start
    std::span<const std::int64_t>
        available; // picosecond before which each tensor may not be fetched
    std::span<const double> energy_penalty; // picoseconds that speak against a core for a job,
                                            // times `energy_weight` (jobs x cores)
};

// Memories by index: the main one, then the one that jobs fetch into.
constexpr std::size_t kMain = 0, kFast = 1, kLinks = 2;

struct Machine {
    std::array<double, kLinks> read, write; // bytes/s of the link of every memory
    std::array<double, kLinks> engine; // bytes/s of copies to every memory; 0: none can be made
    std::int64_t capacity;             // bytes of the fast memory
    bool in_place; // whether jobs may use operands in main memory; if not, all are in the fast one
                   // while a job runs
};

// What the search varies beside the order. Bytes are of the fast memory, padding included.
struct Options {
    std::int64_t filled_bytes;            // that may be full at once
    std::int64_t prefetched_bytes;        // that may be full while something is prefetched
    std::int64_t release_delay_positions; // positions of the order for which room is held after its
                                          // last use: so many later jobs may run beside it
    double streamed_share; // of the main link's time while jobs run, in which they may stream what
                           // is used once; the rest is prefetched
    std::vector<double> link_prices; // what a second of the link of every memory counts when stays
                                     // are chosen
    double link_load_limit; // demands on a link that may run at once, 1 filling it; a job that
                            // would exceed it lets others go first
    double core_wait_ratio; // seconds that a job waits for a core on which it is a second faster
    double energy_weight; // how much energy penalties count beside the time at which a job ends on
                          // a core
    std::int64_t urgent_positions; // positions that must all have ended before any later one is
                                   // admitted; 0 for none
    double fetch_lead; // share of all jobs' time by which a fetch is early at least before it gives
                       // way to jobs on a link that is full; may be infinite
    bool wait_for_releases; // whether idle cores wait for jobs before this one in the order, if
                            // these are released before this one would end
    std::vector<double> core_prices; // what a second of each core counts when a core is chosen for
                                     // a job; empty: 1
    std::vector<std::int64_t> streamed_tensors; // that no stay is chosen for, where jobs may use
                                                // main memory in place
};

// A stay in the fast memory, over positions of the order: admitted at `first`, in use from `begin`
// (its producer, or the first reader of what is fetched) to `last`. What `leaves` is copied to main
// memory meanwhile, because its producer cannot write there.
struct Stay {
    std::int64_t tensor, first, begin, last;
    bool fetched, leaves = false;
    std::int64_t urgent_from =
        0; // a position: from when all jobs before it have begun, a fetch has no lower priority
};

struct Stays {
    std::vector<Stay> stays;
    std::vector<std::int64_t>
        row_stay; // of every operand row: the stay that serves it, -1 for main memory
    std::vector<std::int64_t> used; // bytes of the fast memory that they take at every position
    std::vector<std::uint8_t>
        in_main;     // of every tensor: whether a job or a copy writes it to main memory
    bool fit = true; // whether there is room for all operands of every job that has to have them in
                     // the fast memory
};

// Choose stays greedily, by main link time saved per byte and time of occupancy to some power, so
// that at no position of `order` more than the capacity is taken; then fetch as early as there is
// room. `width` is the time that each job stands for.
Stays choose_stays(const Work &work, const Machine &machine, std::span<const std::int64_t> order,
    std::span<const double> width, const Options &options);

struct Admission {
    std::vector<std::int32_t> core; // of every job
    std::vector<std::int64_t> start,
        end; // picoseconds, of every job and then of every copy in the order in which they are made
    std::vector<std::int64_t> copies;  // stays that are fetched, or copied to main memory, in the
                                       // order in which that is done
    std::vector<std::uint8_t> outward; // whether each of these goes to main memory
    std::int64_t makespan = -1;        // -1 if it never came to an end
};

// Run the jobs on the machine, jobs and fetches taking their room of the fast memory in turn: as
// all that came before them ends in the end, and what is then in use fits by construction, nothing
// waits for ever. A job that is ready before its turn may go where a core would be idle, if what it
// writes fits at every position up to its own too. Of the jobs admitted, the first in turn that is
// ready goes to the core where it ends first, `core_wait_ratio` and `energy_weight` considered.
Admission admit(const Work &work, const Machine &machine, std::span<const std::int64_t> order,
    const Stays &stays, const Options &options);

} // namespace loadmaster::joint
