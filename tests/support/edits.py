"""Ways to change the plans made by hand, for the tests that break them."""

from dataclasses import replace

from tests.support.hand_plan import copying_plan, finished, shared_plan, streams, tiles, us

from loadmaster.workloads.job import NetworkTiming

SHARED, COPYING = shared_plan(), copying_plan()


def edit(plan, part, which, /, **changes):
    """The plan with the records of one part that match changed; there must be some."""
    records = getattr(plan, part)
    assert any(which(record) for record in records)
    return replace(
        plan,
        **{
            part: tuple(
                replace(record, **changes) if which(record) else record for record in records
            )
        },
    )


def named(name):
    return lambda record: record.name == name


def in_memory(name, memory, start=None):
    return lambda a: (
        (a.tensor, a.memory) == (name, memory) and (start is None or a.start == us(start))
    )


def job(name, /, plan=SHARED, **changes):
    return edit(plan, "jobs", named(name), **changes)


def copied(name, /, **changes):
    return edit(COPYING, "transfers", named(name), **changes)


def allocation(name, memory, start=None, /, *, plan=SHARED, **changes):
    return edit(plan, "allocations", in_memory(name, memory, start), **changes)


def streamed(plan):
    """The plan with the tiles, transfers, curves and figures that follow from its jobs and
    copies."""
    shared = {memory.name for memory in plan.target.memories}
    allocations = (
        *(a for a in plan.allocations if a.memory in shared),
        *tiles(plan.target, plan.jobs),
    )
    transfers = (*streams(plan.jobs), *(t for t in plan.transfers if not t.job))
    return finished(replace(plan, allocations=allocations, transfers=transfers))


def with_operand(name, part, tensor, /, plan=SHARED, **changes):
    record = next(record for record in plan.jobs if record.name == name)
    operands = tuple(
        replace(operand, **changes) if operand.tensor == tensor else operand
        for operand in getattr(record, part)
    )
    return streamed(job(name, plan, **{part: operands}))


def without(plan, part, which):
    records = getattr(plan, part)
    kept = tuple(record for record in records if not which(record))
    assert len(kept) < len(records)
    return replace(plan, **{part: kept})


def plus(plan, part, *records):
    return replace(plan, **{part: (*getattr(plan, part), *records)})


def figure(name, /, plan=SHARED, **changes):
    if name == "makespan":
        plan = replace(plan, objective=replace(plan.objective, **changes))
    return replace(
        plan,
        metrics=replace(plan.metrics, **{name: replace(getattr(plan.metrics, name), **changes)}),
    )


def entry(name, key, /, **changes):
    figures = getattr(SHARED.metrics, name)
    return replace(
        SHARED,
        metrics=replace(
            SHARED.metrics, **{name: figures | {key: replace(figures[key], **changes)}}
        ),
    )


def mini_batch(network, number, **changes):
    return edit(
        SHARED, "mini_batches", lambda b: (b.network, b.number) == (network, number), **changes
    )


def timed(period, deadline, release=20, missed=False):
    """The shared plan when the second mini-batch of ``net``, which runs from 20 to 40, comes after
    a period; microseconds."""
    batches = tuple(
        replace(b, release=us(release) if b.number else 0.0, missed=missed)
        if b.network == "net"
        else b
        for b in SHARED.mini_batches
    )
    return finished(
        replace(
            SHARED, timings=(NetworkTiming("net", us(period), us(deadline)),), mini_batches=batches
        )
    )


def main_memory(plan=SHARED, **changes):
    return replace(plan, target=plan.target.with_memory(0, **changes))


def without_job(name, tensor):
    plan = without(without(SHARED, "jobs", named(name)), "tensors", named(tensor))
    return streamed(without(plan, "allocations", lambda a: a.tensor == tensor))


def stream(name, tensor, /, **changes):
    return finished(
        edit(SHARED, "transfers", lambda t: (t.job, t.tensor) == (name, tensor), **changes)
    )


def with_network(name, /, **changes):
    return edit(SHARED, "networks", named(name), **changes)


def on_cores(plan=SHARED, **changes):
    return replace(
        plan,
        target=replace(
            plan.target, cores=tuple(replace(core, **changes) for core in plan.target.cores)
        ),
    )


def with_bits(bits):
    """The shared plan as if all networks were planned at another width, with the energy that
    takes."""
    plan = edit(
        edit(SHARED, "jobs", lambda _: True, bits=bits, energy=5e-9),
        "networks",
        lambda _: True,
        precision=f"fp{bits}",
    )
    return finished(plan)


def without_reading(name):
    """The plan without a job's operands, and without all that they ask for."""
    return streamed(job(name, reads=(), after=()))


def without_result():
    """The copying plan as if nothing needed ``n/h``."""
    plan = without(
        without(COPYING, "tensors", named("n/h")), "allocations", lambda a: a.tensor == "n/h"
    )
    plan = without(plan, "transfers", lambda t: t.name.endswith(" h"))
    last = next(record for record in plan.jobs if record.name == "n/s@0")
    plan = job("n/s@0", job("n/p@0", plan, writes=()), reads=last.reads[1:], after=("n/q@0",))
    return streamed(plan)
