/* Addresses for buffers whose lifetimes are known: the packing of Loadmaster as a C library.
 *
 * Every buffer gets an offset in one memory so that no two that are alive together overlap. Without
 * a capacity the highest address in use (the peak) is made as low as the search can; with one, any
 * packing that fits will do. Every answer comes with a lower bound on the peak and with what proves
 * it, and every packing is checked by code of its own before it is handed out.
 *
 * A structure that is zero but for the fields of interest asks for nothing more: {size, alignment,
 * start, end} is a whole buffer. All numbers are bytes, or instants of any clock; lifetimes are
 * half-open, [start, end). Numbers must stay below 2^62 in all.
 *
 * Calls share no state: any number of threads may call at once. No exception leaves the library.
 * The same input and seed give the same answer on every machine and any number of threads, unless a
 * time limit strikes. Memory grows with n log n, but for pairs that are alive together in the exact
 * search (up to 8 million). More than 64 buffers are searched in a thread with a stack of its own,
 * as that search recurses once for each: a caller needs no more than 64 KiB.
 *
 * Not in the library, only in the Python package: several memories, and the small set of buffers
 * that explains why nothing fits. */
#ifndef LOADMASTER_ALLOCATE_H
#define LOADMASTER_ALLOCATE_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define LOADMASTER_API
#else
#define LOADMASTER_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct loadmaster_buffer {
    int64_t size;      /* bytes; with none the buffer takes no space and conflicts with nothing */
    int64_t alignment; /* its offset is a multiple of it; 0 means 1 */
    int64_t start;     /* first instant */
    int64_t end;       /* the instant after the last; equal to start: never alive */
    int64_t pinned;    /* not 0: its offset must be `offset` */
    int64_t offset;
    int64_t group; /* not 0: buffers of one group (aliases) move as one, and may share bytes with
                      each other */
    int64_t shift; /* how far it lies above its group's lowest member, whose shift may be 0 */
} loadmaster_buffer;

/* Instants at which a buffer is absent, or occupies only some of its bytes, [low, high). Several
 * windows of one buffer at the same instants must not overlap; other gaps of one buffer must be
 * apart in time. */
typedef struct loadmaster_gap {
    size_t buffer; /* index */
    int64_t start, end;
    int64_t low, high; /* equal: absent */
} loadmaster_gap;

/* Addresses [low, high) at which nothing is ever occupied. What is taken for a while only is a
 * pinned buffer. */
typedef struct loadmaster_range {
    int64_t low, high;
} loadmaster_range;

/* Two buffers, by index. In place: they may lie so that `other` is `shift` bytes above `one`,
 * instead of being apart. In conflict: they must be apart, and `shift` means nothing. */
typedef struct loadmaster_pair {
    size_t one, other;
    int64_t shift;
} loadmaster_pair;

typedef struct loadmaster_problem {
    const loadmaster_buffer *buffers;
    size_t buffer_count;
    const loadmaster_gap *gaps;
    size_t gap_count;
    const loadmaster_range *reserved;
    size_t reserved_count;
    int64_t
        alignment; /* of all buffers, but for those within a group only of its address; 0 means 1 */
    int64_t capacity; /* bytes; 0: make the peak as low as possible */
    const loadmaster_pair *in_place;
    size_t in_place_count;
    int64_t without_clock; /* not 0: only `conflicts` must be apart, whatever lifetimes (also empty
                              ones) and gaps say */
    const loadmaster_pair *conflicts;
    size_t conflict_count;
} loadmaster_problem;

typedef struct loadmaster_limits {
    double seconds; /* the best so far comes back; 0: no limit */
    int64_t work; /* per cent of the default work, which takes at most some seconds; 0 means 100 */
    uint64_t seed;
    /* At most so many at once; 0 means 1. They help where simple orders and a short exact search do
     * not settle up to 2,000 buffers: then engines work side by side. Two threads take some 0.6 to
     * 0.7 of the time of one, four 0.5 to 0.6. Larger sets gain nothing: each search goes on from
     * what the one before it has found. */
    int64_t threads;
    /* Called about 20 times a second, in a thread of the library, if not null: the best so far
     * comes back once it returns anything but 0. */
    int (*cancel)(void *context);
    void *context;
} loadmaster_limits;

typedef enum loadmaster_status {
    LOADMASTER_OPTIMAL = 0,    /* no packing has a lower peak, proven */
    LOADMASTER_FEASIBLE = 1,   /* a packing */
    LOADMASTER_INFEASIBLE = 2, /* nothing fits into the capacity, proven */
    LOADMASTER_UNKNOWN = 3,    /* no packing was found within the limits, which proves nothing */
    LOADMASTER_INVALID = 4,    /* the problem makes no sense; `message` says why */
    LOADMASTER_NO_MEMORY = 5,
    LOADMASTER_ERROR = 6 /* a defect of the library; `message` says which */
} loadmaster_status;

typedef enum loadmaster_proof {
    LOADMASTER_NO_PROOF = 0,
    LOADMASTER_LOAD = 1,      /* at `instant` the witnesses need `bound` bytes; with reserved ranges
                                 below them, and rounded to alignments */
    LOADMASTER_EXHAUSTED = 2, /* the search has looked everywhere */
    LOADMASTER_PAIRS = 3 /* each two of the witnesses are alive together at some instant, and all of
                            them have `bound` bytes; a group counts as one */
} loadmaster_proof;

typedef struct loadmaster_result {
    loadmaster_status status;
    loadmaster_proof proof; /* of LOADMASTER_OPTIMAL and LOADMASTER_INFEASIBLE */
    int64_t peak;           /* where the highest buffer ends, gaps or not; 0 without a packing */
    int64_t bound;          /* bytes that any packing needs */
    int64_t instant;        /* of LOADMASTER_LOAD */
    int64_t nodes;          /* of the exact search: work done */
    int32_t interrupted;    /* the time limit struck, or the call was cancelled */
    char message[160];      /* empty, or what is wrong */
} loadmaster_result;

/* Packs. `offsets` has room for an offset of each buffer; without a packing they are -1.
 * `witnesses`, if not null, has room for a byte for each buffer: 1 for those that LOADMASTER_LOAD
 * or LOADMASTER_PAIRS speaks of, else 0. `limits` may be null. Returns `result->status`. */
LOADMASTER_API loadmaster_status loadmaster_allocate(const loadmaster_problem *problem,
    const loadmaster_limits *limits, int64_t *offsets, unsigned char *witnesses,
    loadmaster_result *result);

/* Checks offsets against a problem: 1 if they hold, 0 if not; `message`, if not null, has room for
 * 160 characters that say what is wrong. */
LOADMASTER_API int loadmaster_verify(
    const loadmaster_problem *problem, const int64_t *offsets, char *message);

/* For people: "optimal", "feasible" and so on. */
LOADMASTER_API const char *loadmaster_status_name(loadmaster_status status);

/* "0.1.0" */
LOADMASTER_API const char *loadmaster_version(void);

#ifdef __cplusplus
}
#endif

#endif
