// When copies run that overlap computation, for given paths of all tensors: list scheduling on the
// copy engines, kernel by kernel.
#pragma once

#include "placement/addresses.hpp"
#include "placement/tensors.hpp"

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace loadmaster::placement {

// Seconds of each tensor's copies, and how many bytes a second are copied out while kernels run.
struct Links {
    std::span<const double> block_in, block_out, overlap_in, overlap_out;
    double drain = 0;
    bool shared = false;  // one engine for both directions
    bool overlaps = true; // else all copies block, those out as soon as tensors leave
};

struct PathsView {
    std::span<const std::uint8_t> fast, stays, tail; // per use, per use, per tensor
};

// A copy from position `start` to `end`, in the order in which its engine makes it; both the same:
// it blocks.
struct ScheduledCopy {
    std::int64_t tensor = 0;
    bool to_fast = false;
    std::int64_t start = -1, end = -1;
    // To the slow memory: from `ready` on it may start, at `due` (leaving) its room is wanted, by
    // `needed` it must be complete. To the fast memory: from `ready` on (or once copy `after` is
    // complete), and by `due` = `needed` it must be complete.
    std::int64_t ready = 0, due = 0, needed = 0, after = -1;
    double done = 0;
    bool held = false; // it has left, but its room is not free yet
};

// What a kernel waited for: a copy, and how long.
struct Stall {
    std::int64_t position = 0, copy = 0;
    double seconds = 0;
};

class Schedule {
  public:
    Schedule(const Tensors &tensors, const Kernels &kernels, const Links &links);

    // Seconds of all kernels and copies; infinite if the paths themselves, with copies that take no
    // time, exceed a limit.
    double run(const PathsView &paths);
    // Likewise, where blocks have addresses: copies begin once what was there before has left, and
    // bytes are not counted. `list` first. No two blocks may meet.
    bool list(const PathsView &paths);
    double run_at(std::span<const std::int64_t> offset);

    // Stays, tensor by tensor and in order of time, then the workspace of every kernel.
    const std::vector<Block> &blocks() const { return blocks_; }
    const std::vector<ScheduledCopy> &copies() const { return copies_; }
    // Blocks whose copies began no earlier because of their addresses, each followed by the one
    // that was in the way.
    std::vector<std::int64_t> held_up() const;
    const std::vector<Stall> &stalls() const { return stalls_; }
    // Copies in the order in which they were started.
    const std::vector<std::int64_t> &order() const { return order_; }
    const std::vector<std::int64_t> &algorithms() const { return algorithm_; }

  private:
    void list_copies(const PathsView &paths);
    void list_copies_of(const PathsView &paths, std::int64_t t);
    void file_copies();
    void follow_addresses(std::span<const std::int64_t> offset);
    double run();
    bool vacated(const ScheduledCopy &copy, std::int64_t p) const;
    bool occupy(const PathsView &paths);
    void arrive(std::int64_t p);
    void depart(std::int64_t p);
    void make_room(std::int64_t p);
    std::pair<std::int64_t, bool> next_leaving(std::int64_t p);
    void release(ScheduledCopy &copy);
    void finish(std::int64_t c, std::int64_t p);
    void complete(std::int64_t p);
    void start(std::int64_t c, std::int64_t p);
    void block(std::int64_t c, std::int64_t p);
    void drain(std::int64_t p, double until);
    void fetch(std::int64_t p, double until);
    bool fits(std::int64_t c, std::int64_t p);
    bool valid(const ScheduledCopy &copy, std::int64_t p) const;
    double &engine(bool to_fast) { return free_[to_fast && !l_.shared]; }
    void note(std::int64_t p, std::int64_t c, double since);
    double seconds(const ScheduledCopy &c) const {
        return (c.to_fast ? l_.overlap_in : l_.overlap_out)[c.tensor];
    }
    double blocking(const ScheduledCopy &c) const {
        return (c.to_fast ? l_.block_in : l_.block_out)[c.tensor];
    }
    // Where engines are as fast as copies that block, there is no use in blocking.
    bool quicker(const ScheduledCopy &c) const { return blocking(c) < seconds(c); }
    bool pending(std::int64_t c) const { return copies_[c].start < 0; }

    const Tensors &t_;
    const Kernels &k_;
    const Links &l_;
    bool addressed_ = false;
    std::vector<Block> blocks_;
    std::vector<ScheduledCopy> listed_; // `copies_` before their addresses are known
    Addresses addresses_;
    std::vector<std::pair<std::int64_t, std::int64_t>>
        before_; // blocks with a copy back, and those that were there before them
    std::vector<std::vector<std::int64_t>>
        awaits_; // copies out that each copy back waits for, because of its addresses
    std::vector<std::int64_t> used_, workspace_, algorithm_;
    std::vector<double> seconds_, opened_, clock_;
    std::vector<std::uint8_t> in_slow_;
    std::vector<ScheduledCopy> copies_;
    std::vector<std::int64_t> order_;
    std::vector<Stall> stalls_;
    std::vector<std::int64_t> fetches_; // by deadline
    std::vector<std::vector<std::int64_t>> ready_at_, leaving_at_,
        needed_at_; // copies out, by position
    std::vector<std::pair<std::int64_t, std::int64_t>>
        queue_; // copies out that may start: a heap by (due, number), negated
    std::vector<std::int64_t> flying_; // copies out under way, in order
    std::size_t next_ = 0, arrivals_ = 0;
    std::int64_t held_ = 0; // bytes that have left but are not copied yet
    std::int64_t refused_ = -1,
                 retry_ = 0; // the first copy back that waits: it has no room before kernel retry_
    double now_ = 0, blocked_ = 0,
           free_[2] = {0, 0}; // as the engines see time, which stands still while copies block
    double lag_ = 0; // how far behind `clock_` the copies back that have begun put the kernels
};

} // namespace loadmaster::placement
