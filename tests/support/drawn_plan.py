"""Plans for reports to draw."""

from dataclasses import replace

from tests.support.networks import residual_chain

import loadmaster as lm
from loadmaster.planning.plan_records import Cost, MemoryUse, PlannedJob, Rate

BLOCKS = {"resnet50": 8, "mobilenet_v2": 8}


def drawn_plan(blocks=None, mini_batches=2, notes=()):
    """Networks of so many residual blocks on a machine that copies much of what they need; the last
    one has an operator that is not understood."""
    graphs = [residual_chain(count, name, 48) for name, count in (blocks or BLOCKS).items()]
    machine = lm.target("edge-npu", ["scratchpad.capacity=64KiB", "dram.bandwidth=2 GB/s"])
    plan = lm.plan(graphs, machine, mini_batches=mini_batches, effort="test", cut="none", seed=7)
    last = replace(plan.networks[-1], unknown=("GridSample",))
    return replace(plan, networks=(*plan.networks[:-1], last), notes=notes, search=())


def empty(plan):
    """The same machine with nothing to do."""
    nothing, none = Cost(0.0, 0.0), Rate(0.0, 0.0)
    old = plan.metrics
    metrics = replace(
        old,
        makespan=nothing,
        throughput=none,
        inferences_per_second=none,
        utilisation=dict.fromkeys(old.utilisation, none),
        traffic=dict.fromkeys(old.traffic, nothing),
        memory={name: MemoryUse(0, 0, use.capacity) for name, use in old.memory.items()},
        energy=nothing,
        energy_by=dict.fromkeys(old.energy_by, 0.0),
        latency={},
    )
    parts = ("networks", "mini_batches", "tensors", "jobs", "allocations", "transfers", "notes")
    records = dict.fromkeys(parts, ())
    return replace(plan, metrics=metrics, links=dict.fromkeys(plan.links, ()), **records)


def rename(plan, network, tensor):
    """The same plan with other names for its first network and first tensor, everywhere."""
    old_network, old_tensor = plan.networks[0].name, plan.tensors[0].name

    def named(item):
        changes = {}
        if getattr(item, "network", None) == old_network:
            changes["network"] = network
        if getattr(item, "name", None) in (old_network, old_tensor):
            changes["name"] = network if item.name == old_network else tensor
        if getattr(item, "tensor", None) == old_tensor:
            changes["tensor"] = tensor
        if isinstance(item, PlannedJob):
            changes |= {
                "reads": tuple(map(named, item.reads)),
                "writes": tuple(map(named, item.writes)),
            }
        return replace(item, **changes)

    parts = {
        f: tuple(map(named, getattr(plan, f)))
        for f in ("networks", "mini_batches", "tensors", "jobs", "allocations", "transfers")
    }
    return replace(plan, **parts)
