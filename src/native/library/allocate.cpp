// The C interface of the allocator: problems in, checked answers out, no exception across the
// border.
#include "loadmaster/allocate.h"

#include "allocation/policy.hpp"
#include "allocation/verify.hpp"
#include "common/deep_thread.hpp"
#include "common/limits.hpp"
#include "common/require.hpp"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <map>
#include <new>
#include <numeric>
#include <stdexcept>
#include <string>

using namespace loadmaster::allocation;
using loadmaster::kLargestTotal;
using loadmaster::require;

namespace {

constexpr std::size_t kMessage = sizeof(loadmaster_result::message);
// So many buffers are searched on the stack of the caller, which is sooner there than a thread.
constexpr std::size_t kShallow = 64;

void require_few(const loadmaster_problem &problem) {
    require(
        problem.buffer_count < (std::size_t{1} << 30) && problem.gap_count < (std::size_t{1} << 29),
        "problem: too many buffers or gaps");
}

void require_arrays(const loadmaster_problem &problem) {
    require(problem.buffers || problem.buffer_count == 0, "problem: buffers is null");
    require(problem.gaps || problem.gap_count == 0, "problem: gaps is null");
    require(problem.reserved || problem.reserved_count == 0, "problem: reserved is null");
    require(problem.in_place || problem.in_place_count == 0, "problem: in_place is null");
    require(problem.conflicts || problem.conflict_count == 0, "problem: conflicts is null");
    require(problem.without_clock || problem.conflict_count == 0,
        "problem: conflicts are for buffers without_clock; with lifetimes, these say who meets");
    require(problem.alignment >= 0 && problem.alignment < (std::int64_t{1} << 40),
        "problem: alignment must be from 0 to 2^40");
    require(problem.capacity >= 0 && problem.capacity < kLargestTotal,
        "problem: capacity must be from 0 to 2^62");
}

// Gaps by buffer, in order of time.
std::vector<loadmaster_gap> sorted_gaps(const loadmaster_problem &problem) {
    std::vector<loadmaster_gap> gaps(problem.gaps, problem.gaps + problem.gap_count);
    for (const loadmaster_gap &gap : gaps) {
        require(gap.buffer < problem.buffer_count, "gap: names a buffer that does not exist");
        const loadmaster_buffer &buffer = problem.buffers[gap.buffer];
        require(buffer.start <= gap.start && gap.start <= gap.end && gap.end <= buffer.end,
            gap.buffer, "gap: not within the lifetime");
        require(0 <= gap.low && gap.low <= gap.high && gap.high <= buffer.size, gap.buffer,
            "gap: not within the bytes of the buffer");
    }
    std::ranges::sort(gaps, [](const loadmaster_gap &a, const loadmaster_gap &b) {
        return a.buffer != b.buffer ? a.buffer < b.buffer
            : a.start != b.start    ? a.start < b.start
                                    : a.low < b.low;
    });
    return gaps;
}

// What a buffer occupies, between its gaps and in them.
void add_sections(const loadmaster_buffer &buffer, const loadmaster_gap *gap,
    const loadmaster_gap *last, OwnedBuffers &to) {
    std::int64_t now = buffer.start;
    for (; gap != last; ++gap) {
        if (now < gap->start) to.add_section(now, gap->start, 0, buffer.size);
        if (gap->low < gap->high && gap->start < gap->end)
            to.add_section(gap->start, gap->end, gap->low, gap->high);
        now = std::max(now, gap->end);
    }
    if (now < buffer.end) to.add_section(now, buffer.end, 0, buffer.size);
}

// `owned` is where the arrays go that the demands view.
Demands demands_of(const loadmaster_problem &problem, OwnedBuffers &owned) {
    require_arrays(problem);
    const std::vector<loadmaster_gap> gaps = sorted_gaps(problem);
    const std::int64_t common = std::max<std::int64_t>(problem.alignment, 1);
    Demands demands;
    std::map<std::int64_t, std::size_t> number;
    std::vector<std::int64_t> lowest;
    for (std::size_t b = 0; b < problem.buffer_count; ++b) {
        const loadmaster_buffer &buffer = problem.buffers[b];
        if (buffer.group == 0) continue;
        require(
            buffer.shift >= 0 && buffer.shift < kLargestTotal, b, "shift: must be from 0 to 2^62");
        const auto [at, fresh] = number.try_emplace(buffer.group, demands.aliases.size());
        if (fresh) demands.aliases.emplace_back(), lowest.push_back(buffer.shift);
        demands.aliases[at->second].push_back({static_cast<std::int64_t>(b), buffer.shift});
        lowest[at->second] = std::min(lowest[at->second], buffer.shift);
    }
    auto gap = gaps.data(), end = gaps.data() + gaps.size();
    for (std::size_t b = 0; b < problem.buffer_count; ++b) {
        const loadmaster_buffer &buffer = problem.buffers[b];
        require(buffer.size >= 0 && buffer.size < kLargestTotal, b, "size: must be from 0 to 2^62");
        require(buffer.alignment >= 0 && buffer.alignment < kLargestTotal, b,
            "alignment: must be from 0 to 2^62");
        require(-kLargestTotal < buffer.start && buffer.start <= buffer.end &&
                buffer.end < kLargestTotal,
            b, "start, end: out of range, or end before start");
        require(!buffer.pinned || (buffer.offset >= 0 && buffer.offset < kLargestTotal), b,
            "offset: must be from 0 to 2^62");
        const bool within = buffer.group != 0 && buffer.shift > lowest[number[buffer.group]];
        const std::int64_t own = std::max<std::int64_t>(buffer.alignment, 1),
                           factor = within ? 1 : common / std::gcd(own, common);
        require(own < kLargestTotal / factor, b,
            "alignment: no common multiple with that of all buffers below 2^62");
        owned.add(buffer.size, own * factor, buffer.pinned ? buffer.offset : -1, -1);
        const auto first = gap;
        while (gap != end && gap->buffer == b) ++gap;
        if (problem.without_clock) // also with an empty lifetime it is kept apart
            owned.add_section(buffer.start, std::max(buffer.end, buffer.start + 1), 0, buffer.size);
        else
            add_sections(buffer, first, gap, owned);
    }
    demands.buffers = owned.view(), demands.hint = owned.hint;
    for (std::size_t g = 0; g < demands.aliases.size(); ++g)
        for (Member &member : demands.aliases[g]) member.shift -= lowest[g];
    for (std::size_t r = 0; r < problem.reserved_count; ++r)
        demands.reserved.push_back({problem.reserved[r].low, problem.reserved[r].high});
    const auto index = [&](std::size_t buffer) {
        require(buffer < problem.buffer_count, "pair: names a buffer that does not exist");
        return static_cast<std::int64_t>(buffer);
    };
    for (std::size_t i = 0; i < problem.in_place_count; ++i) {
        const loadmaster_pair &pair = problem.in_place[i];
        demands.in_place.push_back({index(pair.one), index(pair.other), pair.shift});
    }
    if (problem.without_clock) demands.conflicts.emplace();
    for (std::size_t i = 0; i < problem.conflict_count; ++i)
        demands.conflicts->push_back(
            {index(problem.conflicts[i].one), index(problem.conflicts[i].other)});
    return demands;
}

Effort effort_of(const loadmaster_limits *limits) {
    Effort effort;
    if (!limits) return effort;
    require(limits->seconds >= 0, "limits: seconds must not be negative");
    require(limits->work >= 0 && limits->work <= 1'000'000,
        "limits: work must be from 0 to 1,000,000 per cent");
    require(
        limits->threads >= 0 && limits->threads <= 1024, "limits: threads must be from 0 to 1,024");
    effort.seed = limits->seed;
    effort.threads = std::max<std::int64_t>(limits->threads, 1);
    if (limits->work > 0) effort.work = static_cast<double>(limits->work);
    if (limits->seconds > 0) effort.stop_after(limits->seconds);
    effort.until_deadline = true;
    if (limits->cancel)
        effort.poll = [cancel = limits->cancel, context = limits->context] {
            return cancel(context) != 0;
        };
    return effort;
}

loadmaster_status status_of(Status status) {
    switch (status) {
    case Status::optimal:
        return LOADMASTER_OPTIMAL;
    case Status::feasible:
        return LOADMASTER_FEASIBLE;
    case Status::infeasible:
        return LOADMASTER_INFEASIBLE;
    default:
        return LOADMASTER_UNKNOWN;
    }
}

loadmaster_proof proof_of(Proof proof) {
    switch (proof) {
    case Proof::load:
        return LOADMASTER_LOAD;
    case Proof::pairs:
        return LOADMASTER_PAIRS;
    case Proof::exhausted:
        return LOADMASTER_EXHAUSTED;
    default:
        return LOADMASTER_NO_PROOF;
    }
}

void fill(const Allocation &answer, std::int64_t buffers, std::int64_t *offsets,
    unsigned char *witnesses, loadmaster_result &result) {
    result.status = status_of(answer.status);
    result.proof = proof_of(answer.proof);
    result.peak = answer.peak;
    result.bound = answer.bound;
    result.instant = answer.load.instant;
    result.nodes = answer.counters.nodes;
    result.interrupted = answer.interrupted;
    std::ranges::copy(answer.offset, offsets);
    if (witnesses)
        for (std::int64_t b : answer.witnesses)
            if (b < buffers) witnesses[b] = 1; // beyond are reserved ranges
}

// Calls `body`; what it throws becomes a status and a message.
template <typename Body> loadmaster_status guarded(char *message, const Body &body) noexcept {
    const auto say = [&](const char *what, loadmaster_status status) {
        if (message) std::snprintf(message, kMessage, "%s", what);
        return status;
    };
    try {
        return body();
    } catch (const std::bad_alloc &) {
        return say("out of memory", LOADMASTER_NO_MEMORY);
    } catch (const std::invalid_argument &error) {
        return say(error.what(), LOADMASTER_INVALID);
    } catch (const std::overflow_error &error) {
        return say(error.what(), LOADMASTER_INVALID);
    } catch (const std::exception &error) {
        return say(error.what(), LOADMASTER_ERROR);
    } catch (...) {
        return say("an unknown error", LOADMASTER_ERROR);
    }
}

} // namespace

loadmaster_status loadmaster_allocate(const loadmaster_problem *problem,
    const loadmaster_limits *limits, int64_t *offsets, unsigned char *witnesses,
    loadmaster_result *result) {
    if (!result) return LOADMASTER_INVALID;
    *result = {};
    result->status = guarded(result->message, [&] {
        require(problem, "problem: is null");
        require(offsets || problem->buffer_count == 0, "offsets: is null");
        require_few(*problem);
        std::fill_n(offsets, problem->buffer_count, -1);
        if (witnesses) std::fill_n(witnesses, problem->buffer_count, static_cast<unsigned char>(0));
        OwnedBuffers owned;
        const Demands demands = demands_of(*problem, owned);
        check(demands);
        const Effort effort = effort_of(limits);
        const auto solve = [&] {
            result->status = guarded(result->message, [&] {
                const std::int64_t capacity = problem->capacity > 0 ? problem->capacity : -1;
                const auto count = static_cast<std::int64_t>(problem->buffer_count);
                fill(allocate(demands, capacity, effort), count, offsets, witnesses, *result);
                return result->status;
            });
        };
        if (problem->buffer_count <= kShallow)
            solve();
        else
            loadmaster::DeepThread thread(solve);
        return result->status;
    });
    return result->status;
}

int loadmaster_verify(const loadmaster_problem *problem, const int64_t *offsets, char *message) {
    if (message) *message = 0;
    return guarded(message, [&] {
        require(problem, "problem: is null");
        require(offsets || problem->buffer_count == 0, "offsets: is null");
        require_few(*problem);
        OwnedBuffers owned;
        const Demands demands = demands_of(*problem, owned);
        check(demands);
        const auto broken = broken_rule(demands, {offsets, problem->buffer_count},
            problem->capacity > 0 ? problem->capacity : -1);
        if (broken) throw std::invalid_argument(*broken);
        return LOADMASTER_OPTIMAL;
    }) == LOADMASTER_OPTIMAL;
}

const char *loadmaster_status_name(loadmaster_status status) {
    switch (status) {
    case LOADMASTER_OPTIMAL:
        return "optimal";
    case LOADMASTER_FEASIBLE:
        return "feasible";
    case LOADMASTER_INFEASIBLE:
        return "infeasible";
    case LOADMASTER_UNKNOWN:
        return "unknown";
    case LOADMASTER_INVALID:
        return "invalid";
    case LOADMASTER_NO_MEMORY:
        return "out of memory";
    default:
        return "error";
    }
}

const char *loadmaster_version(void) { return LOADMASTER_VERSION; }
