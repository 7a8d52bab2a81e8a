"""Hot kernels in C++; the interpreter lock is released while they run. Malformed arrays raise ValueError."""

import numpy as np
from numpy.typing import NDArray

def replay(
    duration: NDArray[np.int64],
    demand: NDArray[np.float64],
    links: int,
    resource: NDArray[np.int32],
    resources: int,
    order: NDArray[np.int64],
    first: NDArray[np.int64],
    next: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.float64], int]:
    """Start and end of every task (-1: never ran) and time of every event, in picoseconds; use of every demand column from
    each event on; and how many tasks completed.

    Only the first ``links`` columns of ``demand`` hold tasks back; the others are metered.
    """

def dispatch(
    priority: NDArray[np.float64],
    duration: NDArray[np.int64],
    demand: NDArray[np.float64],
    first: NDArray[np.int64],
    next: NDArray[np.int64],
    release: NDArray[np.int64],
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], int]:
    """Core of every task, tasks in the order in which they were started, start and end of every task, and the makespan.

    Times are picoseconds; no task starts before its ``release``.
    """

# Mapping of groups. A group is three tables, jobs x cores, always in this order:
#   latency (infinite where a core cannot run a job; every job runs somewhere), demand (share of the bandwidth), energy (or empty),
# then the exponents of makespan and energy in the score. Priorities are counted in parts of 2^-32, smaller first. A row of queues holds
# the jobs of every core in order, each core's closed by the number of jobs. At most 1024 cores and 2^22 - 1 jobs.

def group_makespans(
    latency: NDArray[np.float64], demand: NDArray[np.float64], queues: NDArray[np.int32], threads: int
) -> NDArray[np.float64]:
    """Makespan of every row of queues."""

def decode(
    latency: NDArray[np.float64], demand: NDArray[np.float64], core: NDArray[np.int32], priority: NDArray[np.uint32]
) -> NDArray[np.int32]:
    """Queues of genomes, a row each; a core that cannot run a job hands it to the next one that can."""

def group_scores(
    latency: NDArray[np.float64],
    demand: NDArray[np.float64],
    energy: NDArray[np.float64],
    time_weight: float,
    energy_weight: float,
    core: NDArray[np.int32],
    priority: NDArray[np.uint32],
    threads: int,
) -> NDArray[np.float64]:
    """Score of every genome."""

def evolve(
    latency: NDArray[np.float64],
    demand: NDArray[np.float64],
    energy: NDArray[np.float64],
    time_weight: float,
    energy_weight: float,
    core: NDArray[np.int32],
    priority: NDArray[np.uint32],
    score: NDArray[np.float64],
    rates: tuple[float, float, float, float],
    elites: int,
    parents: int,
    first_generation: int,
    generations: int,
    seed: int,
    threads: int,
) -> tuple[NDArray[np.int32], NDArray[np.uint32], NDArray[np.float64], NDArray[np.float64]]:
    """MAGMA: the population after some generations, its scores, and the best score after each.

    ``rates`` are those of mutation, crossover-gen, crossover-rg and crossover-accel.
    """

def best_configurations(
    worth: NDArray[np.float64], demand: NDArray[np.float64], cores: NDArray[np.int32], grid: int
) -> tuple[float, float, NDArray[np.int32], NDArray[np.int32]]:
    """What cores can run at one instant: at most this worth within the bus, at most this worth less demand beyond it, and such choices.

    ``worth`` and ``demand`` of kinds of jobs (rows) on kinds of cores (columns), ``cores`` of each kind. A choice names a kind of job,
    or -1, for every core, cores of a kind together. O(cores x grid x kinds of jobs); both limits are sound for any ``grid``.
    """

def anneal(
    latency: NDArray[np.float64],
    demand: NDArray[np.float64],
    energy: NDArray[np.float64],
    time_weight: float,
    energy_weight: float,
    queues: NDArray[np.int32],
    best: NDArray[np.int32],
    score: NDArray[np.float64],
    best_score: NDArray[np.float64],
    temperature: NDArray[np.float64],
    samples: int,
    target: float,
    seed: int,
    stream: int,
    threads: int,
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float64], NDArray[np.float64], int]:
    """Independent walks, a row each, over ``samples`` neighbours at a temperature each.

    Returns where they are, their best, the scores of both, and how many neighbours were tried.

    ``stream`` numbers the calls of one search, so that each has random numbers of its own.
    """

# Allocation. A set of n buffers is eight int64 arrays, always in this order:
#   size[n], alignment[n] (at least 1), pin[n] (fixed offset, or -1),
#   first[n + 1]: the sections of buffer i are first[i] .. first[i + 1] - 1,
#   begin[m], end[m]: the half-open lifetime of each section; sections of one buffer may not overlap; an empty one counts for nothing,
#   low[m], high[m]: the bytes of the buffer that are in use during the section: 0 <= low <= high <= size.
# Buffers that never use a byte get their pin or 0 and count for no peak; a pin overrides the alignment.
# The peak is the largest offset + size. Sums of size and alignment above 2^62 raise OverflowError.
# `status` is "optimal", "feasible", "infeasible" or "unknown"; the first and third are exhausted searches or a met load bound.

def load_bound(
    size: NDArray[np.int64],
    first: NDArray[np.int64],
    begin: NDArray[np.int64],
    end: NDArray[np.int64],
    low: NDArray[np.int64],
    high: NDArray[np.int64],
) -> tuple[int, int]:
    """Most bytes in use at once, and the first instant at which they are (0, 0 if there is nothing)."""

def place_in_order(
    size: NDArray[np.int64],
    alignment: NDArray[np.int64],
    pin: NDArray[np.int64],
    first: NDArray[np.int64],
    begin: NDArray[np.int64],
    end: NDArray[np.int64],
    low: NDArray[np.int64],
    high: NDArray[np.int64],
    order: NDArray[np.int64],
    best_fit: bool,
) -> tuple[NDArray[np.int64], int]:
    """Each buffer in turn at its lowest gap (or its tightest), pinned ones first whatever the order: offsets and peak."""

def place_what_fits(
    size: NDArray[np.int64],
    alignment: NDArray[np.int64],
    pin: NDArray[np.int64],
    first: NDArray[np.int64],
    begin: NDArray[np.int64],
    end: NDArray[np.int64],
    low: NDArray[np.int64],
    high: NDArray[np.int64],
    order: NDArray[np.int64],
    capacity: int,
) -> NDArray[np.int64]:
    """Each buffer in turn at its lowest gap; -1 for those that would end past ``capacity`` there. None may be pinned."""

def allocate_greedy(
    size: NDArray[np.int64],
    alignment: NDArray[np.int64],
    pin: NDArray[np.int64],
    first: NDArray[np.int64],
    begin: NDArray[np.int64],
    end: NDArray[np.int64],
    low: NDArray[np.int64],
    high: NDArray[np.int64],
    hint: NDArray[np.int64],
    seconds: float,
    enough: int = 0,
) -> tuple[str, NDArray[np.int64], int, int, str, bool]:
    """The best of a family of first-fit orders: status, offsets, peak, lower bound, name of the order, interrupted.

    Stops at the load bound, at a peak of ``enough``, or after ``seconds``, never before the first order is through.
    """

def fit_exact(
    size: NDArray[np.int64],
    alignment: NDArray[np.int64],
    pin: NDArray[np.int64],
    first: NDArray[np.int64],
    begin: NDArray[np.int64],
    end: NDArray[np.int64],
    low: NDArray[np.int64],
    high: NDArray[np.int64],
    hint: NDArray[np.int64],
    capacity: int,
    nodes: int,
    seconds: float,
    seed: int,
    rules: int,
    threads: int,
) -> tuple[str, NDArray[np.int64], int, int, int, bool]:
    """Any packing within ``capacity``: status, offsets, peak, lower bound, nodes, interrupted.

    ``hint`` is empty or an offset per buffer (-1: none); ``nodes`` < 0 is no limit; ``seconds`` may be ``inf``; ``rules`` is -1 for all
    inference rules, or a sum of bits: 1 section inference, 2 dominance, 4 levels, 8 decomposition, 16 identical buffers, 32 memory of
    failed states, 64 buffers alive throughout, 128 preprocessing. The answer is the same with any number of ``threads``.
    Status is "feasible", "infeasible" or "unknown" (offsets all -1).
    ``interrupted`` says that a signal such as Ctrl-C came: its exception is cleared, raise it again if you like.
    """

def minimise_exact(
    size: NDArray[np.int64],
    alignment: NDArray[np.int64],
    pin: NDArray[np.int64],
    first: NDArray[np.int64],
    begin: NDArray[np.int64],
    end: NDArray[np.int64],
    low: NDArray[np.int64],
    high: NDArray[np.int64],
    hint: NDArray[np.int64],
    nodes: int,
    seconds: float,
    seed: int,
    rules: int,
    threads: int,
) -> tuple[str, NDArray[np.int64], int, int, int, bool]:
    """The smallest peak: status, offsets, peak, proven lower bound, nodes, interrupted; anytime. Arguments as for ``fit_exact``."""

def packing_holds(
    lower: NDArray[np.int64], upper: NDArray[np.int64], size: NDArray[np.int64], offset: NDArray[np.int64], peak: int
) -> bool:
    """Whether no two plain buffers overlap and the highest top is ``peak``: compares all pairs and shares nothing with the solvers."""

def allocate_small(lower: NDArray[np.int64], upper: NDArray[np.int64], size: NDArray[np.int64]) -> tuple[NDArray[np.int64], int, int]:
    """Plain buffers (no alignment, pins or gaps; 4,096 at most), as fast as a call allows: offsets, peak, load bound."""

def telamalloc(
    size: NDArray[np.int64],
    alignment: NDArray[np.int64],
    pin: NDArray[np.int64],
    first: NDArray[np.int64],
    begin: NDArray[np.int64],
    end: NDArray[np.int64],
    low: NDArray[np.int64],
    high: NDArray[np.int64],
    capacity: int,
    features: int,
    patience: int,
    steps: int,
    seconds: float,
    root: NDArray[np.int64],
    feature: NDArray[np.int64],
    left: NDArray[np.int64],
    right: NDArray[np.int64],
    threshold: NDArray[np.float64],
    value: NDArray[np.float64],
) -> tuple[bool, NDArray[np.int64], tuple[int, int, int, int], bool]:
    """TelaMalloc's search: whether it found a packing, offsets, (steps, minor backtracks, major backtracks, attempts), interrupted.

    ``features`` is -1 for all, or a sum of bits: 1 contention, 2 three rules, 4 phases, 8 propagator, 16 jumps, 32 priorities, 64 stuck
    detection, 128 lowest place first. The last six arrays are a sum of regression trees that chooses where to go back to (``root`` empty:
    none): children come after their parents, ``feature`` is -1 at a leaf.
    """

def telamalloc_lessons(
    size: NDArray[np.int64],
    alignment: NDArray[np.int64],
    pin: NDArray[np.int64],
    first: NDArray[np.int64],
    begin: NDArray[np.int64],
    end: NDArray[np.int64],
    low: NDArray[np.int64],
    high: NDArray[np.int64],
    capacity: int,
    steps: int,
    every: int,
    horizon: int,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64], bool]:
    """TelaMalloc's search with an oracle, which tries all targets of every ``every``-th choice for ``horizon`` steps.

    A row for each target: what is known of it, steps from there (those missing at the horizon count as many more), and which choice it
    was part of; then whether a signal came.
    """

def first_conflict(
    size: NDArray[np.int64],
    alignment: NDArray[np.int64],
    pin: NDArray[np.int64],
    first: NDArray[np.int64],
    begin: NDArray[np.int64],
    end: NDArray[np.int64],
    low: NDArray[np.int64],
    high: NDArray[np.int64],
    capacity: int,
    order: NDArray[np.int64],
    offset: NDArray[np.int64],
) -> tuple[bool, NDArray[np.int64], NDArray[np.int64], int]:
    """TelaMalloc's propagator alone: buffers are placed in turn, at their lowest offset or higher, until that cannot end well.

    Whether all went well, where each was tried, and, if not, positions in ``order`` of the placements to blame and the buffer that fits
    nowhere (-1: no single one).
    """

# The runtime's allocator, which stands before PyTorch's own.

class AllocationScript:
    """Allocations that a kernel is expected to make, in order: bytes, and offset in the arena (-1: left to the default allocator)."""

    def __init__(self, grants: list[tuple[int, int]]) -> None: ...
    def begin(self, base: int) -> None:
        """This thread's allocations follow the script from now on, in the arena at address ``base``."""

def end_script() -> int:
    """Back to the default allocator; how many allocations the script did not foresee."""

def install_allocator(set_allocator: int, standard: int) -> None:
    """Put the allocator before ``standard``; addresses of ``c10::SetCPUAllocator`` and of the default allocator. Once a process."""

def add_arena(base: int, bytes: int) -> None:
    """Memory that scripts hand out, and that is never given back to the default allocator."""

def remove_arena(base: int) -> None:
    """Forget an arena that no tensor uses any more."""

def start_recording() -> None:
    """Record this thread's allocations."""

def stop_recording() -> list[tuple[int, int, int]]:
    """For each allocation its address, its bytes, and how many were made before it was given back (-1: it lived on)."""

# Placement of tensors. A problem is two tuples of arrays, as `placement.lifetimes.Lifetimes.native` gives them.

def lagrangian_bound(
    tensors: tuple[NDArray[np.generic], ...],
    kernels: tuple[NDArray[np.generic], ...],
    memory: NDArray[np.int64],
    shares: NDArray[np.int32],
    surcharge: NDArray[np.float64],
    noted: NDArray[np.uint8],
    shift: int,
    moves: bool,
) -> float:
    """Seconds below which no placement comes, computed in whole units of 2^-shift seconds and rounded down.

    ``memory`` are prices of a byte while each kernel runs, in those units; ``shares`` (kernels x 3) weigh arithmetic, fast and slow
    memory in parts of 2^-24; ``surcharge`` is for each use's slow place, in seconds, in kernels with tables and where uses are ``noted``.
    """

def schedule_copies(
    tensors: tuple[NDArray[np.generic], ...],
    kernels: tuple[NDArray[np.generic], ...],
    links: tuple[NDArray[np.float64], ...],
    drain: float,
    shared: bool,
    lives: tuple[NDArray[np.uint8], ...],
) -> tuple[float, NDArray[np.int64], NDArray[np.int64]]:
    """When the copies of given lives run: seconds of all (infinite if a limit is exceeded), copies in the order in which they start, each
    (tensor, to fast, start, end, position where it leaves or is needed), and each kernel's algorithm.

    ``links`` are each tensor's seconds of a blocking copy in, out, and of an overlapping one in, out; ``drain`` the bytes/s copied out.
    """

def search_overlapping(
    tensors: tuple[NDArray[np.generic], ...],
    kernels: tuple[NDArray[np.generic], ...],
    prices: tuple[NDArray[np.float64], ...],
    links: tuple[NDArray[np.float64], ...],
    drain: float,
    shared: bool,
    lives: tuple[NDArray[np.uint8], ...],
    goal: float,
    seed: int,
    nodes: int,
    time: float,
) -> tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.uint8], float, int, bool, bool]:
    """Better lives (fast, stays, tail), their seconds with copies scheduled, attempts, stopped early, by a signal.

    ``tensors`` have what copies cost at the ``prices``: of memory per byte and kernel, of each use in the fast and the slow memory. The
    budget's ``nodes`` count uses and kernels scheduled.
    """

def search_lives(
    tensors: tuple[NDArray[np.generic], ...],
    kernels: tuple[NDArray[np.generic], ...],
    prices: tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]],
    lives: tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.uint8], NDArray[np.uint8], NDArray[np.int64]],
    base: tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.uint8]],
    moves: bool,
    goal: float,
    seed: int,
    nodes: int,
    time: float,
) -> tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.uint8], float, int, bool, bool]:
    """Whether each tensor is in the fast memory at its uses, in the gaps before them, and after the last; seconds; lives found; whether
    a time limit or a signal stopped it; whether a signal did.

    ``prices``: of a byte while each kernel runs, and of each use in the fast and in the slow memory. ``lives``: which tensors to place as
    given, their places at uses, in gaps and at the end, and the order of placing. ``base``: places that keep all limits.
    """

class JointProblem:
    """A workload on a machine for the joint planner: see ``src/native/joint/joint.hpp``. Arguments are checked once."""

    def __init__(
        self,
        compute: NDArray[np.float64],
        row_job: NDArray[np.int64],
        row_tensor: NDArray[np.int64],
        row_write: NDArray[np.uint8],
        moved: NDArray[np.int64],
        bytes: NDArray[np.int64],
        room: NDArray[np.int64],
        producer: NDArray[np.int64],
        output: NDArray[np.uint8],
        first: NDArray[np.int64],
        next: NDArray[np.int64],
        release: NDArray[np.int64],
        reluctance: NDArray[np.float64],
        speeds: NDArray[np.float64],
        capacity: int,
    ) -> None: ...
    def evaluate(
        self,
        order: NDArray[np.int64],
        priority: NDArray[np.float64],
        width: NDArray[np.float64],
        room: int,
        keep: int,
        lead: int,
        slack: int,
        fetch_once: bool,
        fast_price: float,
        crowd: float,
        regret: float,
        thrift: float,
        hold: int,
    ) -> tuple[
        int,
        float,
        NDArray[np.int32],
        NDArray[np.int64],
        NDArray[np.int64],
        NDArray[np.int64],
        NDArray[np.int64],
        NDArray[np.int64],
    ]:
        """Makespan (-1: it never ends), seconds of the main link, core of every job, start and end of every task (jobs, then fetches), the
        stays in the order in which they are fetched, the tensor of every stay, and the stay that serves every operand (-1: main memory)."""
