"""Small graphs, workloads and machines for tests, built by hand."""

from math import prod

import numpy as np

from loadmaster.planning.decisions import Placement, Residence
from loadmaster.targets.hardware import CopyEngine, Core, Memory, Style, Target
from loadmaster.workloads.graph import Access, Graph, LoopNest, Op, OpClass, Tensor, TensorKind
from loadmaster.workloads.job import (
    Job,
    NetworkInfo,
    Operand,
    OperatorInfo,
    TensorInstance,
    Workload,
)

RATES = {8: 1.0, 16: 0.5, 32: 0.25}


class GraphBuilder:
    """Adds operators one by one; tensors are int8 and shaped (1, channels, height, width), the 1
    left out."""

    def __init__(self, name="net"):
        self.name = name
        self.ops = []
        self.tensors = {}

    def tensor(self, name, shape, kind=TensorKind.ACTIVATION, alias_of=None):
        shape = (1, *shape) if len(shape) == 3 else shape
        self.tensors[name] = Tensor(name, shape, "int8", prod(shape), kind, alias_of)
        return name

    def conv(self, output, source, channels, kernel=3):
        _, c, y, x = self.tensors[source].shape
        weight = self.tensor(f"{output}.w", (channels, c, kernel, kernel), TensorKind.WEIGHT)
        self.tensor(output, (channels, y, x))
        own = {"input": source, "weight": weight, "output": output}
        nest = LoopNest(k=channels, c=c, y=y, x=x, r=kernel, s=kernel, **own)
        return self.op("Conv", OpClass.PRODUCT, [source, weight], output, nests=(nest,))

    def elementwise(self, output, *sources):
        self.tensor(output, self.tensors[sources[0]].shape)
        return self.op("Add", OpClass.ELEMENTWISE, list(sources), output)

    def op(self, kind, op_class, reads, output, nests=()):
        elements = self.tensors[output].bytes if op_class is OpClass.ELEMENTWISE else 0
        accesses = tuple(Access(name, self.tensors[name].bytes) for name in reads)
        writes = (Access(output, self.tensors[output].bytes),)
        self.ops.append(
            Op(f"{kind}_{output}", kind, op_class, accesses, writes, nests, elements, 8)
        )
        return output

    def graph(self, *outputs):
        inputs = tuple(t.name for t in self.tensors.values() if t.kind is TensorKind.INPUT)
        return Graph(
            self.name, "by hand", "int8", tuple(self.ops), dict(self.tensors), inputs, outputs
        )


def residual_chain(blocks, name="chain", channels=16, size=14):
    """Convolutions with a residual connection around every pair."""
    build = GraphBuilder(name)
    last = build.tensor("x", (channels, size, size), TensorKind.INPUT)
    for block in range(blocks):
        inner = build.elementwise(f"relu{block}", build.conv(f"a{block}", last, channels))
        last = build.elementwise(f"sum{block}", build.conv(f"b{block}", inner, channels), last)
    return build.graph(last)


def npu(cores=2, scratchpad=64 * 1024, buffer=16 * 1024, copies=True, bandwidth=1e9):
    """Weight-stationary cores and a row-stationary one, with or without a scratchpad and an engine
    that copies to it."""
    styles = [Style.WEIGHT_STATIONARY] * (cores - 1) + [Style.ROW_STATIONARY]
    own = tuple(
        Core(f"c{i}", style, 8, 16, 1e9, RATES, 16, buffer) for i, style in enumerate(styles)
    )
    fast = Memory("scratchpad", scratchpad, 8e9, 8e9) if scratchpad else None
    engine = CopyEngine((8e9, 8e9), (8e9, 8e9)) if fast and copies else None
    dram = Memory("dram", 2**24, bandwidth, bandwidth)
    return Target("npu", "for tests", own, (dram, fast) if fast else (dram,), engine)


def resident(workload, table, in_fast):
    """The placement that keeps ``in_fast`` activations in the fast memory from producer to last
    reader, and everything else in main memory."""
    residences = []
    for t, (tensor, users) in enumerate(zip(workload.tensors, workload.readers, strict=True)):
        if in_fast[t]:
            residences.append(Residence(t, 1, tensor.producer, users))
        if tensor.is_output or not in_fast[t]:
            stays = tensor.is_output or tensor.kind == "weight"
            residences.append(Residence(t, 0, tensor.producer, () if in_fast[t] else users, stays))
    output = np.array([tensor.is_output for tensor in workload.tensors])
    rows = table.operand_tensor
    main = ~in_fast[rows] | (table.operand_write & output[rows])
    return Placement(np.stack([main, in_fast[rows]]), (), tuple(residences))


def staged_machine(hbm):
    """One core that needs every operand in a fast memory of ``hbm`` bytes."""
    core = Core("gpu", Style.ROOFLINE, 1, 1, 1e11, {8: 1.0, 16: 1.0, 32: 1.0}, 1, 0)
    host, fast = Memory("host", 2**24, 1e9, 1e9, in_place=False), Memory("hbm", hbm, 5e10, 5e10)
    return Target("gpu", "for tests", (core,), (host, fast), CopyEngine((1e9, 1e9), (1e9, 1e9)))


def workload(after):
    """Jobs that each write one tensor of 64 bytes and read those of the jobs they come after."""
    tensors = tuple(
        TensorInstance(
            f"t{i}", "net", f"t{i}", 0, 64, "activation", not any(i in a for a in after), i
        )
        for i in range(len(after))
    )
    jobs = tuple(
        Job(
            f"j{i}",
            "net",
            0,
            "Op",
            (f"op{i}",),
            (),
            0,
            8,
            tuple(Operand(f"t{a}", 64) for a in own),
            (Operand(f"t{i}", 64),),
            own,
        )
        for i, own in enumerate(after)
    )
    operators = tuple(
        OperatorInfo(f"op{i}", tuple(f"t{a}" for a in own), (f"t{i}",))
        for i, own in enumerate(after)
    )
    outputs = tuple(tensor.name for tensor in tensors if tensor.is_output)
    info = NetworkInfo("net", "by hand", "int8", 1, 1, 0, operators, outputs)
    return Workload((info,), jobs, tensors)
