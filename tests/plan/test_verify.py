"""The verifier accepts good plans and names the rule and the culprit of every way to break one."""

import ast
import math
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hand_plan import copying_plan, finished, long_plan, place, shared_plan, streams, tensor, us
from hypothesis import given, settings
from hypothesis import strategies as st

import loadmaster.verification
from loadmaster.plans import Plan, PlannedAllocation, PlannedOperand, PlannedTransfer
from loadmaster.verification import RULES, verify
from loadmaster.verification.facts import Facts
from loadmaster.verification.memory import overlaps
from loadmaster.verification.movement import Need, _late

SHARED, COPYING = shared_plan(), copying_plan()


@pytest.mark.parametrize("plan", [SHARED, COPYING, long_plan(3), long_plan(301, 3)], ids=["shared", "copying", "short", "long"])
def test_good_plans_hold(plan: Plan) -> None:
    assert verify(plan) == ()


def edit(plan: Plan, part: str, which: Callable[[Any], bool], /, **changes: Any) -> Plan:
    """The plan with the records of one part that match changed; there must be some."""
    records = getattr(plan, part)
    assert any(which(record) for record in records)
    return replace(plan, **{part: tuple(replace(record, **changes) if which(record) else record for record in records)})


def named(name: str) -> Callable[[Any], bool]:
    return lambda record: record.name == name


def in_memory(name: str, memory: str, start: float | None = None) -> Callable[[Any], bool]:
    return lambda a: (a.tensor, a.memory) == (name, memory) and (start is None or a.start == us(start))


def job(name: str, /, plan: Plan = SHARED, **changes: Any) -> Plan:
    return edit(plan, "jobs", named(name), **changes)


def copied(name: str, /, **changes: Any) -> Plan:
    return edit(COPYING, "transfers", named(name), **changes)


def allocation(name: str, memory: str, start: float | None = None, /, *, plan: Plan = SHARED, **changes: Any) -> Plan:
    return edit(plan, "allocations", in_memory(name, memory, start), **changes)


def streamed(plan: Plan) -> Plan:
    """The plan with the transfers, curves and figures that follow from its jobs and copies."""
    return finished(replace(plan, transfers=(*streams(plan.jobs), *(t for t in plan.transfers if not t.job))))


def with_operand(name: str, part: str, tensor: str, /, plan: Plan = SHARED, **changes: Any) -> Plan:
    record = next(record for record in plan.jobs if record.name == name)
    operands = tuple(replace(operand, **changes) if operand.tensor == tensor else operand for operand in getattr(record, part))
    return streamed(job(name, plan, **{part: operands}))


def without(plan: Plan, part: str, which: Callable[[Any], bool]) -> Plan:
    records = getattr(plan, part)
    kept = tuple(record for record in records if not which(record))
    assert len(kept) < len(records)
    return replace(plan, **{part: kept})


def plus(plan: Plan, part: str, *records: Any) -> Plan:
    return replace(plan, **{part: (*getattr(plan, part), *records)})


def figure(name: str, /, plan: Plan = SHARED, **changes: Any) -> Plan:
    return replace(plan, metrics=replace(plan.metrics, **{name: replace(getattr(plan.metrics, name), **changes)}))


def entry(name: str, key: str, /, **changes: Any) -> Plan:
    figures = getattr(SHARED.metrics, name)
    return replace(SHARED, metrics=replace(SHARED.metrics, **{name: figures | {key: replace(figures[key], **changes)}}))


def main_memory(plan: Plan = SHARED, **changes: Any) -> Plan:
    return replace(plan, target=replace(plan.target, main=replace(plan.target.main, **changes)))


def without_job(name: str, tensor: str) -> Plan:
    plan = without(without(SHARED, "jobs", named(name)), "tensors", named(tensor))
    return streamed(without(plan, "allocations", lambda a: a.tensor == tensor))


def stream(name: str, tensor: str, /, **changes: Any) -> Plan:
    return finished(edit(SHARED, "transfers", lambda t: (t.job, t.tensor) == (name, tensor), **changes))


SCRATCH_CURVE = SHARED.links["scratchpad"]
LENT = PlannedTransfer("net/w", "dram", "b", 64, us(10), us(20), job="net/fc@0")
FAST_HOST = main_memory(COPYING, read_bandwidth=1e11, write_bandwidth=1e11)

BREAKS: dict[str, tuple[Plan, set[str], str]] = {
    # Numbers, names, references, times: what the other rules rely on.
    "negative offset": (allocation("net/h@1", "scratchpad", offset=-64), {"number"}, "offset of the allocation of 'net/h@1' in scratchpad"),
    "time that is no number": (job("net/fc@0", start=math.nan), {"number"}, "start of job 'net/fc@0'"),
    "endless time": (job("net/fc@0", end=math.inf), {"number"}, "end of job 'net/fc@0'"),
    "far time": (copied("load x", end=1e300), {"number"}, "end of copy 'load x'"),
    "huge bytes": (edit(SHARED, "tensors", named("net/w"), bytes=2**63), {"number"}, "bytes of tensor 'net/w'"),
    "no bandwidth": (main_memory(read_bandwidth=0.0), {"number"}, "read_bandwidth of memory 'dram' is 0"),
    "no alignment": (main_memory(alignment=0), {"number"}, "alignment of memory 'dram' is 0"),
    "makespan beyond all bounds": (figure("makespan", value=1e300), {"number"}, "value of the cost record"),
    "lying infinity": (figure("makespan", lower_bound=-math.inf), {"number"}, "lower_bound"),
    "same job twice": (job("net/fc@0", name="net/conv@0"), {"name"}, "2 times a job or copy is called 'net/conv@0'"),
    "job called like a copy": (copied("load x", name="n/p@0"), {"name"}, "'n/p@0'"),
    "same tensor twice": (edit(SHARED, "tensors", named("net/x@1"), name="net/x@0"), {"name"}, "'net/x@0'"),
    "same core twice": (replace(SHARED, target=replace(SHARED.target, cores=SHARED.target.cores * 2)), {"name"}, "'a'"),
    "copy without a name": (copied("load x", name=""), {"name"}, "a job or copy has no name"),
    "unknown core": (job("net/fc@0", core="c"), {"reference"}, "job 'net/fc@0' names the core 'c'"),
    "unknown network": (job("net/fc@0", network="nut"), {"reference"}, "job 'net/fc@0' names the network 'nut'"),
    "unknown tensor": (job("net/fc@0", reads=(PlannedOperand("?", "dram", 1),)), {"reference"}, "job 'net/fc@0' names the tensor '?'"),
    "operand in a buffer": (job("net/fc@0", reads=(PlannedOperand("net/w", "a", 1),)), {"reference"}, "the shared memory 'a'"),
    "unknown predecessor": (job("net/fc@0", after=("net/canv@0",)), {"reference"}, "job 'net/fc@0' names the job or copy 'net/canv@0'"),
    "unknown predecessor of a copy": (copied("store z", after=("n/t@0",)), {"reference"}, "copy 'store z' names the job or copy 'n/t@0'"),
    "unknown producer": (edit(SHARED, "tensors", named("net/y@0"), producer="x"), {"reference"}, "tensor 'net/y@0' names the producer 'x'"),
    "unknown memory": (allocation("net/y@0", "dram", memory="drum"), {"reference"}, "names the memory 'drum'"),
    "transfer of nobody": (plus(SHARED, "transfers", replace(LENT, job="net/fc@9")), {"reference"}, "names the job 'net/fc@9'"),
    "transfer to nowhere": (plus(SHARED, "transfers", replace(LENT, destination="z")), {"reference"}, "names the memory or core 'z'"),
    "curve of nothing": (replace(SHARED, links=SHARED.links | {"sea": ()}), {"reference"}, "links names the memory or core 'sea'"),
    "missing curve": (replace(SHARED, links={"dram": SHARED.links["dram"]}), {"reference"}, "links has no entry for scratchpad"),
    "end before start": (allocation("net/y@0", "dram", end=us(9)), {"time"}, "the allocation of 'net/y@0' in dram ends at 9.00 us"),
    "faster than its arithmetic": (job("net/fc@0", compute=us(11)), {"time"}, "job 'net/fc@0' runs over [10.0 us, 20.0 us)"),
    # Work.
    "missing tile": (without_job("aux/pool#1@0", "aux/y#1"), {"complete", "work"}, "operator 'pool' is not done once"),
    "tile done twice": (job("aux/pool#1@0", tile=0), {"complete"}, "the tiles 0 of 2, 0 of 2"),
    "tiles that disagree": (job("aux/pool#1@0", tiles=3), {"complete"}, "the tiles 0 of 2, 1 of 3"),
    "operator never done": (job("net/fc@1", operators=()), {"complete"}, "network 'net', mini-batch 1: no job does operator 'fc'"),
    "operator of another network": (
        job("net/fc@1", operators=("fc", "pool")),
        {"complete"},
        "operator 'pool', which the network does not have",
    ),
    "mini-batch too many": (job("net/fc@1", mini_batch=2), {"complete"}, "network 'net' has no mini-batch 2"),
    "mini-batch too few": (
        finished(edit(SHARED, "networks", named("aux"), mini_batches=2**40, macs=0)),
        {"complete", "work"},
        "no job does mini-batch 1 of 1099511627776",
    ),
    "writer that is no producer": (
        with_operand("net/fc@1", "writes", "net/y@1", tensor="net/x@0", bytes=2048),
        {"producer", "residence", "output"},
        "job 'net/fc@1' writes tensor 'net/x@0', which exists from the start",
    ),
    "two jobs at once": (
        streamed(allocation("aux/y#0", "dram", plan=job("aux/pool#0@0", start=us(5), end=us(15)), start=us(5))),
        {"core"},
        "core a runs job 'net/conv@0' over [0 ns, 10.0 us) and job 'aux/pool#0@0'",
    ),
    # Space.
    "too few bytes": (
        finished(allocation("aux/y#0", "dram", bytes=499)),
        {"size"},
        "of 'aux/y#0' in dram over [10.0 us, 40.0 us) has 499 bytes",
    ),
    "empty tile": (allocation("net/w", "a", bytes=0), {"size"}, "the allocation of 'net/w' in a"),
    "overflow": (finished(allocation("net/h@1", "scratchpad", offset=4160)), {"capacity"}, "'net/h@1' in scratchpad"),
    "overflow of a buffer": (allocation("net/w", "a", offset=4095), {"capacity"}, "ends 1023 B beyond the memory's 4.00 KiB"),
    "misaligned": (
        allocation("aux/y#0", "dram", offset=8193),
        {"alignment"},
        "of 'aux/y#0' in dram over [10.0 us, 40.0 us) is at offset 8193",
    ),
    "overlap in space": (finished(allocation("aux/y#1", "dram", offset=8640)), {"overlap"}, "overlaps the allocation of 'aux/y#0'"),
    "overlap in time": (finished(allocation("net/h@0", "scratchpad", end=us(20.000001))), {"overlap"}, "'net/h@1' in scratchpad"),
    "overlap in a buffer": (allocation("net/x@0", "a", 2, offset=1323), {"overlap"}, "'net/x@0' in a"),
    "two places": (finished(plus(SHARED, "allocations", place("net/w", "dram", 1 << 14, 1024, 25, 30))), {"double"}, "tensor 'net/w'"),
    "useless tile": (plus(SHARED, "allocations", place("net/w", "a", 0, 1024, 10, 20)), {"tile"}, "the allocation of 'net/w' in a"),
    "tile on another core": (plus(SHARED, "allocations", place("net/x@0", "b", 0, 64, 0, 9)), {"tile"}, "'net/x@0' in b"),
    "input that is nowhere": (plus(SHARED, "tensors", tensor("net/u", 64)), {"input"}, "tensor 'net/u' has no producer"),
    "late input": (finished(allocation("net/x@1", "dram", start=us(20))), {"input", "arrival"}, "tensor 'net/x@1' has no producer"),
    "output that does not stay": (allocation("net/y@0", "dram", end=us(39)), {"output"}, "output 'net/y@0' is not in dram at the end"),
    "output never written": (
        with_operand(
            "net/fc@1", "writes", "net/y@1", memory="scratchpad", plan=allocation("net/y@1", "dram", memory="scratchpad", offset=4096)
        ),
        {"output"},
        "output 'net/y@1' is not in dram",
    ),
    "output never copied": (
        finished(without(COPYING, "transfers", named("store z"))),
        {"output"},
        "output 'n/z' has a place in host",
    ),
    "tensor not where it is read": (
        with_operand("net/fc@0", "reads", "net/h@0", memory="dram"),
        {"residence"},
        "job 'net/fc@0' reads 'net/h@0' in dram",
    ),
    "weight that leaves early": (allocation("net/w", "dram", end=us(25)), {"residence"}, "job 'net/conv@1' reads 'net/w' in dram"),
    "copy from nowhere": (allocation("n/z", "hbm", plan=COPYING, end=us(49)), {"residence"}, "copy 'store z' reads 'n/z' in hbm"),
    "copy that is not made": (
        finished(job("n/s@0", without(COPYING, "transfers", named("load h")), after=("store h", "n/q@0"))),
        {"arrival"},
        "job 'n/s@0' reads 'n/h' from hbm at 35.0 us, but nothing puts it there",
    ),
    "operand in main memory": (
        with_operand("n/p@0", "reads", "n/x", plan=allocation("n/x", "host", plan=COPYING, end=us(20)), memory="host"),
        {"in-place"},
        "job 'n/p@0' uses 'n/x' in host",
    ),
    # Order.
    "job before its inputs": (
        streamed(allocation("net/y@0", "dram", plan=job("net/fc@0", start=us(9), end=us(20)), start=us(9))),
        {"order", "arrival"},
        "job 'net/fc@0' reads 'net/h@0' from scratchpad at 9.00 us, but it is there only from 10.0 us on",
    ),
    "after something later": (
        job("aux/pool#0@0", after=("net/fc@0",)),
        {"order"},
        "job 'aux/pool#0@0' starts at 10.0 us, before job 'net/fc@0'",
    ),
    "copy too early": (copied("store h", after=("n/p@0", "n/q@0")), {"order"}, "copy 'store h' starts at 20.0 us, before job 'n/q@0'"),
    "cycle": (
        job("net/conv@1", after=("net/fc@0", "net/fc@1")),
        {"order", "cycle"},
        "wait for one another: job 'net/conv@1', job 'net/fc@1'",
    ),
    "waits for itself": (job("net/fc@1", after=("net/conv@1", "net/fc@1")), {"order", "cycle"}, "wait for one another: job 'net/fc@1'"),
    "producer by time alone": (
        job("net/fc@0", after=()),
        {"dependency"},
        "job 'net/fc@0' reads 'net/h@0', but nothing makes it wait for job",
    ),
    "copy by time alone": (
        copied("store h", after=()),
        {"dependency"},
        "copy 'store h' reads 'n/h', but nothing makes it wait for job 'n/p@0'",
    ),
    "reuse by time alone": (
        job("net/conv@1", after=()),
        {"race"},
        "job 'net/conv@1' writes 'net/h@1' over 'net/h@0' in scratchpad at offset 0",
    ),
    "copy over a tensor in use": (
        copied("load h", after=("store h",)),
        {"race"},
        "copy 'load h' writes 'n/h' over 'n/w' in hbm at offset 1024",
    ),
    # Movement.
    "read of nothing": (with_operand("net/conv@0", "reads", "net/w", bytes=0), {"operand"}, "job 'net/conv@0' reads no bytes of 'net/w'"),
    "half a write": (with_operand("net/fc@0", "writes", "net/y@0", bytes=511), {"operand"}, "writes 511 of the 512 bytes of 'net/y@0'"),
    "missing transfer": (
        finished(without(SHARED, "transfers", lambda t: t.job == "net/fc@0" and t.source == "b")),
        {"stream"},
        "job 'net/fc@0' needs 512 bytes of 'net/y@0' from b to dram, transfers move 0",
    ),
    "transfer of too much": (stream("net/fc@0", "net/y@0", bytes=513), {"stream"}, "job 'net/fc@0' needs 512 bytes of 'net/y@0'"),
    "transfer before its job": (
        stream("net/conv@1", "net/w", start=us(19)),
        {"stream"},
        "lasts over [19.0 us, 30.0 us), the job over [20.0 us",
    ),
    "transfer for nothing": (finished(plus(SHARED, "transfers", LENT)), {"stream"}, "job 'net/fc@0' needs 0 bytes of 'net/w'"),
    "half a copy": (finished(copied("load x", bytes=512)), {"copy"}, "copy 'load x' moves 512 of the 1024 bytes"),
    "copy to a core": (
        finished(copied("store h", destination="gpu")),
        {"copy", "arrival"},
        "copy 'store h' goes from hbm to gpu",
    ),
    "copy too fast": (
        finished(edit(FAST_HOST, "transfers", named("load x"), end=us(1))),
        {"copy"},
        "copy 'load x' takes 1.00 us, the copy engine needs 1.02 us",
    ),
    "link too slow": (
        main_memory(read_bandwidth=2.5e8),
        {"bandwidth"},
        "the link of dram is 2.29 us late with the transfer of 'net/x@0' from dram",
    ),
    "copies beyond the link": (
        main_memory(COPYING, read_bandwidth=2e8),
        {"bandwidth"},
        "the link of host is 120 ns late with copy 'load x'",
    ),
    "overloaded curve": (
        replace(SHARED, links=SHARED.links | {"scratchpad": (replace(SCRATCH_CURVE[0], load=1.01), *SCRATCH_CURVE[1:])}),
        {"curve"},
        "the curve of link scratchpad has a load of 1.01",
    ),
    "curve out of order": (replace(SHARED, links=SHARED.links | {"scratchpad": SCRATCH_CURVE[::-1]}), {"curve"}, "link scratchpad"),
    "curve with a gap": (replace(SHARED, links=SHARED.links | {"scratchpad": SCRATCH_CURVE[1:]}), {"curve"}, "link scratchpad adds up to"),
    # Figures.
    "makespan one picosecond short": (figure("makespan", value=us(39.999999)), {"makespan"}, "0.00100 ns later, at 40.0 us"),
    "bound above the makespan": (figure("makespan", lower_bound=us(40.000001)), {"makespan"}, "at least"),
    "unknown status": (replace(SHARED, status="splendid"), {"status"}, "'splendid'"),
    "false optimal": (replace(figure("makespan", lower_bound=us(39.999999)), status="optimal"), {"status"}, "0.00100 ns above its bound"),
    "network with more work": (edit(SHARED, "networks", named("aux"), macs=2001), {"work"}, "network 'aux' do 2000 multiply-accumulates"),
    "lying throughput": (figure("throughput", value=SHARED.metrics.throughput.value * 1.001), {"rate"}, "the throughput"),
    "throughput above its bound": (
        figure("throughput", upper_bound=1.0),
        {"rate"},
        "the throughput is said to be 300000000, above its bound 1",
    ),
    "lying inferences": (figure("inferences_per_second", value=7.0), {"rate"}, "the inferences per second"),
    "lying utilisation": (entry("utilisation", "b", value=0.16), {"rate"}, "the utilisation of b"),
    "lying traffic": (entry("traffic", "dram", value=1.0, lower_bound=0.0), {"traffic"}, "the traffic of dram is said to be 1 bytes"),
    "traffic below its bound": (entry("traffic", "dram", lower_bound=1e9), {"traffic"}, "is said to be at least 1000000000"),
    "lying peak": (entry("memory", "scratchpad", peak=4095), {"memory"}, "the peak of scratchpad is said to be 4095 bytes, but is 4096"),
    "lying need": (entry("memory", "scratchpad", lower_bound=4095), {"memory"}, "the lower_bound of scratchpad"),
    "lying capacity": (entry("memory", "dram", capacity=1), {"memory"}, "the capacity of dram"),
}


@pytest.mark.parametrize(("plan", "rules", "message"), BREAKS.values(), ids=BREAKS)
def test_a_broken_plan_breaks_its_rule_and_no_other(plan: Plan, rules: set[str], message: str) -> None:
    violations = verify(plan)
    assert {violation.rule for violation in violations} == rules
    assert any(message in violation.message for violation in violations), violations
    assert all("\n" not in violation.message for violation in violations)


def test_every_rule_is_broken_by_some_plan() -> None:
    assert {rule for stage in RULES for rule in stage} == {rule for _, rules, _ in BREAKS.values() for rule in rules}


def test_order_through_others_is_order_enough() -> None:
    last = job("net/conv@1", after=("aux/pool#0@0",))
    assert {violation.rule for violation in verify(last)} == {"race"}
    through = job("net/conv@1", plan=job("aux/pool#0@0", start=us(20), end=us(22), after=("net/fc@0",)), after=(), start=us(22))
    through = streamed(allocation("net/h@1", "scratchpad", plan=through, start=us(22)))
    assert verify(through) == ()


def test_a_link_may_be_full_to_the_last_picosecond() -> None:
    assert verify(main_memory(COPYING, read_bandwidth=1024 / us(5), write_bandwidth=1024 / us(5))) == ()


def test_long_lists_of_violations_are_cut_short() -> None:
    plan = long_plan(60)
    found = [violation.message for violation in verify(replace(plan, transfers=())) if violation.rule == "stream"]
    assert len(found) == 21
    assert found[-1] == "and 100 more"


def test_a_plan_without_anything_holds() -> None:
    empty = replace(SHARED, networks=(), tensors=(), jobs=(), allocations=(), transfers=(), links={"dram": (), "scratchpad": ()})
    metrics = SHARED.metrics
    nothing = {
        "makespan": replace(metrics.makespan, value=0.0, lower_bound=0.0),
        "throughput": replace(metrics.throughput, value=0.0),
        "inferences_per_second": replace(metrics.inferences_per_second, value=0.0),
        "utilisation": {name: replace(rate, value=0.0) for name, rate in metrics.utilisation.items()},
        "traffic": {name: replace(cost, value=0.0, lower_bound=0.0) for name, cost in metrics.traffic.items()},
        "memory": {name: replace(use, peak=0, lower_bound=0) for name, use in metrics.memory.items()},
    }
    assert verify(replace(empty, metrics=replace(metrics, **nothing))) == ()


def test_a_long_plan_holds() -> None:
    assert verify(long_plan(4000, 4)) == ()


NOUNS = {"plans", "hardware", "buffers", "errors", "units"}


@pytest.mark.parametrize("path", sorted(Path(loadmaster.verification.__file__).parent.glob("*.py")), ids=lambda path: path.stem)
def test_the_verifier_imports_nothing_but_nouns(path: Path) -> None:
    tree = ast.walk(ast.parse(path.read_text()))
    modules = [alias.name for node in tree if isinstance(node, ast.Import) for alias in node.names]
    tree = ast.walk(ast.parse(path.read_text()))
    modules += [str(node.module) for node in tree if isinstance(node, ast.ImportFrom)]
    own = [module.split(".") for module in modules if module.split(".")[0] == "loadmaster"]
    assert all(len(parts) > 1 and parts[1] in NOUNS | {"verification"} for parts in own)
    assert not {"numpy", "highspy", "ortools"} & {module.split(".")[0] for module in modules}


# Checked against definitions that anyone can read, on instances small enough for them.


@given(st.lists(st.tuples(*[st.integers(0, 5)] * 2, *[st.integers(1, 5)] * 2), min_size=1, max_size=8))
def test_overlaps_are_found_when_there_are_any(boxes: list[tuple[int, int, int, int]]) -> None:
    allocations = tuple(PlannedAllocation("net/w", "dram", offset, size, us(at), us(at + life)) for offset, at, size, life in boxes)
    pairs = [(one, two) for i, one in enumerate(allocations) for two in allocations[:i]]
    expected = any(
        one.offset < two.offset + two.bytes and two.offset < one.offset + one.bytes and one.start < two.end and two.start < one.end
        for one, two in pairs
    )
    assert bool(list(overlaps(Facts(replace(SHARED, allocations=allocations))))) == expected


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 20), st.integers(1, 8)), min_size=1, max_size=8))
def test_a_link_is_late_when_some_stretch_of_time_is_asked_for_more_than_it_has(tasks: list[tuple[int, int, int]]) -> None:
    unit = 10**6
    needs: list[Need] = sorted((at * unit, (at + life) * unit, float(work * unit), LENT) for at, life, work in tasks)
    stretches = [(start, end) for start, _, _, _ in needs for _, end, _, _ in needs if start < end]
    expected = any(sum(need[2] for need in needs if start <= need[0] and need[1] <= end) > end - start for start, end in stretches)
    assert bool(list(_late(needs, 0.0))) == expected


@given(st.data())
def test_reuse_is_a_race_when_a_user_is_no_ancestor_of_a_writer(data: st.DataObject) -> None:
    """Drops ``after`` entries of a long plan: what is then unordered must be reported, and nothing else."""
    plan = long_plan(9)
    kept = [tuple(name for name in record.after if data.draw(st.booleans())) for record in plan.jobs]
    plan = replace(plan, jobs=tuple(replace(record, after=after) for record, after in zip(plan.jobs, kept, strict=True)))
    before: list[set[int]] = []
    for i, record in enumerate(plan.jobs):
        direct = {j for j in range(i) if plan.jobs[j].name in record.after or j == i - 2}
        before.append(direct.union(*(before[j] for j in direct)))
    expected = {"dependency" for i in range(1, 9) if i - 1 not in before[i]}
    # Job i writes where job i - 2 wrote and job i - 1 read; the last one writes to main memory, where nothing was.
    expected |= {"race" for i in range(2, 8) if i - 1 not in before[i]}
    assert {violation.rule for violation in verify(plan)} == expected


# Whatever is wrong with a plan, the verifier says so and does not stumble over it.

PARTS = ("networks", "tensors", "jobs", "allocations", "transfers")
NAMES = ("", "net/conv@0", "net/h@0", "a", "dram", "scratchpad", "hbm", "n/p@0", "load h", "n/h", "net", "?")
INTEGERS = st.integers(-1, 9000) | st.sampled_from([2**40, 2**63 - 1, 2**63, 10**400])
TIMES = st.integers(-1, 60).map(us) | st.floats()
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "int": INTEGERS,
    "float": TIMES,
    "bool": st.booleans(),
    "str": st.sampled_from(NAMES),
    "tuple[str, ...]": st.lists(st.sampled_from(NAMES), max_size=3).map(tuple),
    "tuple[PlannedOperand, ...]": st.lists(
        st.builds(PlannedOperand, st.sampled_from(NAMES), st.sampled_from(NAMES), INTEGERS), max_size=2
    ).map(tuple),
}


def _mutated(plan: Plan, data: st.DataObject) -> Plan:
    part = data.draw(st.sampled_from(PARTS))
    records = list(getattr(plan, part))
    if not records:
        return plan
    at = data.draw(st.integers(0, len(records) - 1))
    change = data.draw(st.sampled_from(["delete", "repeat", "edit"]))
    if change == "delete":
        del records[at]
    elif change == "repeat":
        records.append(records[at])
    else:
        field = data.draw(st.sampled_from(fields(records[at])))
        records[at] = replace(records[at], **{field.name: data.draw(VALUES.get(str(field.type), VALUES["str"]))})
    return replace(plan, **{part: tuple(records)})


@settings(max_examples=300, deadline=None)
@given(data=st.data(), plan=st.sampled_from([SHARED, COPYING]), changes=st.integers(1, 4))
def test_no_mutation_makes_the_verifier_fail(data: st.DataObject, plan: Plan, changes: int) -> None:
    for _ in range(changes):
        plan = _mutated(plan, data)
    assert all("\n" not in violation.message for violation in verify(plan))


@given(data=st.data(), plan=st.sampled_from([SHARED, COPYING]), part=st.sampled_from(["jobs", "tensors", "networks", "transfers"]))
def test_no_record_can_be_left_out(data: st.DataObject, plan: Plan, part: str) -> None:
    records = list(getattr(plan, part))
    del records[data.draw(st.integers(0, len(records) - 1))]
    assert verify(replace(plan, **{part: tuple(records)}))


@given(data=st.data(), plan=st.sampled_from([SHARED, COPYING]), seconds=TIMES)
def test_targets_and_figures_may_be_anything(data: st.DataObject, plan: Plan, seconds: float) -> None:
    changed = [
        main_memory(plan, **{data.draw(st.sampled_from(["read_bandwidth", "write_bandwidth"])): seconds}),
        main_memory(plan, capacity=data.draw(INTEGERS), alignment=data.draw(INTEGERS)),
        replace(plan, target=replace(plan.target, fast=None)),
        replace(plan, target=replace(plan.target, cores=())),
        figure("makespan", plan, value=seconds),
        figure("makespan", plan, lower_bound=seconds),
        figure("throughput", plan, value=seconds),
        replace(plan, links={name: tuple(replace(segment, end=seconds) for segment in curve) for name, curve in plan.links.items()}),
    ]
    for broken in changed:
        verify(broken)
