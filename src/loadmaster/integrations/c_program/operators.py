"""What the operators of a job compute: arrays in a core's workspace, and kernels that make one of
the others.

Operators read what a plan lets them read. A node of the model that no job runs, a view or one whose
readers take its operands as they lie, is run by every job that needs it, in its own workspace.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from loadmaster.core.errors import ModelError, PlanError
from loadmaster.integrations.c_program.kernels import Kernel, kernel_of
from loadmaster.integrations.c_program.model import C_TYPES, SourceModel, element_type
from loadmaster.workloads.frontends.onnx.types import Shape, Value
from loadmaster.workloads.frontends.onnx.walk import Step
from loadmaster.workloads.graph import OpClass
from loadmaster.workloads.job import NetworkInfo

ALIGNMENT = 64
"""Addresses of arrays in a workspace are multiples of it."""


@dataclass(frozen=True)
class Array:
    """An array at an address of the workspace; ``type`` is its C name."""

    type: str
    shape: Shape
    address: int


@dataclass(frozen=True)
class KernelStep:
    """A kernel that makes the array ``result`` of others; None is an absent operand. ``divided``: a
    piece makes its part alone."""

    kernel: Kernel
    operands: tuple[int | None, ...]
    result: int
    divided: bool


@dataclass
class Operators:
    """Arrays by number; which of them hold what is read and written, by storage; what is known; and
    the steps, in their order.

    ``shape`` is that of the result of the first operator, of which pieces make parts; ``main`` is
    the number of its step.
    """

    shape: Shape
    arrays: list[Array] = field(default_factory=list)
    reads: dict[str, int] = field(default_factory=dict)
    writes: dict[str, int] = field(default_factory=dict)
    constants: dict[int, NDArray[Any]] = field(default_factory=dict)
    steps: list[KernelStep] = field(default_factory=list)
    workspace: int = 0
    main: int = -1


def operators_of(
    model: SourceModel, network: NetworkInfo, names: Sequence[str], in_parts: frozenset[str]
) -> Operators:
    """What operators that run as one job do. Linear in their operands.

    Parameters
    ----------
    model
        The network's model.
    network
        The network in the plan: what its operators read and write.
    names
        Operators, in their order.
    in_parts
        Weights of which the plan has parts.

    Raises
    ------
    ModelError
        If there is no kernel for an operator.
    PlanError
        If an operator needs what the plan does not let it read.
    """
    return _Collector(model, network, names, in_parts).collect()


class _Collector:
    def __init__(
        self,
        model: SourceModel,
        network: NetworkInfo,
        names: Sequence[str],
        in_parts: frozenset[str],
    ) -> None:
        self._model, self._names, self._in_parts = model, names, in_parts
        flows = {operator.name: operator for operator in network.operators}
        self._planned = flows.keys()
        self._made = {storage for name in names for storage in flows[name].writes}
        self._given = {storage for name in names for storage in flows[name].reads} - self._made
        self._found: dict[str, int] = {}
        self._result = Operators(model.steps[names[0]].node.result.shape)

    def collect(self) -> Operators:
        for name in self._names:
            step = self._model.steps[name]
            for index, value in enumerate(step.node.outputs):
                if value is not None:
                    self._run(step, index, value, planned=True)
                    if self._result.main < 0:
                        self._result.main = len(self._result.steps) - 1
        return self._result

    def _run(self, step: Step, index: int, value: Value, *, planned: bool) -> None:
        """Add the step that makes a result of a node."""
        try:
            kernel = kernel_of(step.node, index)
        except ModelError as error:
            raise ModelError(f"{self._model.source}: {error}") from None
        operands = tuple(
            None if each is None else self._operand(step, each.index, each.shape)
            for each in kernel.operands
        )
        number = self._array(value)
        self._found[value.name] = number
        if planned and value.name in self._made:
            self._result.writes[value.name] = number
        self._result.steps.append(
            KernelStep(kernel, operands, number, planned and value.shape == self._result.shape)
        )

    def _operand(self, step: Step, index: int, shape: Shape | None) -> int:
        value = step.node.operand(index)
        number = self._number(value, step)
        return number if shape in (None, value.shape) else self._view(number, shape)

    def _number(self, value: Value, reader: Step) -> int:
        """The array that holds a value, for which steps may have to be added."""
        if value.name not in self._found:
            self._found[value.name] = self._find(value, reader)
        return self._found[value.name]

    def _find(self, value: Value, reader: Step) -> int:
        if value.name in self._given:
            number = self._array(value)
            self._result.reads[value.name] = number
            return number
        if value.constant and value.storage not in self._given:
            number = self._array(value)
            self._result.constants[number] = self._model.constants([value.name])[value.name]
            return number
        made = self._model.makers.get(value.name)
        if made is None or (made[0].node.name in self._planned and value.name not in self._made):
            needs = f"operator {reader.node.name!r} needs {value.name!r}"
            raise PlanError(
                f"{needs}, which the plan does not let it read: export from the model that was"
                " planned"
            )
        step, index = made
        if _is_renamed(step):
            return self._view(self._number(step.node.operand(0), step), value.shape)
        if value.constant and value.storage in self._in_parts:
            text = (
                f"the weight {value.storage!r} lies in parts, and operator {step.node.name!r}"
                f" ({step.node.kind}) moves its elements"
            )
            raise ModelError(f"{self._model.source}: {text}: fold constants in the model first")
        self._run(step, index, value, planned=False)
        return self._found[value.name]

    def _array(self, value: Value) -> int:
        size = element_type(value, self._model.source).itemsize * value.count
        self._result.arrays.append(
            Array(C_TYPES[value.stored], value.shape, self._result.workspace)
        )
        self._result.workspace += -(-size // ALIGNMENT) * ALIGNMENT
        return len(self._result.arrays) - 1

    def _view(self, number: int, shape: Shape) -> int:
        """The same elements in the same order as an array of another shape."""
        array = self._result.arrays[number]
        assert math.prod(array.shape) == math.prod(shape)
        self._result.arrays.append(Array(array.type, shape, array.address))
        return len(self._result.arrays) - 1


def _is_renamed(step: Step) -> bool:
    """Whether a node gives the elements of its first operand, in their order, another name and
    shape."""
    if step.work.op_class is not OpClass.VIEW or step.node.kind == "DequantizeLinear":
        return False
    if step.node.kind != "Transpose":
        return True
    # Planning takes a constant to be laid out either way; here it lies as the model has it.
    shape = step.node.shape(0)
    order = step.node.integers("perm") or list(range(len(shape)))[::-1]
    moved = [axis for axis in order if shape[axis] > 1]
    return moved == sorted(moved)
