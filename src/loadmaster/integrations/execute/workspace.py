"""What a job has at hand: the storages that it reads and makes, as large as the model has them, of
which it knows what it has loaded and made."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from loadmaster.core.errors import PlanError
from loadmaster.integrations.execute.model import AnyArray, Arrays, SourceModel, element_type
from loadmaster.workloads.frontends.onnx.graph_builder import division_of
from loadmaster.workloads.frontends.onnx.types import Value
from loadmaster.workloads.frontends.onnx.walk import Step
from loadmaster.workloads.job import Ranges
from loadmaster.workloads.window import SUMMED


def unknown(value: Value, byte: int) -> AnyArray:
    """An array of which nothing is known: full of a byte, or of -1, an index of any table, where
    its elements may be indices."""
    kind = element_type(value)
    if kind.kind == "b" or (kind.kind in "iu" and kind.itemsize > 1):
        return np.full(value.shape, -1).astype(kind)
    return np.full(value.count * kind.itemsize, byte, np.uint8).view(kind).reshape(value.shape)


@dataclass
class Workspace:
    """The storages of one job, and partial sums. ``turned`` are the transpositions as whose results
    weights lie."""

    model: SourceModel
    turned: Mapping[str, Step]
    byte: int
    arrays: Arrays = field(default_factory=dict)
    sums: Arrays = field(default_factory=dict)

    def array(self, storage: str, summed: bool = False) -> AnyArray:
        """A storage, or the sums for one."""
        arrays = self.sums if summed else self.arrays
        if storage not in arrays:
            arrays[storage] = unknown(self.model.values[storage], self.byte)
        return arrays[storage]

    def run(self, name: str, shape: Sequence[int], ranges: Ranges, terms: Sequence[int]) -> None:
        """Run an operator.

        Parameters
        ----------
        name
            The operator.
        shape, ranges
            The part that the job makes of results of this shape; no ranges mean all.
        terms
            The range [first, last) of what it sums over, and whether the sum ends with it; empty if
            it sums over all.
        """
        flow = self.model.flows[name]
        # Of what is not known anything may become.
        with np.errstate(all="ignore"):
            results = self._node(self.model.steps[name], flow.reads, terms)
            if terms:
                results = {each: made + self.sums.get(each, 0) for each, made in results.items()}
        for storage in flow.writes:
            made = results[storage]
            if ranges and made.size == math.prod(shape):
                part = tuple(slice(*each) for each in ranges)
                whole, made = made, unknown(self.model.values[storage], self.byte)
                made.reshape(shape)[part] = whole.reshape(shape)[part]
            self.arrays[storage] = made

    def _node(self, step: Step, reads: Collection[str], terms: Sequence[int] = ()) -> Arrays:
        """Results of a node in the course of an operator that may read some storages."""
        names: list[str] = []
        known: Arrays = {}
        given: Arrays = {}
        windows = division_of(step.node, step.work).operands if terms else {}
        for index, value in enumerate(step.node.inputs):
            axes = windows.get(index, ())
            # What is not summed, such as a bias, is added where the sum ends.
            if value is None or (terms and SUMMED not in axes and not terms[2]):
                names.append("")
                continue
            names.append(value.name)
            if value.constant and value.storage not in reads:
                known[value.name] = self.model.constant(value.name)
                continue
            given[value.name] = array = self._value(value, step, reads)
            if SUMMED in axes:
                axis = axes.index(SUMMED)
                given[value.name] = np.zeros_like(array)
                np.moveaxis(given[value.name], axis, 0)[slice(*terms[:2])] = np.moveaxis(
                    array, axis, 0
                )[slice(*terms[:2])]
        return self.model.node(step, names, known, given)

    def _value(self, value: Value, reader: Step, reads: Collection[str]) -> AnyArray:
        """A value that a node reads: a storage, or what a node that no job runs makes of some."""
        turned = self.turned.get(value.storage)
        if value.name in reads:
            array = self.array(value.name)
            if turned is None:
                return array
            shape = turned.node.result.shape
            return array.reshape(shape).transpose(np.argsort(permutation(turned)))
        step = self.model.makers.get(value.name)
        if step is None or step.node.name in self.model.flows:
            raise PlanError(
                f"operator {reader.node.name!r} needs {value.name!r}, which the plan does not let"
                " it read"
            )
        if step is turned:
            return self.array(value.storage).reshape(value.shape)
        return self._node(step, reads)[value.name]


def permutation(step: Step) -> list[int]:
    """The order in which a transposition puts dimensions."""
    return step.node.integers("perm") or list(range(len(step.node.shape(0))))[::-1]
