"""Checks that networks, operators and tensors of a plan are those of the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from pathlib import PurePath
from typing import Any

from loadmaster.planning.against.model import ReferenceNetwork
from loadmaster.planning.plan_records import PlanRecord
from loadmaster.planning.verify.facts import quoted
from loadmaster.targets.hardware import Target
from loadmaster.workloads.job import NetworkInfo


def machine(plan: PlanRecord, target: Target) -> Iterator[str]:
    """Yield a line for every field in which the plan's machine differs from the given one."""
    yield from _differences("the plan's target", plan.target, target)


def networks(plan: PlanRecord, models: Sequence[ReferenceNetwork]) -> Iterator[str]:
    """Yield the differences between the plan's networks and the models: order, sources, precisions,
    batches, inputs, outputs and remarks."""
    names = [network.name for network in plan.networks]
    given = [model.name for model in models]
    if names != given:
        yield f"the plan is of the networks {_list(names)}, and is checked against {_list(given)}"
        return
    for network, model in zip(plan.networks, models, strict=True):
        yield from (f"network {quoted(network.name)}: {line}" for line in _network(network, model))


def operators(plan: PlanRecord, models: Sequence[ReferenceNetwork]) -> Iterator[str]:
    """Yield the networks' operators that differ from the model's in data flow or, for those in
    pieces, in shapes and windows."""
    for network, model in zip(plan.networks, models, strict=True):
        label = f"network {quoted(network.name)}"
        listed = Counter(operator.name for operator in network.operators)
        for name in model.operators:
            if name not in listed:
                yield f"{label} lacks the operator {quoted(name)}"
            elif listed[name] > 1:
                yield f"{label} lists the operator {quoted(name)} more than once"
        for operator in network.operators:
            op = model.operators.get(operator.name)
            if op is None:
                yield f"{label} has no operator {quoted(operator.name)}"
                continue
            reads = tuple(model.storages(op.reads))
            writes = tuple(model.storages(op.writes))
            if (operator.reads, operator.writes) != (reads, writes):
                does = f"reads {_list(reads)} and writes {_list(writes)}"
                yield (
                    f"{label}: the operator {quoted(operator.name)} {does}, the plan says otherwise"
                )
            if operator.shape and operator.shape != model.tensor(op.writes[0].tensor).shape:
                yield (
                    f"{label}: the result of {quoted(operator.name)} has another shape than the"
                    " plan says"
                )


def tensors(plan: PlanRecord, models: Sequence[ReferenceNetwork]) -> Iterator[str]:
    """Yield tensors that differ from the model's storages in kind or shape, or whose parts do not
    have all bytes together."""
    by_name = {model.name: model for model in models}
    sizes = Counter[tuple[str, str, int]]()
    for tensor in plan.tensors:
        known = by_name[tensor.network].graph.tensors.get(tensor.storage)
        if known is None or known.alias_of is not None:
            yield (
                f"tensor {quoted(tensor.name)}: the network has no {quoted(tensor.storage)} that"
                " owns bytes"
            )
            continue
        if not tensor.summed:
            sizes[tensor.network, tensor.storage, tensor.mini_batch] += tensor.bytes
        if tensor.kind == "weight" and tensor.mini_batch:
            yield (
                f"tensor {quoted(tensor.name)} is a weight of mini-batch {tensor.mini_batch}, where"
                " all share weights"
            )
        if tensor.kind != str(known.kind):
            yield (
                f"tensor {quoted(tensor.name)} is said to be of kind {tensor.kind}, in the network"
                f" it is of kind {known.kind}"
            )
        if tensor.shape != known.shape and not (tensor.ranges and len(tensor.shape) in (1, 3)):
            yield (
                f"tensor {quoted(tensor.name)} is of another shape than {quoted(tensor.storage)}"
                " has in the network"
            )
    for (name, storage, batch), size in sizes.items():
        due = by_name[name].tensor(storage).bytes
        if size != due:
            yield (
                f"network {quoted(name)}, mini-batch {batch}: {quoted(storage)} has {size} bytes,"
                f" in the network {due}"
            )


def _network(network: NetworkInfo, model: ReferenceNetwork) -> Iterator[str]:
    """Yield the differences between a network of the plan and the model as read: source, precision,
    batch, work, inputs and outputs."""
    graph = model.graph
    if not _same_source(network.source, graph.source):
        yield f"the plan was made from {quoted(network.source)}, not from {quoted(graph.source)}"
    if network.precision != graph.precision:
        yield (
            f"the plan is for {network.precision}, the network as it was read for"
            f" {graph.precision}: give --precision as for the plan"
        )
    if network.batch != graph.batch:
        yield (
            f"the plan is for a batch of {network.batch}, the network as it was read for"
            f" {graph.batch}: give --batch as for the plan"
        )
    if network.macs != graph.macs:
        yield f"{network.macs} multiply-accumulates are planned, the network has {graph.macs}"
    for what, stated, due in (
        ("inputs", network.inputs, model.inputs),
        ("outputs", network.outputs, model.outputs),
        ("unused results", tuple(sorted(network.unused)), tuple(sorted(model.unused))),
        ("operators that are not understood", network.unknown, model.unknown),
    ):
        if stated != due:
            yield f"its {what} are {_list(due)}, the plan says {_list(stated)}"


def _same_source(stated: str, given: str) -> bool:
    """Whether two sources are one: a file may have moved, but not have changed its name."""
    return stated == given or (
        ":" not in stated + given and PurePath(stated).name == PurePath(given).name
    )


def _differences(what: str, stated: Any, due: Any) -> Iterator[str]:
    """Yield the fields in which the plan's machine differs from the given one, in nested records
    too."""
    for field in fields(due):
        one, other = getattr(stated, field.name), getattr(due, field.name)
        if one == other or field.name == "description":
            continue
        if one and is_dataclass(other):
            yield from _differences(f"{what}, {field.name}", one, other)
        elif isinstance(other, tuple) and len(one) == len(other) and is_dataclass(other[0]):
            for mine, its in zip(one, other, strict=True):
                yield from _differences(f"{what}, {field.name} {its.name}", mine, its)
        else:
            yield (
                f"{what}: {field.name} is {one!s:.60}, of the machine that was given {other!s:.60}"
            )


def _list(names: Sequence[str]) -> str:
    """Format the first names of a list."""
    shown = ", ".join(quoted(name) for name in names[:4])
    return f"[{shown}{', ...' if len(names) > 4 else ''}]"
