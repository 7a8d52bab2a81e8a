#include "placement/schedule.hpp"

#include "common/limits.hpp"

#include <algorithm>

namespace loadmaster::placement {

namespace {
constexpr double kNever = kInfinite;
// Copies back, at most, that others pass; where they have addresses, one that passes takes no room
// from those.
constexpr std::int64_t kPassed = 2, kPassedAt = 16;
} // namespace

Schedule::Schedule(const Tensors &tensors, const Kernels &kernels, const Links &links)
    : t_(tensors), k_(kernels), l_(links) {
    const auto count = static_cast<std::size_t>(k_.count());
    used_.resize(count + 1);
    for (auto *of_kernels : {&workspace_, &algorithm_}) of_kernels->resize(count);
    seconds_.resize(count);
    for (auto *seconds : {&opened_, &clock_}) seconds->resize(count + 1);
    for (auto *lists : {&ready_at_, &needed_at_, &leaving_at_}) lists->resize(count + 1);
    in_slow_.resize(k_.use.size());
}

double Schedule::run(const PathsView &paths) {
    if (!occupy(paths)) return kNever;
    addressed_ = false;
    list_copies(paths);
    file_copies();
    return run();
}

double Schedule::run() {
    const std::int64_t kernels = k_.count();
    now_ = blocked_ = lag_ = free_[0] = free_[1] = 0;
    next_ = arrivals_ = 0;
    held_ = retry_ = 0;
    refused_ = -1;
    stalls_.clear();
    for (std::int64_t p = 0;; ++p) {
        complete(p);
        arrive(p);
        depart(p);
        if (p == kernels) break;
        if (!addressed_) make_room(p);
        opened_[p] = now_;
        for (std::int64_t c : ready_at_[p])
            if (pending(c)) {
                queue_.emplace_back(addressed_ ? -copies_[c].needed : -copies_[c].due, -c);
                std::ranges::push_heap(queue_);
            }
        const double end = now_ + seconds_[p];
        if (l_.overlaps) {
            drain(p, end);
            fetch(p, end);
        }
        now_ = end;
    }
    return now_ + blocked_;
}

// Base occupancy, kernels' seconds and algorithms; false if a kernel cannot run.
bool Schedule::occupy(const PathsView &paths) {
    const std::int64_t kernels = k_.count();
    std::ranges::fill(used_, 0);
    for (std::int64_t t : indices(t_.count())) {
        const std::int64_t begin = t_.first[t], end = t_.first[t + 1], size = t_.size[t];
        for (std::int64_t u = begin; u < end; ++u) {
            const std::int64_t k = t_.kernel[u],
                               from = paths.stays[u] ? (u > begin ? t_.kernel[u - 1] + 1 : 0) : k;
            const std::int64_t to = paths.fast[u] ? k + 1 : k;
            in_slow_[t_.operand[u]] = !paths.fast[u];
            if (from < to) used_[from] += size, used_[to] -= size;
        }
        if (begin < end && paths.tail[t])
            used_[t_.kernel[end - 1] + 1] += size, used_[kernels] -= size;
    }
    std::int64_t used = 0;
    for (std::int64_t k : indices(kernels)) {
        used_[k] = used += used_[k];
        const KernelTime time = kernel_time(t_, k_, in_slow_, k, k_.limit[k] - used_[k]);
        if (time.algorithm < 0) return false;
        seconds_[k] = time.seconds;
        workspace_[k] = k_.workspace[time.algorithm];
        algorithm_[k] = time.algorithm - k_.first_algorithm[k];
        clock_[k + 1] = clock_[k] + seconds_[k];
        used_[k] += workspace_[k];
    }
    return true;
}

// --- copies

void Schedule::list_copies(const PathsView &paths) {
    copies_.clear();
    blocks_.clear();
    for (std::int64_t t : indices(t_.count())) list_copies_of(paths, t);
    for (std::int64_t k : indices(k_.count())) blocks_.push_back({k, k + 1, workspace_[k]});
}

// Sorts copies by the positions at which they matter.
void Schedule::file_copies() {
    order_.clear();
    fetches_.clear();
    queue_.clear();
    flying_.clear();
    for (auto *lists : {&ready_at_, &needed_at_, &leaving_at_})
        for (auto &list : *lists) list.clear();
    for (std::int64_t c : indices(std::ssize(copies_))) {
        const ScheduledCopy &copy = copies_[c];
        if (copy.to_fast) {
            fetches_.push_back(c);
        } else {
            ready_at_[copy.ready].push_back(c);
            needed_at_[copy.needed].push_back(c);
            leaving_at_[copy.due].push_back(c);
        }
    }
    std::ranges::sort(fetches_, {}, [&](std::int64_t c) { return std::pair(copies_[c].due, c); });
}

void Schedule::list_copies_of(const PathsView &paths, std::int64_t t) {
    const std::int64_t begin = t_.first[t], end = t_.first[t + 1], kernels = k_.count();
    if (begin == end) return;
    const LiveRange range = t_.range(t);
    const auto out = [&](std::int64_t ready, std::int64_t leaves, std::int64_t needed) {
        copies_.push_back(
            {.tensor = t, .to_fast = false, .ready = ready, .due = leaves, .needed = needed});
        return blocks_.back().evict = std::ssize(copies_) - 1;
    };
    // A weight that stays round the end of time is dirty at the start if it is written anywhere and
    // not copied out since.
    bool dirty = range == LiveRange::input && paths.stays[begin];
    if (range == LiveRange::cyclic && paths.stays[begin]) {
        for (std::int64_t u = begin; u < end; ++u) {
            if (u > begin && !paths.stays[u]) dirty = false;
            if (paths.fast[u] && t_.writes[u]) dirty = true;
        }
    }
    // Since when nothing has changed it; since when it is in the slow memory alone; the copy out
    // that makes it valid there.
    std::int64_t written = 0, good = 0, copied = -1;
    for (std::int64_t u = begin; u < end; ++u) {
        const std::int64_t k = t_.kernel[u];
        if (!paths.stays[u]) {
            if (dirty && t_.reads[u] && u > begin) copied = out(written, t_.kernel[u - 1] + 1, k);
            dirty = false;
        }
        if (paths.fast[u] && paths.stays[u] && u > begin) {
            blocks_.back().end = k + 1;
        } else if (paths.fast[u]) {
            const bool from_start =
                paths.stays[u] && (range == LiveRange::cyclic || range == LiveRange::input);
            blocks_.push_back({from_start ? 0 : k, k + 1, t_.size[t], t});
            if (!paths.stays[u] && t_.reads[u]) {
                blocks_.back().fetch = std::ssize(copies_);
                copies_.push_back({.tensor = t,
                    .to_fast = true,
                    .ready = good,
                    .due = k,
                    .needed = k,
                    .after = copied});
            }
        }
        if (t_.writes[u]) {
            written = k + 1;
            dirty = paths.fast[u];
            copied = -1;
        }
        if (paths.fast[u] || t_.writes[u]) good = k + 1;
    }
    const bool leaves = (range == LiveRange::cyclic && !paths.stays[begin]) ||
        (range == LiveRange::output && !paths.tail[t]);
    if (dirty && leaves) out(written, t_.kernel[end - 1] + 1, kernels);
    if (paths.tail[t]) blocks_.back().end = kernels;
}

// --- time

// Copies out that have ended by now have made room for kernel p.
void Schedule::complete(std::int64_t p) {
    std::size_t kept = 0;
    for (std::int64_t c : flying_) {
        if (copies_[c].done <= now_) {
            copies_[c].end = p;
            release(copies_[c]);
        } else {
            flying_[kept++] = c;
        }
    }
    flying_.resize(kept);
}

void Schedule::release(ScheduledCopy &copy) {
    if (copy.held) held_ -= t_.size[copy.tensor];
    copy.held = false;
}

// Waits for copies that kernel p reads; those that have not begun block.
void Schedule::arrive(std::int64_t p) {
    for (; arrivals_ < fetches_.size() && copies_[fetches_[arrivals_]].due == p; ++arrivals_) {
        const std::int64_t c = fetches_[arrivals_];
        const double since = now_ + blocked_;
        if (pending(c)) {
            if (copies_[c].after >= 0) finish(copies_[c].after, p);
            block(c, p);
        } else {
            now_ = std::max(now_, copies_[c].done);
        }
        note(p, c, since);
    }
    complete(p);
}

void Schedule::note(std::int64_t p, std::int64_t c, double since) {
    if (const double waited = now_ + blocked_ - since; waited > 0)
        stalls_.push_back({p, c, waited});
}

// Copies out that must be complete at position p.
void Schedule::depart(std::int64_t p) {
    for (std::int64_t c : needed_at_[p]) {
        const double since = now_ + blocked_;
        finish(c, p);
        note(p, c, since);
    }
}

// Makes copy out c complete by position p: waits or blocks, whichever takes less.
void Schedule::finish(std::int64_t c, std::int64_t p) {
    ScheduledCopy &copy = copies_[c];
    if (copy.end >= 0) return;
    if (pending(c)) {
        const double begin = std::max(engine(false), now_);
        if (!l_.overlaps || p == 0 || copy.ready >= p ||
            (quicker(copy) && begin + seconds(copy) - now_ > blocking(copy))) {
            block(c, p);
            return;
        }
        start(c, p - 1);
    }
    now_ = std::max(now_, copy.done);
    complete(p);
}

void Schedule::block(std::int64_t c, std::int64_t p) {
    ScheduledCopy &copy = copies_[c];
    blocked_ += blocking(copy);
    release(copy);
    copy.start = copy.end = p;
    order_.push_back(c);
}

void Schedule::start(std::int64_t c, std::int64_t p) {
    ScheduledCopy &copy = copies_[c];
    double &free = engine(copy.to_fast);
    copy.start = p;
    copy.done = std::max(free, opened_[p]) + seconds(copy);
    free = copy.done;
    order_.push_back(c);
    if (copy.to_fast) {
        copy.end = copy.due;
        for (std::int64_t k = p; k < copy.due; ++k) used_[k] += t_.size[copy.tensor];
    } else {
        flying_.push_back(c);
    }
}

// Holds up kernel p until its memory is free of what has left: waits for a copy that is under way,
// or has one block, whichever takes less.
void Schedule::make_room(std::int64_t p) {
    if (!l_.overlaps) {
        for (std::int64_t c : leaving_at_[p])
            if (pending(c)) block(c, p);
        return;
    }
    for (std::int64_t c : leaving_at_[p])
        if (copies_[c].end < 0) {
            copies_[c].held = true;
            held_ += t_.size[copies_[c].tensor];
        }
    while (used_[p] + held_ > k_.limit[p]) {
        const auto [next, queued] = next_leaving(p);
        const double since = now_ + blocked_;
        const double block_now =
            next >= 0 && quicker(copies_[next]) ? blocking(copies_[next]) : kNever;
        if (!flying_.empty() &&
            (next < 0 ||
                (copies_[flying_.front()].held &&
                    copies_[flying_.front()].done - now_ <= block_now))) {
            const std::int64_t c = flying_.front();
            now_ = std::max(now_, copies_[c].done);
            complete(p);
            drain(p - 1, now_);
            note(p, c, since);
        } else if (next < 0) {
            return;
        } else if (queued &&
            std::max(engine(false), now_) + seconds(copies_[next]) - now_ <= block_now) {
            start(next, p - 1);
        } else {
            block(next, p);
            note(p, next, since);
        }
    }
}

// A copy out that waits and whose room kernel p could use, and whether it may start before p.
std::pair<std::int64_t, bool> Schedule::next_leaving(std::int64_t p) {
    while (!queue_.empty() && !pending(-queue_.front().second)) {
        std::ranges::pop_heap(queue_);
        queue_.pop_back();
    }
    if (!queue_.empty() && copies_[-queue_.front().second].held)
        return {-queue_.front().second, true};
    for (std::int64_t c : ready_at_[p])
        if (pending(c) && copies_[c].held) return {c, false};
    return {-1, false};
}

// Starts copies out while kernel p runs, until `until`.
void Schedule::drain(std::int64_t p, double until) {
    while (!queue_.empty() && engine(false) < until) {
        std::ranges::pop_heap(queue_);
        const std::int64_t c = -queue_.back().second;
        queue_.pop_back();
        if (pending(c)) start(c, p);
    }
}

// Starts copies back while kernel p runs, until `until`, as early as there is room: in the order of
// their deadlines, but a few later ones may pass those that cannot start yet.
void Schedule::fetch(std::int64_t p, double until) {
    std::int64_t passed = 0;
    bool first = true;
    for (std::size_t i = next_; i < fetches_.size(); ++i) {
        const std::int64_t c = fetches_[i];
        const ScheduledCopy &copy = copies_[c];
        if (first) next_ = i;
        if (copy.due <= p || !pending(c)) continue;
        const bool last = copy.due == p + 1;
        if (!last && engine(true) >= until) return;
        const double late = std::max(engine(true), opened_[p]) + seconds(copy) -
            std::max(opened_[p] - clock_[p], lag_) - clock_[copy.due];
        if (quicker(copy) && late > blocking(copy)) continue;
        if (valid(copy, p) && (addressed_ ? vacated(copy, p) : fits(c, p))) {
            start(c, p);
            lag_ = std::max(lag_, copy.done - clock_[copy.due]);
        } else if (!last && ++passed > (addressed_ ? kPassedAt : quicker(copy) ? 0 : kPassed)) {
            return;
        } else {
            first = false;
        }
    }
    if (first) next_ = fetches_.size();
}

bool Schedule::valid(const ScheduledCopy &copy, std::int64_t p) const {
    return copy.ready <= p &&
        (copy.after < 0 || (copies_[copy.after].end >= 0 && copies_[copy.after].end <= p));
}

// Whether there is room from kernel p until the copy is used, as far as can be seen: what has left
// goes as fast as the engine allows.
bool Schedule::fits(std::int64_t c, std::int64_t p) {
    const ScheduledCopy &copy = copies_[c];
    if (c == refused_ && p < retry_) return false;
    for (std::int64_t k = p; k < copy.due; ++k) {
        const std::int64_t room = k_.limit[k] - used_[k] - t_.size[copy.tensor];
        if (room < 0) {
            if (c == fetches_[next_]) refused_ = c, retry_ = k + 1;
            return false;
        }
        if (held_ > room && static_cast<double>(held_ - room) > l_.drain * (clock_[k] - clock_[p]))
            return false;
    }
    return true;
}

} // namespace loadmaster::placement
