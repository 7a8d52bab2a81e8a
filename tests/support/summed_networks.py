"""Networks whose operators are cut along what they sum over, and a plan of one."""

from functools import cache

import numpy as np
from tests.support.lowered import cuts_by, planned
from tests.support.networks import npu
from tests.support.random_networks import Builder

import loadmaster as lm


def copying(cores=2, scratchpad=64 * 1024):
    """Cores that need all operands in a scratchpad."""
    return npu(cores, scratchpad).with_memory(0, in_place=False)


def summing(build, x):
    """A convolution with a bias, a rectifier and a residual sum; or matrix products with all that
    can follow their sums."""
    channels = build.shapes[x][1]
    if build.generator.random() < 0.6:
        taps = build.choose(1, 3)
        weights = build.weight(channels, channels, taps, taps)
        made = build.Conv(x, weights, build.weight(channels), pads=[taps // 2] * 4)
        return build.Add(build.Relu(made), x)
    width = build.shapes[x][-1]
    if build.generator.random() < 0.5:
        return build.Add(build.MatMul(x, build.weight(width, width)), build.weight(width))
    rows = build.Reshape(x, [-1, width])
    turned = build.choose(0, 1)
    made = build.Gemm(
        rows, build.weight(width, width), build.weight(width), transB=turned, alpha=0.5, beta=2.0
    )
    return build.Reshape(made, build.shapes[x])


def network(seed, layers=3):
    """A few of them."""
    # In `summed_plan`, of seed 4, some reads are needed by the model alone.
    build = Builder(seed + 2)
    last = build.input(1, build.choose(3, 5), build.choose(4, 5), build.choose(4, 6))
    for _ in range(layers):
        last = summing(build, last)
    build.last = last
    return build, build.graph("sums")


def product(rows, terms, columns):
    """A matrix product and a bias, of int8."""
    build = Builder(0)
    build.last = build.Add(
        build.MatMul(build.input(rows, terms), build.weight(terms, columns)), build.weight(columns)
    )
    return build.graph("product", "int8")


def in_chains(graph, generator):
    """Operators that sum in chains of pieces, of all of their result or of parts of it; now and
    then in parts alone."""

    def cut(form):
        axes = generator.permutation(form.axes)[: generator.integers(0, 3)]
        parts = {int(axis): int(generator.integers(2, 4)) for axis in axes}
        links = int(generator.integers(1, 5))
        return form.chains(parts, min(max(1, form.summed), links))

    return cuts_by(graph, cut, sums=True)


@cache
def summed_plan():
    """A plan of matrix products and convolutions in chains of pieces."""
    _, graph = network(4)
    target = copying(1)
    return planned(
        lm.lower([graph], target, cuts=[in_chains(graph, np.random.default_rng(4))]), target
    )
