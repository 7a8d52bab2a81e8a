"""The workspace of a job: arrays of the storages that it reads and writes, in the model's full
size, of which only loaded and computed elements are valid."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from loadmaster.core.arrays import Array
from loadmaster.core.errors import PlanError
from loadmaster.integrations.execute.layout import Layout
from loadmaster.integrations.execute.model import Arrays, SourceModel, element_type
from loadmaster.workloads.frontends.onnx.operators import division_of
from loadmaster.workloads.frontends.onnx.rules import Value
from loadmaster.workloads.frontends.onnx.walk import VisitedNode
from loadmaster.workloads.graph import OpClass
from loadmaster.workloads.job import Ranges
from loadmaster.workloads.window import SUMMED


def unknown(value: Value, byte: int) -> Array:
    """Return an array of invalid elements: filled with a byte, or, if elements may be indices, with
    -1, a valid index of any table."""
    kind = element_type(value)
    if kind.kind == "b" or (kind.kind in "iu" and kind.itemsize > 1):
        return np.full(value.shape, -1).astype(kind)
    return np.full(value.count * kind.itemsize, byte, np.uint8).view(kind).reshape(value.shape)


@dataclass
class Workspace:
    """The storages of one job, and its partial sums; ``byte`` fills invalid elements."""

    model: SourceModel
    layout: Layout
    byte: int
    arrays: Arrays = field(default_factory=dict)
    sums: Arrays = field(default_factory=dict)

    def array(self, storage: str, summed: bool = False) -> Array:
        """Return the array of a storage, or of its partial sums."""
        arrays = self.sums if summed else self.arrays
        if storage not in arrays:
            arrays[storage] = unknown(self.model.values[storage], self.byte)
        return arrays[storage]

    def run(self, name: str, shape: Sequence[int], ranges: Ranges, terms: Sequence[int]) -> None:
        """Run an operator on the job's storages.

        Parameters
        ----------
        name
            Name of the operator.
        shape, ranges
            Shape of the whole result, and the box of it that the job makes; no ranges mean all.
        terms
            Range [first, last) of the reduction, and whether the sum ends with it; empty for a
            whole reduction.
        """
        flow = self.model.flows[name]
        results = self._node(self.model.steps[name], flow.reads, terms)
        for storage in flow.writes:
            made = results[storage]
            if terms and storage in self.sums:
                made = made + self.sums[storage]
            if ranges and made.size == math.prod(shape):
                part = tuple(slice(*each) for each in ranges)
                whole = made
                made = unknown(self.model.values[storage], self.byte)
                made.reshape(shape)[part] = whole.reshape(shape)[part]
            self.arrays[storage] = made

    def _node(self, step: VisitedNode, reads: Collection[str], terms: Sequence[int] = ()) -> Arrays:
        """Run a node of an operator that reads these storages, and return its results."""
        given: Arrays = {}
        windows = division_of(step.node, step.work.op_class).operands if terms else {}
        for index, value in enumerate(step.node.inputs):
            axes = windows.get(index, ())
            # Operands outside of the reduction, such as a bias, are added at the end of the sum.
            if value is None or (terms and SUMMED not in axes and not terms[2]):
                continue
            if value.constant and value.storage not in reads:
                given[value.name] = self.model.constant(value.name)
            elif (step.work.touched or {}).get(index) == 0:
                # A node uses only the shape or the type of such an operand.
                given[value.name] = unknown(value, self.byte)
            elif index and step.work.op_class is OpClass.VIEW and value.storage not in reads:
                # A view does not use it, but a runtime may check its range.
                given[value.name] = unknown(value, 0)
            else:
                given[value.name] = self._value(value, step, reads)
            if SUMMED in axes:
                part = (slice(None),) * axes.index(SUMMED) + (slice(*terms[:2]),)
                whole = given[value.name]
                given[value.name] = np.zeros_like(whole)
                given[value.name][part] = whole[part]
        return self.model.node(step, given)

    def _value(self, value: Value, reader: VisitedNode, reads: Collection[str]) -> Array:
        """Return a value that a node reads: a storage, or the result of a node outside of jobs."""
        turned = self.layout.turned(self.model.network.name, value.storage)
        step = self.model.makers.get(value.name)
        if value.name in reads:
            array = self.array(value.name)
            if turned is None:
                return array
            order = turned.node.permutation(array.shape)[0]
            return array.reshape(turned.node.result.shape).transpose(np.argsort(order))
        if step is None or step.node.name in self.model.flows:
            raise PlanError(
                f"operator {reader.node.name!r} needs {value.name!r}, which the plan does not let"
                " it read"
            )
        if step is turned:
            return self.array(value.storage).reshape(value.shape)
        return self._node(step, reads)[value.name]
