"""From a graph and a machine to the kernels that tensor placement sees: seconds of arithmetic, and of each memory for each operand.

Costs are those of a roofline: arithmetic as in :func:`loadmaster.cost.analytical.job_costs.job_costs`, and each operand's bytes over the read or write
bandwidth of the memory that it is in. The arithmetic and the memories work at the same time; nothing is added for launching a kernel.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from loadmaster.core.errors import PlacementError
from loadmaster.cost.analytical.job_costs import Costs, job_costs
from loadmaster.cost.kernels.algorithms import algorithms
from loadmaster.placement.sequence import CopyLink, Kernel, KernelSequence, Operand, StoredKind, StoredTensor
from loadmaster.targets.hardware import Core, Memory, Target
from loadmaster.workloads.graph import Access, Graph, Op, OpClass, TensorKind
from loadmaster.workloads.job import Job, Role, TensorInstance, Workload
from loadmaster.workloads.job import Operand as JobOperand

_FREE = frozenset({OpClass.VIEW, OpClass.SHAPE})


@dataclass(frozen=True, slots=True)
class _Use:
    """A kernel's use of one storage: bytes that it reads and writes of it, by their role in the loop nests."""

    tensor: str
    read: int
    write: int


def kernel_sequence(graph: Graph, target: Target) -> KernelSequence:
    """Kernels of a graph on a machine with one core, a main memory and a fast one.

    Kernels and tensors are called as the operators and storages of the graph; views and operators that are known at planning time are no
    kernels. A kernel that writes a part of a tensor reads it too, because the rest must be there.

    Raises
    ------
    PlacementError
        The machine has several cores or no fast memory, or nothing is left to run.

    Notes
    -----
    O(operators + operands).
    """
    core, fast = _machine(target)
    ops = [op for op in graph.ops if op.op_class not in _FREE]
    uses = _uses(graph, ops)
    if not any(uses):
        raise PlacementError(f"{graph.source}: nothing to place: every operator is a view or a constant")
    kept = [(op, own) for op, own in zip(ops, uses, strict=True) if own]
    ops, uses = [op for op, _ in kept], [own for _, own in kept]
    costs = job_costs(_workload(graph, ops, uses), target)
    number = {name: i for i, name in enumerate(dict.fromkeys(use.tensor for own in uses for use in own))}
    kernels = tuple(_kernels(graph, ops, uses, costs, number, core, fast, target.main))
    return KernelSequence(
        name=graph.name,
        tensors=tuple(StoredTensor(name, graph.tensors[name].bytes, kind) for name, kind in _kinds(graph, uses, number).items()),
        kernels=kernels,
        link=copy_link(target),
        alignment=fast.alignment,
        notes=(f"kernel times are estimated: a roofline of {target.name}", *_unknown(graph)),
    )


def _machine(target: Target) -> tuple[Core, Memory]:
    if len(target.cores) > 1:
        names = ", ".join(core.name for core in target.cores)
        raise PlacementError(
            f"{target.name} has {len(target.cores)} cores ({names}), and kernels run on one: leave one, as in optane-server or gpu-pcie"
        )
    if target.fast is None:
        raise PlacementError(f"{target.name} has no fast memory: give one a capacity")
    return target.cores[0], target.fast


def copy_link(target: Target) -> CopyLink:
    """Bandwidths of copies between a machine's memories; without a ``copy`` table, those of the slower memory of each direction."""
    if target.copy is not None:
        copy = target.copy
        return CopyLink(copy.to_fast, copy.to_main, copy.asynchronous_to_fast, copy.asynchronous_to_main, copy.shared)
    assert target.fast is not None
    to_fast = min(target.main.read_bandwidth, target.fast.write_bandwidth)
    to_main = min(target.fast.read_bandwidth, target.main.write_bandwidth)
    return CopyLink(to_fast, to_main, to_fast, to_main)


def _uses(graph: Graph, ops: list[Op]) -> list[list[_Use]]:
    """Storages that each operator reads and writes, with the bytes of each; reads of what nothing has written yet are left out."""
    there = {name for name, tensor in graph.tensors.items() if tensor.kind is not TensorKind.ACTIVATION}
    found = []
    for op in ops:
        reads, writes = _by_storage(graph, op.reads), _by_storage(graph, op.writes)
        own = []
        for name in dict.fromkeys((*reads, *writes)):
            read, write, size = reads.get(name, 0), writes.get(name, 0), graph.tensors[name].bytes
            if name not in there:
                read = 0
            elif 0 < write < size and not read:
                # What is not overwritten stays: the kernel needs it, and moves none of it.
                own.append(_Use(name, -1, write))
                continue
            if size and (read or write):
                own.append(_Use(name, read, write))
        there.update(name for name, write in writes.items() if write)
        found.append(own)
    return found


def _by_storage(graph: Graph, accesses: Iterable[Access]) -> dict[str, int]:
    """Bytes touched of every storage: views of different parts add up, to the whole at most."""
    total: dict[str, int] = {}
    for access in accesses:
        tensor = graph.tensors[access.tensor]
        total[tensor.storage] = min(graph.tensors[tensor.storage].bytes, total.get(tensor.storage, 0) + access.bytes)
    return total


def _kinds(graph: Graph, uses: list[list[_Use]], number: Mapping[str, int]) -> dict[str, StoredKind]:
    """Whose each tensor is; a weight that is overwritten before it is read is an output, as its old bytes do not matter."""
    fresh: dict[str, bool] = {}
    for use in (use for own in uses for use in own):
        fresh.setdefault(use.tensor, use.read == 0)
    outputs = {graph.tensors[name].storage for name in graph.outputs}
    kinds = {}
    for name in number:
        kind = graph.tensors[name].kind
        if kind is TensorKind.WEIGHT and fresh[name]:
            kinds[name] = StoredKind.OUTPUT
        elif kind is TensorKind.ACTIVATION:
            kinds[name] = StoredKind.OUTPUT if name in outputs else StoredKind.INTERMEDIATE
        else:
            kinds[name] = StoredKind.WEIGHT if kind is TensorKind.WEIGHT else StoredKind.INPUT
    return kinds


def _workload(graph: Graph, ops: list[Op], uses: list[list[_Use]]) -> Workload:
    """One job for each operator, unfused: what the cost model of jobs takes."""
    jobs = []
    for op, own in zip(ops, uses, strict=True):
        roles = _roles(graph, op)
        reads = tuple(JobOperand(use.tensor, use.read, *roles.get((use.tensor, False), _ONCE)) for use in own if use.read > 0)
        writes = tuple(JobOperand(use.tensor, use.write, *roles.get((use.tensor, True), _ONCE)) for use in own if use.write)
        jobs.append(Job(op.name, graph.name, 0, op.kind, (op.name,), op.nests, op.elements, op.bits, reads, writes, ()))
    names = dict.fromkeys(use.tensor for own in uses for use in own)
    tensors = tuple(TensorInstance(name, graph.name, name, 0, graph.tensors[name].bytes, graph.tensors[name].kind) for name in names)
    return Workload((), tuple(jobs), tensors)


_ONCE = (Role.ONCE, -1)


def _roles(graph: Graph, op: Op) -> dict[tuple[str, bool], tuple[Role, int]]:
    """What storages are to the loop nests, by whether they are written; the first nest that has them counts."""
    roles: dict[tuple[str, bool], tuple[Role, int]] = {}
    for i, nest in enumerate(op.nests):
        for role, name in ((Role.INPUT, nest.input), (Role.WEIGHT, nest.weight), (Role.OUTPUT, nest.output)):
            if name in graph.tensors:
                roles.setdefault((graph.tensors[name].storage, role is Role.OUTPUT), (role, i))
    return roles


def _kernels(
    graph: Graph, ops: list[Op], uses: list[list[_Use]], costs: Costs, number: Mapping[str, int], core: Core, fast: Memory, main: Memory
) -> Iterable[Kernel]:
    (kind,) = costs.kinds
    # Rows of the table are the operands that move bytes, reads before writes, kernel by kernel.
    moved = iter(kind.moved.tolist())
    for op, own, seconds in zip(ops, uses, kind.seconds.tolist(), strict=True):
        read = {use.tensor: next(moved) for use in own if use.read > 0}
        written = {use.tensor: next(moved) for use in own if use.write}
        operands = []
        for use in own:
            bytes_read, bytes_written = read.get(use.tensor, 0), written.get(use.tensor, 0)
            slow = bytes_read / main.read_bandwidth + bytes_written / main.write_bandwidth if main.in_place else math.inf
            quick = bytes_read / fast.read_bandwidth + bytes_written / fast.write_bandwidth
            operands.append(Operand(number[use.tensor], use.read != 0, use.write > 0, quick, slow))
        yield Kernel(op.name, op.kind, tuple(operands), algorithms(graph, op, seconds, core, fast))


def _unknown(graph: Graph) -> tuple[str, ...]:
    names = ", ".join(f"{kind} x{count}" for kind, count in sorted(graph.unknown_ops.items()))
    return (f"not understood, costed with their bytes and no arithmetic: {names}",) if names else ()
