"""Hot kernels in C++; the interpreter lock is released while they run. Malformed arrays raise
ValueError."""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Indices = NDArray[np.int32]
Floats = NDArray[np.float64]
Flags = NDArray[np.uint8]
# Two dimensions: a row for each task, job, genome or mapping.
Table = NDArray[np.float64]
IntTable = NDArray[np.int64]
Cores = NDArray[np.int32]
Priorities = NDArray[np.uint32]

# Signatures with many named arguments are packed.

# Simulation. Times are picoseconds.

class TaskGraph:
    """Tasks that wait for others, checked once: the successors of task ``t`` are
    ``next[first[t]:first[t + 1]]``."""

    def __init__(self, first: Ints, next: Ints) -> None: ...
    def replay(
        self,
        *,
        duration: Ints,
        demand: Table,
        links: int,
        resource: Indices,
        resources: int,
        order: Ints,
    ) -> Replay:
        """Run every task on its resource, each resource in the order in which its tasks appear in
        ``order``.

        Tasks that run together share links: the first ``links`` columns of ``demand`` (tasks x
        columns, shares of a link's time) hold tasks back, the others are metered.
        """

    def dispatch(
        self,
        *,
        priority: Floats,
        duration: IntTable,
        demand: Floats,
        release: Ints,
        wait_for_releases: bool = False,
    ) -> Dispatch:
        """List scheduling: whenever a core is idle, start the ready task of highest priority that
        would end there first.

        ``duration`` of every task on every core, ``demand`` of that on every link (tasks x cores x
        links). No task starts before its ``release``. With ``wait_for_releases`` idle cores wait
        for tasks of higher priority that are released before others would end.
        """

class Replay:
    """Start and end of every task (-1: never ran), the ``time`` of every event, what is ``used`` of
    every column of demand from each event on (events x columns), and how many tasks were
    completed."""

    start: Ints
    end: Ints
    time: Ints
    used: Table
    completed: int

class Dispatch:
    """Core, start and end of every task, the tasks in the order in which they were started, and the
    makespan."""

    core: Indices
    order: Ints
    start: Ints
    end: Ints
    makespan: int

# Mapping of groups (M3E, HPCA 2022). Priorities are counted in parts of 2^-32, smaller first. A row
# of queues holds the jobs of every core in order, each core's closed by the number of jobs. Results
# are the same with any number of threads.

class MappingGroup:
    """A group of jobs that share one bandwidth, checked once and copied: at most 1024 cores and
    2^22 - 1 jobs.

    ``latency`` in seconds, infinite where a core cannot run a job (every job runs somewhere);
    ``demand`` as a share of the bandwidth; ``energy`` in joules; each of shape (jobs, cores). A
    mapping scores makespan ** time_weight * energy ** energy_weight.
    """

    def __init__(
        self,
        latency: Table,
        demand: Table,
        energy: Table | None = None,
        *,
        time_weight: float = 1.0,
        energy_weight: float = 0.0,
    ) -> None: ...
    def makespans(self, queues: Cores, threads: int = 1) -> Floats:
        """Seconds that each row of queues takes."""

    def decode(self, core: Cores, priority: Priorities) -> Cores:
        """Queues of genomes, a row each; a core that cannot run a job hands it to the next one that
        can."""

    def scores(self, core: Cores, priority: Priorities, threads: int = 1) -> Floats:
        """Score of every genome."""

    def evolve(
        self,
        core: Cores,
        priority: Priorities,
        score: Floats,
        *,
        mutation: float,
        crossover_gen: float,
        crossover_rg: float,
        crossover_accel: float,
        elites: int,
        parents: int,
        first_generation: int,
        generations: int,
        seed: int,
        threads: int,
    ) -> Evolution:
        """Let a scored population live for some generations of MAGMA.

        The operators are rates between 0 and 1: mutation per gene, crossovers per child. The best
        ``elites`` live on, the best ``parents`` have children. ``first_generation`` numbers the
        generations of one search, so that each has random numbers of its own.
        """

    def anneal(
        self,
        queues: Cores,
        best: Cores,
        score: Floats,
        best_score: Floats,
        *,
        temperature: Floats,
        samples: int,
        target: float,
        seed: int,
        stream: int,
        threads: int,
    ) -> Walks:
        """Anneal independent walks, a row each, over ``samples`` neighbours at a temperature each,
        or until its best scores ``target``.

        ``stream`` numbers the calls of one search, so that each has random numbers of its own.
        """

class Evolution:
    """A population that has evolved, its scores, and the best score after each generation
    (``history``)."""

    core: Cores
    priority: Priorities
    score: Floats
    history: Floats

class Walks:
    """Where walks are (``queues``) and the best that each has found, the scores of both, and how
    many neighbours were tried in all."""

    queues: Cores
    best: Cores
    score: Floats
    best_score: Floats
    tried: int

class ConfigurationPricing:
    """Kinds of jobs (rows of ``demand``, ``count`` of each) on kinds of cores (columns, ``cores``
    of each).

    The bus is counted in ``grid`` parts where branch and bound does not settle.
    """

    def __init__(self, demand: Table, count: Indices, cores: Indices, grid: int) -> None: ...
    def best(self, worth: Table, nodes: int) -> BestConfigurations:
        """What cores can run at one instant at a ``worth`` of each job on each core; ``nodes`` of
        branch and bound, twice."""

class BestConfigurations:
    """Limits that hold for any number of nodes, and configurations that come close: a kind of job,
    or -1, for every core, kinds together.

    No configuration whose demands the bus bears is worth more than ``within``; none that asks for
    more is worth more than ``beyond`` and its demand together (minus infinity: there is none).
    """

    within: float
    beyond: float
    within_jobs: Indices
    beyond_jobs: Indices

# Packing of buffers. ``status`` is "optimal", "feasible", "infeasible" or "unknown"; the first and
# the third are exhausted searches or a met load bound. ``interrupted``: a signal such as Ctrl-C
# came; its exception is cleared. The peak is the largest offset + size.

class PackingProblem:
    """n buffers with m sections in all and their demands, checked once; the arrays must not change
    afterwards.

    Each buffer has ``size``, ``alignment`` (at least 1), ``pin`` (a fixed offset, which overrides
    the alignment, or -1) and the sections ``first[i]`` .. ``first[i + 1] - 1``, which do not
    overlap: it is alive over [``begin``, ``end``) and uses its bytes ``low`` .. ``high`` then. A
    buffer that never uses a byte gets its pin or 0 and counts for no peak. Sizes and alignments
    above 2^62 in all raise OverflowError. Rows: ``aliases`` of group, member and shift, group after
    group; ``reserved`` of two addresses; ``in_place`` of two buffers and a shift; ``conflicts`` of
    two buffers, which then count instead of sections. Only `allocate`, `bound` and `merged` see to
    all demands; `place_in_order` and `place_what_fits` to reserved ranges and conflicts, the others
    to none of these.
    """

    def __init__(
        self,
        size: Ints,
        alignment: Ints,
        pin: Ints,
        first: Ints,
        begin: Ints,
        end: Ints,
        low: Ints,
        high: Ints,
        *,
        hint: Ints | None = None,
        aliases: Ints | None = None,
        reserved: Ints | None = None,
        in_place: Ints | None = None,
        conflicts: Ints | None = None,
    ) -> None: ...
    def allocate(
        self,
        capacity: int,
        *,
        seed: int = 0,
        threads: int = 1,
        seconds: float = ...,
        until_deadline: bool = False,
        work: float = 100.0,
        strategy: str = "auto",
        own: Callable[[tuple[Any, ...], int, int], tuple[Ints | None, int, bool]] | None = None,
    ) -> Packed:
        """The whole way from demands to a checked answer; ``capacity``: -1 for none, ``work``: per
        cent of the default budgets, of which ``until_deadline`` takes no notice where ``seconds``
        are limited.

        ``own`` searches in place of a strategy of the portfolio: it gets the reduced problem in
        columns as `merged` returns them, a lower bound and the capacity, and returns offsets or
        None, the bytes that any packing needs as far as it has shown, and whether it was
        interrupted.
        """

    def bound(self, capacity: int = -1) -> Packed:
        """Only the bound and its witnesses; ranges from the capacity on do not count."""

    def merged(self) -> tuple[tuple[Any, ...], Ints, Ints]:
        """Conflicts on a clock and groups as one buffer each: columns (size, alignment, pin, hint,
        first, begin, end, low, high, in-place rows, conflict rows or None); then the place of each
        buffer among these, and how far it lies above the one there."""

    def orders(self) -> list[Ints]:
        """Those of `greedy` that look for the lowest gap."""

    def place_in_order(self, order: Ints, best_fit: bool = False) -> Packed:
        """Place each buffer in turn at its lowest gap (or its tightest), pinned ones first whatever
        the order."""

    def place_what_fits(
        self, order: Ints, capacity: int, worth: Floats | None = None, nodes: int = 0
    ) -> Ints:
        """Offsets of each buffer of an order in turn at its lowest gap; -1 for those that would end
        past ``capacity``, and those that are left out. Pinned ones may overlap one another.

        With a ``worth`` of every buffer those that are left out are exchanged for others that are
        worth less in sum, for about half as long as so many ``nodes`` of `exact` take."""

    def greedy(self, *, seconds: float = ..., enough: int = 0) -> Packed:
        """The best of a family of first-fit orders. Infeasible if pinned buffers overlap.

        Stops at the load bound, at a peak of ``enough``, or after ``seconds``, never before the
        first order is through.
        """

    def exact(
        self,
        capacity: int,
        start: Ints | None = None,
        *,
        nodes: int = -1,
        seconds: float = ...,
        seed: int = 0,
        threads: int = 1,
    ) -> Packed:
        """Search for any packing within ``capacity`` bytes, or for the smallest peak if that is -1;
        offsets are all -1 if none is found.

        ``start`` is an offset per buffer (-1: none) whose order is tried first. A negative number
        of ``nodes`` is no limit; the best packing and bound so far come back if a limit ends the
        search. The answer is the same with any number of ``threads``.
        """

    def telamalloc(
        self,
        capacity: int,
        *,
        steps: int,
        features: TelamallocFeatures | None = None,
        patience: int = 200,
        seconds: float = ...,
        trees: RegressionTrees | None = None,
    ) -> Packed:
        """TelaMalloc's search for a packing within ``capacity`` bytes, by at most ``steps``
        placements; finding none proves nothing.

        After ``patience`` backtracks without getting deeper, half of the placements are undone.
        ``trees`` choose where a major backtrack goes; without them, to the latest placement to
        blame.
        """

    def record_backtracks(
        self, capacity: int, *, steps: int, every: int, horizon: int
    ) -> RecordedBacktracks:
        """TelaMalloc's search with an oracle, which tries all targets of every ``every``-th choice
        for ``horizon`` steps."""

LOADMASTER_ALLOCATE: int
"""Address of the C function `loadmaster_allocate`, which the package contains as well."""

class Packed:
    """An answer. That of `allocate` is checked, has no offsets where there is no packing, and a
    ``proof``: ``"load"``, of the ``witnesses`` at an instant, ``"pairs"`` of them, ``"exhausted"``
    or nothing."""

    status: Literal["optimal", "feasible", "infeasible", "unknown"]
    offsets: Ints | Any
    peak: int
    bound: int
    proof: str
    instant: int
    witnesses: Ints
    counters: dict[str, int]
    interrupted: bool

class TelamallocFeatures:
    """Features of TelaMalloc's search, described in
    `loadmaster.allocation.strategies.telamalloc.TelaMallocOptions`."""

    contention: bool
    rules: bool
    phases: bool
    propagate: bool
    jump: bool
    prioritise: bool
    unstick: bool
    lowest: bool
    def __init__(self) -> None: ...

class RegressionTrees:
    """A sum of regression trees over the 12 features of a backtrack target, checked once:
    `loadmaster.allocation.backtracking.trees`."""

    def __init__(
        self, root: Ints, feature: Ints, left: Ints, right: Ints, threshold: Floats, value: Floats
    ) -> None: ...

class RecordedBacktracks:
    """A row for each target: what is known of it (12 columns), the steps from there to a packing,
    and which choice it was part of.

    Steps that are missing at the horizon count as many more.
    """

    features: Table
    cost: Floats
    group: Ints
    interrupted: bool

def packing_holds(lower: Ints, upper: Ints, size: Ints, offset: Ints, peak: int) -> bool:
    """Whether no two plain buffers overlap and the highest top is ``peak``; shares nothing with the
    solvers."""

def allocate_small(lower: Ints, upper: Ints, size: Ints) -> tuple[Ints, int, int]:
    """Offsets, peak and load bound of plain buffers (no alignment, pins or gaps; 1,024 at most), as
    fast as a call allows."""

# The runtime's allocator, which stands before PyTorch's own.

class AllocationScript:
    """Allocations that a kernel is expected to make, in order: bytes, and offset in the arena (-1:
    left to the default allocator)."""

    def __init__(self, grants: list[tuple[int, int]]) -> None: ...
    def begin(self, base: int) -> None:
        """This thread's allocations follow the script from now on, in the arena at address
        ``base``."""

def end_script() -> int:
    """Back to the default allocator; how many allocations the script did not foresee."""

def install_allocator(set_allocator: int, standard: int) -> None:
    """Put the allocator before ``standard``; addresses of ``c10::SetCPUAllocator`` and of the
    default allocator. Once a process."""

def add_arena(base: int, bytes: int) -> None:
    """Memory that scripts hand out, and that is never given back to the default allocator."""

def remove_arena(base: int) -> None:
    """Forget an arena that no tensor uses any more."""

def start_recording() -> None:
    """Record this thread's allocations."""

def stop_recording() -> list[tuple[int, int, int]]:
    """For each allocation its address, its bytes, and how many were made before it was given back
    (-1: it lived on)."""

# Placement of tensors (AutoTM, ASPLOS 2020). Uses are numbered tensor by tensor, operands and
# algorithms kernel by kernel.

class PlacementProblem:
    """A kernel sequence and its limits, checked once; its arrays must not change afterwards.

    The arrays are those of `loadmaster.placement.autotm.sequence_arrays.SequenceArrays`;
    ``to_fast`` and ``to_slow`` are the seconds of a copy back before each use and of a copy out
    after it.
    """

    def __init__(
        self,
        *,
        first: Ints,
        live_range: Flags,
        size: Ints,
        kernel: Ints,
        operand: Ints,
        reads: Flags,
        writes: Flags,
        fast: Floats,
        slow: Floats,
        to_fast: Floats,
        to_slow: Floats,
        limit: Ints,
        first_operand: Ints,
        use: Ints,
        first_algorithm: Ints,
        seconds: Floats,
        workspace: Ints,
        first_entry: Ints,
        table: Floats,
    ) -> None: ...
    def bound(
        self,
        *,
        memory: Ints,
        shares: Indices,
        surcharge: Floats,
        noted: Flags,
        shift: int,
        moves: bool,
    ) -> float:
        """Seconds below which no placement comes (Lagrangian), computed in whole units of 2^-shift
        seconds and rounded down.

        ``memory`` are prices of a byte while each kernel runs, in those units; ``shares`` (kernels
        x 3) weigh arithmetic, fast and slow memory in parts of 2^-24; ``surcharge`` is for each
        use's slow place, in seconds, in kernels with tables and where uses are ``noted``.
        """

    def schedule(
        self, engines: CopyEngines, paths: TensorPaths, offsets: Ints | None = None
    ) -> ScheduledCopies:
        """When the copies of given paths run, overlapping kernels where they can.

        If stays and workspaces have addresses, a copy waits until what was there before has left:
        ``offsets``, in bytes, has an element for each stay, tensor by tensor and in order of time,
        then one for each kernel; without their copies no two of them may meet.
        """

    def search_addresses(
        self,
        engines: CopyEngines,
        paths: TensorPaths,
        offsets: Ints,
        *,
        capacity: int,
        alignment: int,
        goal: float,
        seed: int,
        nodes: int,
        seconds: float,
    ) -> FoundAddresses:
        """Improve the ``offsets`` of `schedule` until the ``goal`` in seconds is reached;
        ``nodes`` count blocks and copies."""

    def search(
        self,
        prices: UsePrices,
        *,
        guess: TensorPaths,
        base: TensorPaths,
        moves: bool,
        engines: CopyEngines,
        goal: float,
        seed: int,
        nodes: int,
        seconds: float,
    ) -> FoundPaths:
        """Place all tensors as guessed, as far as limits allow, then improve until the ``goal`` in
        seconds is reached.

        ``base`` keeps all limits. The problem has what copies cost at the prices. The budget's
        ``nodes`` count uses and kernels looked at.
        """

class FoundAddresses:
    """Addresses of stays and workspaces, and whether a time limit or a signal stopped the
    search."""

    offsets: Ints
    stopped: bool

class TensorPaths:
    """A path for every tensor: whether it is in the fast memory at each use, in the gap before each
    use, and after its last use."""

    fast: Flags
    stays: Flags
    tail: Flags
    def __init__(self, fast: Flags, stays: Flags, tail: Flags) -> None: ...

class UsePrices:
    """Seconds that a byte of fast memory costs while each kernel runs, and each use in the fast and
    in the slow memory."""

    def __init__(self, *, memory: Floats, fast: Floats, slow: Floats) -> None: ...

class CopyEngines:
    """Seconds of each tensor's copies, blocking and overlapping, in and out; the bytes/s drained
    while kernels run; one engine or two; whether copies overlap kernels at all."""

    def __init__(
        self,
        *,
        block_in: Floats,
        block_out: Floats,
        overlap_in: Floats,
        overlap_out: Floats,
        drain: float,
        shared: bool,
        overlaps: bool,
    ) -> None: ...

class ScheduledCopies:
    """Seconds of everything (infinite if a limit is exceeded), the copies in the order in which
    they start, stays without the time of their copies, and each kernel's algorithm.

    A copy of a tensor runs from position ``start`` to ``end``; at ``due`` it leaves, or is needed.
    """

    seconds: float
    tensor: Ints
    to_fast: Flags
    start: Ints
    end: Ints
    due: Ints
    stay_tensor: Ints
    stay_start: Ints
    stay_end: Ints
    algorithms: Ints

class FoundPaths:
    """Paths, their seconds, nodes and attempts spent, and whether a time limit or a signal such as
    Ctrl-C stopped the search."""

    paths: TensorPaths
    seconds: float
    nodes: int
    rounds: int
    stopped: bool

# Costs.

def choose_tilings(
    *,
    nests: Table,
    rate: Floats,
    capacity: Floats,
    style: int,
    shapes: Table,
    clock: float,
    local_buffer: float,
    network: float,
    loading: float,
    prices: Table,
    read: float,
    write: float,
    burst: float,
    accumulator: float,
    whole: bool,
) -> Table:
    """Figures of the tilings of every nest, as the fields of
    `loadmaster.cost.analytical.tiling.Tilings`, shape (nests, prices, 8).

    Rows of ``nests`` are extents and bytes (see there); ``rate`` multiply-accumulates of an element
    in a cycle and ``capacity`` bytes of private buffer for each; ``shapes`` rows and columns of the
    array; ``prices`` seconds a byte of input, weights and output, in rows, for each of which a
    tiling is chosen; ``whole`` takes nests as single tiles.
    """

# Cutting operators.

class CutProblem:
    """Operators, in an order in which they can run, and the ways to cut each, checked once; its
    arrays must not change afterwards.

    Operators have options, options pieces: those of number ``i`` begin at ``*_first[i]``. ``alone``
    is seconds of a piece on every core, ``link`` those of the near memory's link. Boxes are rows of
    a first element and the one after the last for every dimension: what a piece has ``made``, and
    what it has ``needed`` of each ``source`` of its operator. ``fetch`` is seconds of the main link
    before a piece, ``stream`` while it runs, ``copied``
    the near link's seconds for each of ``fetch``, ``given`` the bytes of each operator's weights
    and inputs, of which ``room`` fit into the fast memory while each operator runs. All run for so
    many ``mini_batches``.
    """

    def __init__(
        self,
        *,
        option_first: Ints,
        piece_first: Ints,
        need_first: Ints,
        alone: Table,
        link: Floats,
        made: IntTable,
        needed: IntTable,
        source_first: Ints,
        source: Ints,
        fetch: Floats,
        stream: Floats,
        copied: float,
        given: Ints,
        room: Ints,
        mini_batches: int,
    ) -> None: ...
    def improve(self, most: int) -> list[list[int]]:
        """Options, counted from each operator's first, by which all ends early by this model: found
        by changing one operator after the other as long as that helps, then by annealing once or
        twice, with about ``most`` pieces. The choice that ends first comes first."""
    def makespan(self, option: Ints) -> float:
        """The seconds that all take with an option for every operator."""

class BandProblem:
    """Operators in an order in which they can run, seen along their rows and along their columns,
    checked once; its arrays must not change afterwards.

    Operator ``i`` reads storages ``read[read_first[i]:read_first[i + 1]]``, and writes others.
    ``kind`` of a storage is 1 for a weight, 2 for an input. Arrays of two rows hold both axes:
    ``extent`` of each operator's result, 0 where it cannot be cut along the axis, and ``step`` of
    which its pieces are multiples; ``rows`` of each storage; and where the ``edges`` of each read
    begin, -1 for none: for each row of the result where the rows that it needs begin, and one more,
    then for each row where those of all before it end.
    """

    def __init__(
        self,
        *,
        read_first: Ints,
        read: Ints,
        read_bytes: Ints,
        write_first: Ints,
        write: Ints,
        bytes: Ints,
        kind: Ints,
        output: Ints,
        extent: IntTable,
        step: IntTable,
        rows: IntTable,
        edge: IntTable,
        edges: Ints,
    ) -> None: ...
    def ends(self, first: int, last: int, bands: int, columns: bool) -> list[list[int]]:
        """Where the steps of each operator of a stack end; one may be empty."""
    def column_tiles(
        self, first: int, last: int, column_tiles: int, columns: bool
    ) -> tuple[list[list[int]], list[list[int]]]:
        """Where the column tiles of each operator of a stack end, and what no later one
        needs."""
    def best(
        self,
        *,
        way_first: tuple[Ints, Ints],
        bands: tuple[Ints, Ints],
        channels: tuple[Ints, Ints],
        beside: tuple[Floats, Floats],
        alone: tuple[Floats, Floats],
        refill: tuple[Floats, Floats],
        by_channel: Ints,
        plain_pieces: Ints,
        plain_times: Floats,
        cores: int,
        alignment: int,
        bytes_of_piece: float,
        price: float,
        pipelined: bool,
        rooms: Ints,
        column_tiles: Ints,
    ) -> list[tuple[list[tuple[int, int, int, int, int, int]], float, float, float]]:
        """Stacks of least cost for each room: first and last operator, bands, whether of columns,
        parts of the channels, column tiles; then their cost, bytes and seconds. See
        `loadmaster.planning.cutting.stacks`."""

# Joint planning.

class JointProblem:
    """A workload on a machine for the joint planner, checked once; its arrays must not change
    afterwards.

    Operand rows are sorted by job: ``moved`` bytes of a row on every core. ``compute`` in seconds
    and ``energy_penalty`` in picoseconds have a row per job and a column per core; ``width`` is the
    seconds that each job stands for in an order, ``release`` the picosecond before which it may not
    start, and ``available`` the one before which a tensor may not be fetched. A ``producer`` of -1
    is none. Bandwidths in bytes/s, of every memory; an ``engine`` of 0 copies nothing into it.
    Where cores cannot use main memory ``in_place``, all operands of a job are in the fast memory
    while it runs.
    """

    def __init__(
        self,
        *,
        compute: Table,
        row_job: Ints,
        row_tensor: Ints,
        row_write: Flags,
        moved: IntTable,
        bytes: Ints,
        padded_bytes: Ints,
        producer: Ints,
        output: Flags,
        graph: TaskGraph,
        release: Ints,
        available: Ints,
        energy_penalty: Table,
        width: Floats,
        urgent: Flags,
        read: Floats,
        write: Floats,
        engine: Floats,
        capacity: int,
        in_place: bool,
    ) -> None: ...
    def after_sources(self, keys: Floats) -> Floats:
        """Keys of jobs raised to those of the jobs that each depends on, all of which come before
        it."""
    def evaluate(self, order: Ints, options: object) -> JointEvaluation:
        """Choose what stays in the fast memory along an order of all jobs, and run it."""

class JointEvaluation:
    """Picoseconds until all ends (-1: never), the core of every job, start and end of every task
    (jobs, then copies), the stays that are fetched or copied to main memory (``outward``), in order
    (``copies``), the tensor of every stay, the stay that serves every operand row (-1: main
    memory), and whether every tensor that jobs write comes to be in main memory."""

    makespan: int
    core: Indices
    start: Ints
    end: Ints
    copies: Ints
    outward: Flags
    stay_tensor: Ints
    row_stay: Ints
    in_main: Flags
