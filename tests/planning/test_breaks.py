"""Every way to break a plan, with the rules that it breaks and whom they name."""

import math
from dataclasses import replace

import pytest
from tests.support.cut_networks import cut_plan
from tests.support.edits import (
    COPYING,
    SHARED,
    allocation,
    copied,
    edit,
    entry,
    figure,
    in_memory,
    job,
    main_memory,
    mini_batch,
    named,
    on_cores,
    plus,
    stream,
    streamed,
    timed,
    with_bits,
    with_network,
    with_operand,
    without,
    without_job,
    without_reading,
    without_result,
)
from tests.support.hand_plan import finished, place, tensor, us
from tests.support.summed_networks import summed_plan

from loadmaster.planning.plan_records import PlannedOperand, PlannedTransfer
from loadmaster.planning.verify.plan import RULES, verify
from loadmaster.workloads.job import NetworkTiming

SCRATCH_CURVE = SHARED.links["scratchpad"]
FIRST, SECOND, *OTHERS = SHARED.links["dram"]
EXCHANGED = (
    replace(FIRST, bytes_per_second=SECOND.bytes_per_second, load=SECOND.load),
    replace(SECOND, bytes_per_second=FIRST.bytes_per_second, load=FIRST.load),
)
LENT = PlannedTransfer("net/w", "dram", "b", 64, us(10), us(20), job="net/fc@0")
CUT = cut_plan()
PIECE = next(job for job in CUT.jobs if job.ranges and job.tile == 1)
SUMMED = summed_plan()
SUMS = {tensor.name: tensor for tensor in SUMMED.tensors if tensor.summed}
LAST = next(
    job
    for job in SUMMED.jobs
    if job.summed and job.summed[0] and not any(operand.tensor in SUMS for operand in job.writes)
)
MINE = next(operand for operand in LAST.reads if operand.tensor in SUMS)
BEFORE = SUMS[MINE.tensor]
PARTS = {tensor.name for tensor in SUMMED.tensors if tensor.ranges and not tensor.summed}
JOINING, JOINED = next(
    (job, operand)
    for job in SUMMED.jobs
    for operand in job.reads
    if operand.tensor in PARTS and not job.ranges
)
STRANGER = next(job for job in SUMMED.jobs if job.operators != LAST.operators)


def copy_engine(**changes):
    target = COPYING.target
    return replace(COPYING, target=replace(target, copy=replace(target.copy, **changes)))


def curves(changed):
    """The shared plan with other curves of some links."""
    return replace(SHARED, links=SHARED.links | changed)


def byte_energy(changed):
    return replace(SHARED, byte_energy=SHARED.byte_energy | changed)


def objective(**changes):
    return replace(SHARED, objective=replace(SHARED.objective, **changes))


def with_tensor(name, plan=SHARED, /, **changes):
    return edit(plan, "tensors", named(name), **changes)


def summing(first, last):
    """The last piece of a chain sums from so many terms after its first until so many after its
    last."""
    return job(LAST.name, SUMMED, summed=(LAST.summed[0] + first, LAST.summed[1] + last))


WIDER = SHARED.target.with_memory(1, read_bandwidth=2 * SHARED.target.fast.read_bandwidth)
STREAMED = next(each for each in SHARED.transfers if each.job)
FAST_HOST = main_memory(COPYING, read_bandwidth=1e11, write_bandwidth=1e11)
TERMS = f"the pieces of operator '{LAST.operators[0]}' with the terms of their sums"

BREAKS = {
    # Numbers, names, references, times: what the other rules rely on.
    "negative offset": (
        allocation("net/h@1", "scratchpad", offset=-64),
        "number: offset of the allocation of 'net/h@1' in scratchpad",
    ),
    "time that is no number": (job("net/fc@0", start=math.nan), "number: start of job 'net/fc@0'"),
    "huge bytes": (with_tensor("net/w", bytes=2**63), "number: bytes of tensor 'net/w'"),
    "no bandwidth": (
        main_memory(read_bandwidth=0.0),
        "number: read_bandwidth of memory 'dram' is 0",
    ),
    "no accumulator": (on_cores(accumulator=0), "number: accumulator of core 'a' is 0"),
    "network of no bandwidth": (
        on_cores(noc_bandwidth=0.0),
        "number: noc_bandwidth of core 'a' is 0",
    ),
    "no burst": (main_memory(burst=0), "number: burst of memory 'dram' is 0"),
    "machine without memory": (
        replace(SHARED, target=replace(SHARED.target, memories=())),
        "number: the target has no memory",
    ),
    "copies of no rate": (
        copy_engine(overlapping=(1.0,)),
        "number: the copy engine has 1 overlapping rates for 2 memories",
    ),
    "copies of negative rate": (
        copy_engine(blocking=(-1.0, 1.0)),
        "number: blocking of the copy engine is -1.0",
    ),
    "core of no number": (
        on_cores(macs_per_cycle={8: math.nan}),
        "number: macs_per_cycle of core 'a' at 8 bits is nan",
    ),
    "job called like a copy": (copied("load x", name="n/p@0"), "name: 'n/p@0'"),
    "same tensor twice": (with_tensor("net/x@1", name="net/x@0"), "name: 'net/x@0'"),
    "copy without a name": (copied("load x", name=""), "name: a job or copy has no name"),
    "unknown core": (job("net/fc@0", core="c"), "reference: job 'net/fc@0' names the core 'c'"),
    "unknown tensor": (
        job("net/fc@0", reads=(PlannedOperand("?", "dram", 1),)),
        "reference: job 'net/fc@0' names the tensor '?'",
    ),
    "operand in a buffer": (
        job("net/fc@0", reads=(PlannedOperand("net/w", "a", 1),)),
        "reference: the shared memory 'a'",
    ),
    "unknown memory": (
        allocation("net/y@0", "dram", memory="drum"),
        "reference: names the memory 'drum'",
    ),
    "transfer to nowhere": (
        plus(SHARED, "transfers", replace(LENT, destination="z")),
        "reference: names the memory or core 'z'",
    ),
    "curve of nothing": (curves({"sea": ()}), "reference: links names the memory or core 'sea'"),
    "missing curve": (
        replace(SHARED, links={"dram": SHARED.links["dram"]}),
        "reference: links has no entry for scratchpad",
    ),
    "end before start": (
        allocation("net/y@0", "dram", end=us(9)),
        "time: the allocation of 'net/y@0' in dram ends at 9.00 us",
    ),
    "faster than its arithmetic": (
        job("net/fc@0", compute=us(11)),
        "time: job 'net/fc@0' runs over [10.0 us, 20.0 us)",
    ),
    # Work.
    "missing tile": (
        without_job("aux/pool#1@0", "aux/y#1"),
        "complete part piece work: operator 'pool' is not done once",
    ),
    "tile done twice": (job("aux/pool#1@0", tile=0), "complete: the tiles 0 of 2, 0 of 2"),
    "operator never done": (
        job("net/fc@1", operators=()),
        "complete dataflow alike: network 'net', mini-batch 1: no job does operator 'fc'",
    ),
    "operator of another network": (
        job("net/fc@1", operators=("fc", "pool")),
        "complete alike: operator 'pool', which the network does not have",
    ),
    "mini-batch too many": (
        job("net/fc@1", mini_batch=2),
        "complete dataflow latency alike: network 'net' has no mini-batch 2",
    ),
    "mini-batch too few": (
        finished(with_network("aux", mini_batches=2**40, macs=0)),
        "complete dataflow work: no job does mini-batch 1 of 1099511627776",
    ),
    "writer that is no producer": (
        with_operand("net/fc@1", "writes", "net/y@1", tensor="net/x@0", bytes=2048),
        (
            "producer dataflow residence output: job 'net/fc@1' writes tensor 'net/x@0', which"
            " exists from the start"
        ),
    ),
    "two jobs at once": (
        streamed(
            allocation(
                "aux/y#0", "dram", plan=job("aux/pool#0@0", start=us(5), end=us(15)), start=us(5)
            )
        ),
        "core overlap: core a runs job 'net/conv@0' over [0 ns, 10.0 us) and job 'aux/pool#0@0'",
    ),
    "faster than its core": (
        finished(job("net/fc@0", job("net/fc@1", elements=0), elements=0, compute=us(0.001))),
        (
            "compute: takes 1.00 ns of arithmetic for 1000 multiply-accumulates of 8 bits and 0"
            " scalar operations, its core b needs 1.95"
        ),
    ),
    "faster than its lanes": (
        finished(job("net/fc@0", job("net/fc@1", macs=0), macs=2000, compute=us(0.03))),
        "compute alike: 2000 scalar operations, its core b needs 62.5 ns",
    ),
    "faster than its width allows": (
        on_cores(macs_per_cycle={8: 1.0, 32: 1e-4}, plan=with_bits(32)),
        "compute: 1000 multiply-accumulates of 32 bits",
    ),
    "faster than a job starts": (on_cores(job_overhead=us(3)), "compute: its core b needs 3.06 us"),
    "faster than the bytes reach the array": (
        on_cores(noc_latency=us(3)),
        "compute: its core b needs 3.06 us",
    ),
    "precision of another name": (
        with_network("net", precision="fp32"),
        "precision: planned at fp32, but multiplies mostly in 8 bits",
    ),
    "more in one mini-batch than in another": (
        finished(job("net/fc@0", elements=2001)),
        (
            "alike: network 'net': operators 'fc' has 2000 scalar operations (Conv, 8 bits) in"
            " mini-batch 1, 2001 "
        ),
    ),
    "tensor smaller in one mini-batch": (
        streamed(
            allocation(
                "net/h@1",
                "scratchpad",
                plan=edit(
                    with_operand("net/conv@1", "writes", "net/h@1", bytes=64),
                    "tensors",
                    named("net/h@1"),
                    bytes=64,
                ),
                bytes=64,
            )
        ),
        (
            "alike: network 'net': tensor 'h' has 64 bytes (activation) in mini-batch 1, 4096 in"
            " mini-batch 0"
        ),
    ),
    "core that cannot multiply": (
        on_cores(macs_per_cycle={}),
        "compute: its core b needs for ever",
    ),
    # Data flow.
    "read that is left out with all that it asks for": (
        without_reading("net/fc@0"),
        "dataflow: job 'net/fc@0' does not read 'h', which its operators need",
    ),
    "half of a split tensor": (
        job(
            JOINING.name,
            SUMMED,
            reads=tuple(operand for operand in JOINING.reads if operand is not JOINED),
        ),
        (
            f"dataflow stream tile: job '{JOINING.name}' does not read '{JOINED.tensor}', a part"
            " of what"
        ),
    ),
    "output that is forgotten": (
        edit(
            with_network("net", outputs=()),
            "tensors",
            lambda t: (t.network, t.storage) == ("net", "y"),
            is_output=False,
        ),
        "dataflow: network 'net': 'y' is written, but is no output and nothing reads it",
    ),
    "input that is called a weight": (
        allocation("aux/x", "dram", plan=with_tensor("aux/x", kind="weight"), end=us(40)),
        "dataflow: tensor 'aux/x' is said to be no input, its network says otherwise",
    ),
    "result that is left out": (
        without_result(),
        "dataflow: job 'n/p@0' does not write 'h', which others need",
    ),
    "operator that is left out": (
        job(
            "net/conv@0",
            job(
                "net/conv@1",
                with_network("net", operators=SHARED.networks[0].operators[1:]),
                operators=(),
            ),
            operators=(),
        ),
        "dataflow: job 'net/conv@0' writes 'net/h@0', which none of its operators writes",
    ),
    "reads what it need not": (
        streamed(
            job(
                "net/fc@0",
                reads=(
                    PlannedOperand("net/h@0", "scratchpad", 4096),
                    PlannedOperand("net/w", "dram", 1),
                ),
            )
        ),
        "dataflow: job 'net/fc@0' reads 'net/w', which none of its operators reads",
    ),
    "reads another mini-batch": (
        with_operand(
            "net/conv@1",
            "reads",
            "net/x@1",
            plan=allocation("net/x@0", "dram", end=us(30)),
            tensor="net/x@0",
        ),
        "dataflow: job 'net/conv@1' reads 'net/x@0', which none of its operators reads",
    ),
    "result that is there from the start": (
        finished(
            plus(
                plus(SHARED, "tensors", tensor("net/h@7", 64, kind="input")),
                "allocations",
                place("net/h@7", "dram", 16384, 64, 0, 40),
            )
        ),
        (
            "dataflow alike: tensor 'net/h@7' is said to be there from the start, but an operator"
            " writes it"
        ),
    ),
    "result that is no activation": (
        with_tensor("net/h@0", kind="weight"),
        (
            "dataflow alike weight: tensor 'net/h@0' is said to be of kind weight, but job"
            " 'net/conv@0' produces it"
        ),
    ),
    "input that is an activation": (
        with_tensor("aux/x", kind="activation"),
        "dataflow: tensor 'aux/x' is neither a weight nor an input",
    ),
    "result in two tensors": (
        streamed(
            job(
                "net/fc@0",
                plus(
                    plus(SHARED, "tensors", tensor("net/y@9", 64, "net/fc@0")),
                    "allocations",
                    place("net/y@9", "dram", 16384, 64, 10, 40),
                ),
                writes=(
                    PlannedOperand("net/y@0", "dram", 512),
                    PlannedOperand("net/y@9", "dram", 64),
                ),
            )
        ),
        "dataflow alike: job 'net/fc@0' writes 'net/y@9', which none",
    ),
    "no outputs": (
        edit(SHARED, "tensors", lambda tensor: tensor.is_output, is_output=False),
        "dataflow: tensor 'net/y@0' is said to be no output",
    ),
    "output that is no tensor": (
        with_network("net", outputs=("y", "v")),
        "dataflow: network 'net', mini-batch 0: no tensor is the output 'v'",
    ),
    # Pieces and parts.
    "range beyond the shape": (
        with_tensor("net/w", shape=(4,), ranges=((0, 5),)),
        "range: tensor 'net/w'",
    ),
    "whole job that sums a part": (
        job("net/fc@0", summed=(0, 1)),
        "range: and not which part it makes",
    ),
    "write that is a part": (
        job(PIECE.name, CUT, writes=tuple(replace(x, ranges=PIECE.ranges) for x in PIECE.writes)),
        f"range: job '{PIECE.name}' writes a part of",
    ),
    "operand that is read twice": (
        job(PIECE.name, CUT, reads=(*PIECE.reads, PIECE.reads[0])),
        f"read stream: job '{PIECE.name}': the boxes that it reads of",
    ),
    # Space.
    "too few bytes": (
        finished(allocation("aux/y#0", "dram", bytes=499)),
        "size: of 'aux/y#0' in dram over [10.0 us, 40.0 us) has 499 bytes",
    ),
    "empty tile": (
        finished(allocation("net/w", "a", bytes=0)),
        "size: the allocation of 'net/w' in a",
    ),
    "overflow": (
        finished(allocation("net/h@1", "scratchpad", offset=4160)),
        "capacity: 'net/h@1' in scratchpad",
    ),
    "misaligned": (
        allocation("aux/y#0", "dram", offset=8193),
        "alignment: of 'aux/y#0' in dram over [10.0 us, 40.0 us) is at offset 8193",
    ),
    "overlap in space": (
        finished(allocation("aux/y#1", "dram", offset=8640)),
        "overlap: overlaps the allocation of 'aux/y#0'",
    ),
    "overlap in time": (
        finished(allocation("net/h@0", "scratchpad", end=us(20.000001))),
        "overlap: 'net/h@1' in scratchpad",
    ),
    "two places": (
        finished(plus(SHARED, "allocations", place("net/w", "dram", 1 << 14, 1024, 25, 30))),
        "double: tensor 'net/w'",
    ),
    "useless tile": (
        finished(plus(SHARED, "allocations", place("net/w", "a", 900, 64, 10, 20))),
        "tile: the allocation of 'net/w' in a",
    ),
    "operand without a tile": (
        finished(without(SHARED, "allocations", in_memory("net/h@0", "b"))),
        "tile: job 'net/fc@0' has no tile of 'net/h@0' in b over [10.0 us, 20.0 us)",
    ),
    "tile that leaves early": (
        finished(allocation("net/x@0", "a", 0, end=us(9))),
        "tile: job 'net/conv@0' has no tile of 'net/x@0' in a",
    ),
    "input that is nowhere": (
        plus(SHARED, "tensors", tensor("aux/u", 0, kind="input")),
        "input dataflow: tensor 'aux/u' has no producer",
    ),
    "late input": (
        finished(allocation("net/x@1", "dram", start=us(20))),
        "input arrival: tensor 'net/x@1' has no producer",
    ),
    "output that does not stay": (
        allocation("net/y@0", "dram", end=us(39)),
        "output: output 'net/y@0' is not in dram at the end",
    ),
    "output never written": (
        with_operand(
            "net/fc@1",
            "writes",
            "net/y@1",
            memory="scratchpad",
            plan=allocation("net/y@1", "dram", memory="scratchpad", offset=4096),
        ),
        "output: output 'net/y@1' is not in dram",
    ),
    "output never copied": (
        finished(without(COPYING, "transfers", named("store z"))),
        "output lifetime: output 'n/z' has a place in host",
    ),
    "tensor not where it is read": (
        with_operand("net/fc@0", "reads", "net/h@0", memory="dram"),
        "residence: job 'net/fc@0' reads 'net/h@0' in dram",
    ),
    "weight that leaves early": (
        allocation("net/w", "dram", end=us(25)),
        "residence weight: job 'net/conv@1' reads 'net/w' in dram",
    ),
    "weight that is not there for the next run": (
        allocation("net/w", "dram", end=us(39.9)),
        "weight: weight 'net/w' is not at one place of dram from the start to the end, 40.0 us",
    ),
    "weight that is overwritten after its last use": (
        finished(
            allocation(
                "n/z", "host", plan=allocation("n/w", "host", plan=COPYING, end=us(45)), offset=1024
            )
        ),
        "weight: weight 'n/w' is not at one place of host",
    ),
    "copy from nowhere": (
        allocation("n/z", "hbm", plan=COPYING, end=us(49)),
        "residence: copy 'store z' reads 'n/z' in hbm",
    ),
    "copy that is not made": (
        finished(
            job("n/s@0", without(COPYING, "transfers", named("load h")), after=("store h", "n/q@0"))
        ),
        "arrival: job 'n/s@0' reads 'n/h' from hbm at 35.0 us, but nothing puts it there",
    ),
    "operand in main memory": (
        with_operand(
            "n/p@0",
            "reads",
            "n/x",
            plan=allocation("n/x", "host", plan=COPYING, end=us(20)),
            memory="host",
        ),
        "in-place: job 'n/p@0' uses 'n/x' in host",
    ),
    # Order.
    "job before its inputs": (
        streamed(
            allocation(
                "net/y@0", "dram", plan=job("net/fc@0", start=us(9), end=us(20)), start=us(9)
            )
        ),
        (
            "order arrival: job 'net/fc@0' reads 'net/h@0' from scratchpad at 9.00 us, but it is"
            " there only from 10.0 us on"
        ),
    ),
    "after something later": (
        job("aux/pool#0@0", after=("net/fc@0",)),
        "order: job 'aux/pool#0@0' starts at 10.0 us, before job 'net/fc@0'",
    ),
    "copy too early": (
        copied("store h", after=("n/p@0", "n/q@0")),
        "order: copy 'store h' starts at 20.0 us, before job 'n/q@0'",
    ),
    "cycle": (
        job("net/conv@1", after=("net/fc@0", "net/fc@1")),
        "order cycle: wait for one another: job 'net/fc@1', job 'net/conv@1'",
    ),
    "producer by time alone": (
        job("net/fc@0", after=()),
        "dependency: job 'net/fc@0' reads 'net/h@0', but nothing makes it wait for job",
    ),
    "reuse by time alone": (
        job("net/conv@1", after=()),
        "race: job 'net/conv@1' writes 'net/h@1' over 'net/h@0' in scratchpad at offset 0",
    ),
    "copy that follows another by the engine's order alone": (
        copied("load h", after=("n/q@0",)),
        "dependency: copy 'load h' reads 'n/h', but nothing makes it wait for copy 'store h'",
    ),
    "copy over a tensor in use": (
        copied("load h", after=("store h",)),
        "race: copy 'load h' writes 'n/h' over 'n/w' in hbm at offset 1024",
    ),
    # Movement.
    "read of nothing": (
        with_operand("net/conv@0", "reads", "net/w", bytes=0),
        "operand: job 'net/conv@0' reads no bytes of 'net/w'",
    ),
    "half a write": (
        with_operand("net/fc@0", "writes", "net/y@0", bytes=511),
        "operand: writes 511 of the 512 bytes of 'net/y@0'",
    ),
    "missing transfer": (
        finished(without(SHARED, "transfers", lambda t: t.job == "net/fc@0" and t.source == "b")),
        "stream: job 'net/fc@0' needs 512 bytes of 'net/y@0' from b to dram, transfers move 0",
    ),
    "transfer of too much": (
        stream("net/fc@0", "net/y@0", bytes=513),
        "stream: job 'net/fc@0' needs 512 bytes of 'net/y@0'",
    ),
    "transfer before its job": (
        stream("net/conv@1", "net/w", start=us(19)),
        "stream: lasts over [19.0 us, 30.0 us), the job over [20.0 us",
    ),
    "transfer for nothing": (
        finished(plus(SHARED, "transfers", LENT)),
        "stream: job 'net/fc@0' needs 0 bytes of 'net/w'",
    ),
    "half a copy": (
        finished(copied("load x", bytes=512)),
        "copy: copy 'load x' moves 512 of the 1024 bytes",
    ),
    "copy to a core": (
        finished(copied("store h", destination="gpu")),
        "copy arrival: copy 'store h' goes from hbm to gpu",
    ),
    "copies at once": (
        finished(
            allocation("n/w", "hbm", plan=copied("load w", start=us(4), after=()), start=us(4))
        ),
        (
            "copy: the copy engine makes copy 'load x' over [0 ns, 5.00 us) and copy 'load w' over"
            " [4.00 us, 10.0 us)"
        ),
    ),
    "copy too fast": (
        finished(edit(FAST_HOST, "transfers", named("load x"), end=us(1))),
        "copy: copy 'load x' takes 1.00 us, the copy engine needs 2.05 us",
    ),
    "link too slow": (
        main_memory(read_bandwidth=2.5e8),
        (
            "bandwidth curve: the link of dram is 2.29 us late with the transfer of 'net/x@0' from"
            " dram"
        ),
    ),
    "copies beyond the link": (
        main_memory(COPYING, read_bandwidth=2e8),
        "bandwidth curve: the link of host is 120 ns late with copy 'load x'",
    ),
    "curve of another direction": (
        replace(SHARED, target=WIDER),
        "curve: the curve of link scratchpad has moved",
    ),
    "stream shorter than its job": (
        edit(SHARED, "transfers", lambda each: each == STREAMED, end=STREAMED.start),
        "stream curve bandwidth: the job over",
    ),
    "stream with a name": (
        edit(SHARED, "transfers", lambda each: each == STREAMED, name="stream"),
        "stream: is part of a job, and has a name",
    ),
    "place kept beyond the end": (
        allocation("net/y@0", "dram", end=us(1e6)),
        "lifetime: lasts beyond the end of the plan",
    ),
    "overloaded curve": (
        curves({"scratchpad": (replace(SCRATCH_CURVE[0], load=1.01), *SCRATCH_CURVE[1:])}),
        "curve: the curve of link scratchpad has a load of 1.01",
    ),
    "curve with a gap": (
        curves({"scratchpad": SCRATCH_CURVE[1:]}),
        "curve: has moved 0 B by 10.0 us",
    ),
    "curve of other times": (
        curves({"dram": (*EXCHANGED, *OTHERS)}),
        (
            "curve: the curve of link dram has moved 1.96 KiB by 10.0 us, when 3.00 KiB of its"
            " transfers have ended and 3.00 KiB have begun"
        ),
    ),
    "curve without a load": (
        curves({"scratchpad": (replace(SCRATCH_CURVE[0], load=0.01), *SCRATCH_CURVE[1:])}),
        "curve: with a load of 0.01, that is between 80000000 and 80000000 bytes/s",
    ),
    # Figures.
    "makespan one picosecond short": (
        figure("makespan", value=us(39.999999)),
        "makespan: 0.00100 ns later, at 40.0 us",
    ),
    "unknown status": (replace(SHARED, status="splendid"), "status: 'splendid'"),
    "false optimal": (
        replace(figure("makespan", lower_bound=us(39.999999)), status="optimal"),
        "status rate: 0.00100 ns above its bound",
    ),
    "network with more work": (
        with_network("aux", macs=2001),
        "work: network 'aux' do 2000 multiply-accumulates",
    ),
    "lying throughput": (
        figure("throughput", value=SHARED.metrics.throughput.value * 1.001),
        "rate: the throughput",
    ),
    "bound of the makespan that is raised alone": (
        figure("makespan", lower_bound=us(39)),
        (
            "rate: the throughput is said to be at most 600000000, but in the makespan's bound it"
            " would be 307692308"
        ),
    ),
    "lying inferences": (
        figure("inferences_per_second", value=7.0),
        "rate: the inferences per second",
    ),
    "lying utilisation": (entry("utilisation", "b", value=0.16), "rate: the utilisation of b"),
    "lying traffic": (
        entry("traffic", "dram", value=1.0, lower_bound=0.0),
        "traffic: the traffic of dram in bytes is said to be 1, but is",
    ),
    "traffic below its bound": (
        entry("traffic", "dram", lower_bound=1e9),
        "traffic: is said to be at least 1000000000",
    ),
    "lying peak": (
        entry("memory", "scratchpad", peak=4095),
        "memory: the peak of scratchpad in bytes is said to be 4095, but is 4096",
    ),
    "lying need": (
        entry("memory", "scratchpad", lower_bound=4095),
        "memory: the lower_bound of scratchpad",
    ),
    "job before its release": (
        timed(21, 30, release=21),
        "release: job 'net/conv@1' starts at 20.0 us, before its mini-batch is",
    ),
    "release at another time": (
        timed(19, 30),
        "release: the release of mini-batch 1 of network 'net' is said to be 20.0 us, but is 19.0",
    ),
    "timing of nobody": (
        replace(SHARED, timings=(NetworkTiming("ned", 0.0, None),)),
        "reference: names the network 'ned', which the plan does not have",
    ),
    "miss that is kept quiet": (
        timed(20, 19.999999),
        "latency: is said not to have missed its deadline, and takes 20.0 us",
    ),
    "optimal though late": (
        replace(timed(20, 19, missed=True), status="optimal"),
        "status: said to be optimal, but 2 mini-batches miss their deadlines",
    ),
    "two timings": (
        replace(timed(20, 20), timings=2 * timed(20, 20).timings),
        "latency: network 'net' has 2 timings",
    ),
    "lying end of a mini-batch": (
        mini_batch("net", 1, end=us(39)),
        "latency: the end of mini-batch 1 of network 'net' is said to be 39.0 us, but is 40.0 us",
    ),
    "lying latency": (
        mini_batch("net", 1, latency=us(39)),
        (
            "latency: the latency of mini-batch 1 of network 'net' is said to be 39.0 us, but is"
            " 40.0 us"
        ),
    ),
    "mini-batch that is left out": (
        replace(SHARED, mini_batches=SHARED.mini_batches[1:]),
        "latency: mini-batch 0 of network 'net' is told of 0 times",
    ),
    "lying latency of a network": (
        entry("latency", "aux", value=us(29)),
        "latency: 'aux' is said to be 29.0 us, but is 30.0 us",
    ),
    "lying energy of a job": (
        job("net/fc@0", energy=2e-9),
        "energy: the energy of b is said to be",
    ),
    "arithmetic for nothing": (
        finished(job("net/fc@0", energy=2.9e-10)),
        "energy: 290 pJ for 1000 multiply-accumulates of 8 bits, less than any",
    ),
    "lying energy": (
        figure("energy", value=SHARED.metrics.energy.value * 0.999),
        "energy: the energy is said to be",
    ),
    "energy below its bound": (
        figure("energy", lower_bound=1.0),
        "energy: is said to be at least 1",
    ),
    "energy of a place that is left out": (
        replace(SHARED, metrics=replace(SHARED.metrics, energy_by={"dram": 0.0})),
        "reference: metrics.energy_by has no entry for scratchpad",
    ),
    "byte that takes less than the target says": (
        finished(byte_energy({"dram": 99e-12})),
        "byte-energy: a byte of dram is said to take 99.0 pJ, where it takes 100 pJ",
    ),
    "byte that takes less than is published": (
        finished(byte_energy({"a": 8e-13})),
        "byte-energy: a byte of a is said to take 0.800 pJ, where it takes 0.884 pJ",
    ),
    "static power that is not counted": (
        replace(SHARED, target=replace(SHARED.target, static_power=2e-3)),
        "energy: the energy is said to be",
    ),
    # Sums in parts.
    "terms that others of its operator do not have": (
        summing(0, 10**6),
        f"chain piece: {TERMS} are",
    ),
    "terms that are none": (summing(0, -(10**6)), f"range: job '{LAST.name}' takes the part"),
    "sums that do not begin": (
        with_tensor(BEFORE.name, SUMMED, summed=(1, 2)),
        f"range: tensor '{BEFORE.name}': [1, 2]",
    ),
    "term left out": (summing(1, 0), f"chain piece: {TERMS} are"),
    "term taken twice": (summing(-1, 0), f"chain piece: {TERMS} overlap"),
    "last term left out": (summing(0, -1), f"chain piece: {TERMS} are"),
    "sums of other terms": (
        with_tensor(BEFORE.name, SUMMED, summed=(0, BEFORE.summed[1] + 1)),
        (
            f"chain: job '{BEFORE.producer}' writes '{BEFORE.name}', which holds other sums than"
            " those that it makes"
        ),
    ),
    "sums narrower than accumulators": (
        with_tensor(BEFORE.name, SUMMED, bytes=BEFORE.bytes // 2),
        f"chain size: tensor '{BEFORE.name}' has {BEFORE.bytes // 2} bytes",
    ),
    "sums that nobody adds to": (
        job(
            LAST.name,
            SUMMED,
            reads=tuple(operand for operand in LAST.reads if operand.tensor not in SUMS),
        ),
        f"chain stream tile: job '{LAST.name}' reads no partial sums to which it could add",
    ),
    "sums that a stranger reads": (
        job(STRANGER.name, SUMMED, reads=(*STRANGER.reads, MINE)),
        (
            f"chain dataflow residence stream tile: job '{STRANGER.name}' reads the partial sums"
            f" '{BEFORE.name}', which are not of the piece before it in its chain"
        ),
    ),
    "sums that are awaited by nobody": (
        job(LAST.name, SUMMED, after=()),
        f"dependency: job '{LAST.name}'",
    ),
    "sums as a result": (
        with_tensor(BEFORE.name, SUMMED, summed=()),
        f"chain dataflow part: job '{BEFORE.producer}' writes 0 tensors of partial sums",
    ),
    "unknown objective": (objective(name="beauty"), "objective: 'beauty' of network ''"),
    "objective of another value": (
        objective(name="energy"),
        "objective: the value of the objective energy is said to be",
    ),
    "objective of a network for nothing": (
        objective(network="net"),
        "objective: the objective 'throughput' is said to be of network 'net'",
    ),
    "negative energy": (byte_energy({"dram": -1.0}), "number: the energy of 'dram' is -1.0"),
    "lying capacity": (entry("memory", "dram", capacity=1), "memory: the capacity of dram"),
}


@pytest.mark.parametrize(("plan", "said"), BREAKS.values(), ids=BREAKS)
def test_a_broken_plan_breaks_its_rule_and_no_other(plan, said):
    violations = verify(plan)
    rules, _, message = said.partition(": ")
    assert {violation.rule for violation in violations} == {*rules.split()}
    assert any(message in violation.message for violation in violations), violations
    assert all("\n" not in violation.message for violation in violations)


def test_every_rule_is_broken_by_some_plan():
    assert {rule for stage in RULES for rule in stage} == {
        rule for _, said in BREAKS.values() for rule in said.partition(": ")[0].split()
    }
