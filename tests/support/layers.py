"""Single layers as workloads, machines of one core, and where the public instances of M3E are, if
they are at hand."""

import os
from pathlib import Path

import numpy as np
from hypothesis import strategies as st
from tests.support.networks import RATES

from loadmaster.cost.analytical.nests import STREAMED, nest_table, tilings_for
from loadmaster.targets.hardware import Core, Memory, Style, Target
from loadmaster.workloads.graph import LoopNest
from loadmaster.workloads.job import (
    Job,
    NetworkInfo,
    Operand,
    OperatorInfo,
    Role,
    TensorInstance,
    Workload,
)

M3E = Path(
    os.environ.get("LOADMASTER_M3E_DATA", Path(__file__).parents[3] / "shared" / "data" / "m3e")
)


def machine(style=Style.WEIGHT_STATIONARY, rows=8, columns=16, buffer=8192, **more):
    core = Core("core", style, rows, columns, 1e9, RATES, columns, buffer, **more)
    return Target("t", "", (core,), (Memory("dram", 2**40, 1e9, 1e9),))


def loops(text, **more):
    """A loop nest whose loops count what a text such as ``k=8 c=16`` says."""
    counts = dict(each.split("=") for each in text.split())
    return LoopNest(**{name: int(count) for name, count in counts.items()}, **more)


def one_job(nest, sizes=None, extra=0, bits=8):
    """A job of a loop nest; its operands have the bytes that the nest needs, or others."""
    input_bytes, weight_bytes, output_bytes = sizes or operand_bytes(nest)
    sizes = {"i": input_bytes, "w": weight_bytes, "o": output_bytes, "e": extra}
    tensors = tuple(
        TensorInstance(name, "n", name, 0, size, "activation")
        for name, size in sizes.items()
        if size
    )
    reads = [Operand("i", input_bytes, Role.INPUT, 0), Operand("w", weight_bytes, Role.WEIGHT, 0)]
    reads += [Operand("e", extra)] if extra else []
    job = Job(
        "j",
        "n",
        0,
        "Conv",
        ("op",),
        (nest,),
        0,
        bits,
        tuple(reads),
        (Operand("o", output_bytes, Role.OUTPUT, 0),),
        (),
    )
    return Workload(
        (NetworkInfo("n", "", "int8", 1, 1, nest.macs, (OperatorInfo("op", (), ()),), ()),),
        (job,),
        tensors,
    )


styles = st.sampled_from([Style.WEIGHT_STATIONARY, Style.OUTPUT_STATIONARY, Style.ROW_STATIONARY])
extents = st.integers(1, 70)
nests = st.builds(
    LoopNest,
    k=extents,
    c=extents,
    y=extents,
    x=extents,
    r=st.integers(1, 7),
    s=st.integers(1, 7),
    groups=st.integers(1, 9),
    batch=st.integers(1, 4),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    repeats=st.integers(1, 3),
)


def operand_bytes(nest):
    rows = (nest.y - 1) * nest.stride[0] + nest.r
    columns = (nest.x - 1) * nest.stride[1] + nest.s
    images = nest.groups * nest.batch
    return (
        images * nest.c * rows * columns,
        nest.groups * nest.k * nest.c * nest.r * nest.s,
        images * nest.k * nest.y * nest.x,
    )


def tilings_of(nest, target, bits=8):
    """The usual tiling of a nest for the buffer of the first core."""
    table, core = nest_table(one_job(nest, bits=bits).jobs), target.cores[0]
    return tilings_for(table, np.array([float(core.buffer)]), core, target, [STREAMED])[0]


def same_fields(one, other):
    """Whether two records hold the same arrays and values."""
    return all(np.array_equal(value, getattr(other, name)) for name, value in vars(one).items())
