"""Costs the kernels of a graph on a machine, for tensor placement: seconds of arithmetic, and of
each memory for each operand.

Costs are those of a roofline: arithmetic as in
:func:`loadmaster.cost.analytical.job_costs.job_costs`, and each operand's bytes over the read or
write bandwidth of the memory that it is in. The arithmetic and the memories work at the same time;
nothing is added for launching a kernel. Convolutions may have a second algorithm, Winograd's, with
its workspace.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

from loadmaster.core.arguments import validate_arguments
from loadmaster.core.errors import PlacementError
from loadmaster.cost.analytical.job_costs import job_costs
from loadmaster.cost.analytical.nests import kind_of, width_of
from loadmaster.cost.kernels.work import Amount, KernelWork, SequenceWork, UsedTensor
from loadmaster.placement.sequence import (
    Algorithm,
    CopyLink,
    Kernel,
    KernelOperand,
    KernelSequence,
    StoredKind,
    StoredTensor,
)
from loadmaster.targets.hardware import CopyEngine, Core, Memory, Target
from loadmaster.workloads.graph import FREE, Access, Graph, Op, TensorKind, uncounted
from loadmaster.workloads.job import Job, Role, TensorInstance, Workload
from loadmaster.workloads.job import Operand as JobOperand

_TILE = 4
"""Rows and columns of outputs in a Winograd tile, for F(4x4, 3x3)."""
_TRANSFORMED = (_TILE + 2) ** 2
"""Elements of a transformed tile, and multiplications for it, instead of 9 for each of its 16
outputs."""

_Uses = dict[str, tuple[int | None, int | None]]
"""Bytes that a kernel reads and writes of each storage, None for one that it does not read, or not
write; it reads 0 where it needs the rest and moves none of it."""


def kernel_sequence(graph: Graph, target: Target) -> KernelSequence:
    """Make the kernel sequence of a graph on a machine with one core, a main memory and a fast
    one."""
    _machine(target)
    return cost_kernels(kernel_work(graph), target)


@validate_arguments(PlacementError)
def kernel_work(graph: Graph) -> SequenceWork:
    """List the kernels of a graph, with the arithmetic and bytes that they have on any machine.

    Kernels and tensors are called as the operators and storages of the graph; views and operators
    that are known at planning time are no kernels. A kernel that writes a part of a tensor reads it
    too, because the rest must be there.

    Raises
    ------
    PlacementError
        Nothing is left to run.

    Notes
    -----
    O(operators + operands).
    """
    ops = [op for op in graph.ops if op.op_class not in FREE]
    uses = _uses(graph, ops)
    if not any(uses):
        raise PlacementError(
            f"{graph.source}: nothing to place: every operator is a view or a constant"
        )
    number = {name: i for i, name in enumerate(dict.fromkeys(name for own in uses for name in own))}
    return SequenceWork(
        name=graph.name,
        tensors=tuple(_kinds(graph, uses, number)),
        kernels=tuple(
            _work(graph, op, own, number) for op, own in zip(ops, uses, strict=True) if own
        ),
        notes=(uncounted(graph.unknown_kinds),) if graph.unknown_ops else (),
    )


def cost_kernels(work: SequenceWork, target: Target) -> KernelSequence:
    """Cost kernels on a machine with one core, a main memory and a fast one.

    Raises
    ------
    PlacementError
        The machine has several cores or no fast memory.

    Notes
    -----
    O(kernels + operands).
    """
    core, fast = _machine(target)
    main = target.main
    (kind,) = job_costs(_workload(work), target).kinds
    # Rows of the table are the operands that move bytes, reads before writes, kernel by kernel.
    moved = iter(kind.moved.tolist())
    kernels = []
    for kernel, seconds in zip(work.kernels, kind.seconds.tolist(), strict=True):
        read = [next(moved) if use.read and use.read.bytes else 0 for use in kernel.operands]
        written = [next(moved) if use.write and use.write.bytes else 0 for use in kernel.operands]
        operands = tuple(
            KernelOperand(
                use.tensor,
                use.read is not None,
                use.write is not None,
                fast.link_seconds(*moving),
                main.link_seconds(*moving) if main.in_place else math.inf,
            )
            for use, *moving in zip(kernel.operands, read, written, strict=True)
        )
        chosen = _algorithms(kernel, seconds, core, fast)
        kernels.append(Kernel(kernel.name, kernel.kind, operands, chosen))
    return KernelSequence(
        name=work.name,
        tensors=work.tensors,
        kernels=tuple(kernels),
        link=copy_link(target),
        alignment=fast.alignment,
        notes=work.notes,
        costs=(target.costs_by("roofline", len(work.kernels)),),
        page=main.page,
    )


def _machine(target: Target) -> tuple[Core, Memory]:
    """Return the core and the fast memory of a target; raise PlacementError unless it has one of
    each."""
    if len(target.cores) > 1:
        names = ", ".join(core.name for core in target.cores)
        raise PlacementError(
            f"{target.name} has {len(target.cores)} cores ({names}), and kernels run on one: leave"
            " one, as in optane-server or gpu-pcie"
        )
    if target.fast is None:
        raise PlacementError(f"{target.name} has no fast memory: give one a capacity")
    return target.cores[0], target.fast


def copy_link(target: Target) -> CopyLink:
    """Return the bandwidths of copies between the memories; without a ``copy`` table, the slower
    memory's in each direction."""
    assert target.fast is not None
    to_fast = min(target.main.read_bandwidth, target.fast.write_bandwidth)
    to_main = min(target.fast.read_bandwidth, target.main.write_bandwidth)
    engine = target.copy or CopyEngine((to_main, to_fast), (to_main, to_fast))
    (to_main, to_fast), (later_main, later_fast) = engine.blocking, engine.overlapping
    return CopyLink(to_fast, to_main, later_fast, later_main, engine.shared)


def _uses(graph: Graph, ops: list[Op]) -> list[_Uses]:
    """Return the storages that each operator reads and writes, with the bytes of each. Reads before
    the first write are left out."""
    there = {
        name for name, tensor in graph.tensors.items() if tensor.kind is not TensorKind.ACTIVATION
    }
    found = []
    for op in ops:
        reads = _by_storage(graph, op.reads)
        writes = _by_storage(graph, op.writes)
        own: _Uses = {}
        for name in dict.fromkeys((*reads, *writes)):
            read = (reads.get(name) or None) if name in there else None
            write = writes.get(name) or None
            if read is None and write and name in there and write < graph.tensors[name].bytes:
                # What is not overwritten stays: the kernel needs it, and moves none of it.
                read = 0
            if read or write:
                own[name] = read, write
        there.update(name for name, write in writes.items() if write)
        found.append(own)
    return found


def _by_storage(graph: Graph, accesses: Iterable[Access]) -> dict[str, int]:
    """Return the bytes touched of every storage: views of different parts add up, to the whole at
    most."""
    total: dict[str, int] = {}
    for access in accesses:
        tensor = graph.tensors[access.tensor]
        total[tensor.storage] = min(
            graph.tensors[tensor.storage].bytes, total.get(tensor.storage, 0) + access.bytes
        )
    return total


def _kinds(graph: Graph, uses: list[_Uses], number: Mapping[str, int]) -> Iterator[StoredTensor]:
    """Return the tensors with their kinds. A weight that is overwritten before it is read is an
    output, as its old bytes do not matter."""
    first = {name: own[name] for own in reversed(uses) for name in own}
    outputs = {graph.tensors[name].storage for name in graph.outputs}
    plain = {TensorKind.WEIGHT: StoredKind.WEIGHT, TensorKind.ACTIVATION: StoredKind.INTERMEDIATE}
    for name in number:
        tensor = graph.tensors[name]
        kind = plain.get(tensor.kind, StoredKind.INPUT)
        if (kind is StoredKind.WEIGHT and first[name][0] is None) or (
            kind is StoredKind.INTERMEDIATE and name in outputs
        ):
            kind = StoredKind.OUTPUT
        yield StoredTensor(name, tensor.bytes, kind)


def _work(graph: Graph, op: Op, own: _Uses, number: Mapping[str, int]) -> KernelWork:
    """Return an operator's work as a kernel; ``own`` holds the bytes it reads and writes of each
    tensor."""
    roles = _roles(graph, op)

    def amount(name: str, moved: int | None, write: bool) -> Amount | None:
        """Return the bytes of an access with its role in a loop nest; None without an access."""
        if not moved:
            return None if moved is None else Amount(0)
        return Amount(moved, *roles.get((name, write), ()))

    operands = tuple(
        UsedTensor(number[name], amount(name, read, False), amount(name, written, True))
        for name, (read, written) in own.items()
    )
    result = graph.tensors.get(op.nests[0].output) if op.nests else None
    return KernelWork(
        op.name,
        op.kind,
        operands,
        op.nests,
        op.elements,
        op.bits,
        result.count if result else 0,
    )


def _roles(graph: Graph, op: Op) -> dict[tuple[str, bool], tuple[Role, int]]:
    """Return the role of storages in the loop nests, by storage and whether it is written, from the
    first nest that has it."""
    roles: dict[tuple[str, bool], tuple[Role, int]] = {}
    for i, nest in enumerate(op.nests):
        for role, name in (
            (Role.INPUT, nest.input),
            (Role.WEIGHT, nest.weight),
            (Role.OUTPUT, nest.output),
        ):
            if name in graph.tensors:
                roles.setdefault((graph.tensors[name].storage, role is Role.OUTPUT), (role, i))
    return roles


def _workload(work: SequenceWork) -> Workload:
    """Return the kernels as unfused jobs with the operands that move bytes, for the cost model of
    jobs."""

    def moved(amounts: Iterable[tuple[int, Amount | None]]) -> tuple[JobOperand, ...]:
        """Return the operands that move bytes."""
        return tuple(
            JobOperand(str(t), amount.bytes, amount.role, amount.nest)
            for t, amount in amounts
            if amount and amount.bytes
        )

    jobs = []
    for kernel in work.kernels:
        reads = moved((use.tensor, use.read) for use in kernel.operands)
        writes = moved((use.tensor, use.write) for use in kernel.operands)
        done = (kernel.nests, kernel.elements, kernel.bits)
        jobs.append(
            Job(kernel.name, work.name, 0, kernel.kind, (kernel.name,), *done, reads, writes, ())
        )
    tensors = tuple(
        TensorInstance(str(t), work.name, tensor.name, 0, tensor.bytes, tensor.kind)
        for t, tensor in enumerate(work.tensors)
    )
    return Workload((), tuple(jobs), tensors)


def _algorithms(
    kernel: KernelWork, seconds: float, core: Core, fast: Memory
) -> tuple[Algorithm, ...]:
    """Return the direct algorithm in ``seconds``, and Winograd's for 3x3 convolutions of stride 1
    if the core has ``winograd``.

    Winograd's is F(4x4, 3x3), Lavin and Gray (CVPR 2016), not fused: transformed inputs, outputs
    and filters of all tiles lie in the workspace, and are written and read once at the fast
    memory's bandwidth, before and after a quarter of the multiplications at the rate that direct
    ones have. Both are assumptions: libraries come near them for many channels, and are worse for
    few.
    """
    direct = Algorithm("direct", seconds)
    if not core.winograd or not kernel.nests:
        return (direct,)
    nest = kernel.nests[0]
    positions = nest.groups * nest.batch * nest.y * nest.x
    plain = (nest.r, nest.s, nest.stride, nest.dilation, nest.repeats) == (3, 3, (1, 1), (1, 1), 1)
    # The loops of a strided convolution's gradient run over fewer positions than its result has.
    if not plain or kernel.outputs != positions * nest.k:
        return (direct,)
    width = width_of(kernel.bits)
    tiles = nest.groups * nest.batch * math.ceil(nest.y / _TILE) * math.ceil(nest.x / _TILE)
    elements = _TRANSFORMED * (tiles * (nest.c + nest.k) + nest.groups * nest.c * nest.k)
    workspace = elements * width // 8
    products = kernel.macs - nest.macs + _TRANSFORMED * tiles * nest.c * nest.k
    rate = core.lanes * core.clock * core.efficiency.get(kind_of(kernel.kind, kernel.nests), 1.0)
    array = (seconds - core.start_up) * products / kernel.macs
    busy = core.start_up + max(array, kernel.elements / rate)
    found = Algorithm("winograd", busy + fast.link_seconds(workspace, workspace), workspace)
    return (direct, found) if found.seconds < seconds else (direct,)
