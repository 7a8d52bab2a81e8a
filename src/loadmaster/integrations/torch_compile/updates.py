"""The optimizer's update of each parameter as a kernel of the backward pass, run as soon as the
gradient is complete.

The kernel is the step of PyTorch's own optimizer on one parameter. Hyperparameters are read at
every step, so schedulers work. Plans move the tensors of the optimizer's state, but not its
scalars, such as the count of steps. After the update the gradient is freed, and a `SpentGradient`
takes its place until the caller's ``optimizer.step()``, which updates the other parameters.
"""

from __future__ import annotations

import copy
import weakref
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge
from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_pre_hooks
from torch.utils._pytree import tree_leaves

from loadmaster.core.errors import BudgetError, LoadmasterError
from loadmaster.integrations.torch_compile.captured import (
    Call,
    Captured,
    Owner,
    Storage,
    is_view,
    view_of,
    views,
)
from loadmaster.integrations.torch_compile.kernel_profile import (
    CallProfile,
    profiled_update,
    stand_ins,
)
from loadmaster.integrations.torch_compile.persistent import swap_memory
from loadmaster.integrations.torch_compile.slow_tensor import SlowTensor, blocks, fast

_ZEROED = (torch.ops.aten.zero_.default, torch.ops.aten._foreach_zero_.default)


class SpentGradient(Tensor):  # type: ignore[misc]
    """Placeholder for a gradient that the backward pass has used for an update and freed."""

    _parameter: weakref.ref[Tensor]

    @staticmethod
    def __new__(cls, parameter: Tensor) -> SpentGradient:
        """Make a placeholder with the shape, strides and type of ``parameter``."""
        made = Tensor._make_wrapper_subclass(
            cls,
            parameter.shape,
            strides=parameter.stride(),
            dtype=parameter.dtype,
            device=parameter.device,
        )
        made._parameter = weakref.ref(parameter)
        return cast(SpentGradient, made)

    __torch_function__ = torch._C._disabled_torch_function_impl

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"SpentGradient(shape={tuple(self.shape)})"

    @classmethod
    def __torch_dispatch__(
        cls, operator: Any, types: Any, arguments: tuple[Any, ...] = (), keywords: Any = None
    ) -> Any:
        """Raise `LoadmasterError` for all operators but those by which ``zero_grad`` clears
        gradients."""
        given = tree_leaves((arguments, keywords))
        spent = [one for one in given if isinstance(one, cls)]
        if operator is torch.ops.aten.detach.default:
            parameter = spent[0]._parameter()
            return cls(spent[0] if parameter is None else parameter)
        if operator not in _ZEROED:
            raise LoadmasterError(
                f"{operator} asks for a gradient that is gone: with the option optimizer the"
                " backward pass has updated the parameters already. Clipping, gradients that add"
                " up, scalers, and whatever else reads or changes .grad between backward() and"
                " step() need torch.compile without this option; optimizer.step() then keeps the"
                " budget, too. The update of this step has been made: load the parameters anew"
            )
        forget(one for spent_one in spent if (one := spent_one._parameter()) is not None)
        rest = [one for one in given if isinstance(one, Tensor) and not isinstance(one, cls)]
        torch._foreach_zero_(rest) if rest else None
        return arguments[0]


def use_of_gradient(parameter: Tensor) -> Literal["added", "returned", "none"]:
    """Return what the running backward pass does with a parameter's gradient: add it to ``grad``,
    or, as asked by ``autograd.grad`` or ``backward(inputs=...)``, return it or nothing."""
    try:
        node = get_gradient_edge(parameter).node
        return "added" if torch._C._will_engine_execute_node(node) else "none"
    except RuntimeError:
        return "returned"


def forget(parameters: Iterable[Tensor]) -> None:
    """Set ``grad`` to None for parameters whose gradient is spent, so that a step skips them."""
    for parameter in parameters:
        if isinstance(parameter.grad, SpentGradient):
            parameter.grad = None


def has_pre_hooks(optimizer: Optimizer | None) -> bool:
    """Return whether hooks run before the optimizer's step that are its own or the user's for all
    optimizers."""
    others = (str(getattr(hook, "__module__", "")) for hook in _global_optimizer_pre_hooks.values())
    return bool(getattr(optimizer, "_optimizer_step_pre_hooks", None)) or not all(
        module.startswith("loadmaster.") for module in others
    )


_NAMES = "SGD Adam AdamW NAdam RAdam Adamax Adagrad Adadelta RMSprop Rprop ASGD"
_ELEMENTWISE = frozenset(getattr(torch.optim, name) for name in _NAMES.split())
"""Optimizers that update each element of a parameter independently of the others."""
_BLOCK = 2 << 20
"""Bytes of a parameter that an elementwise optimizer updates at a time."""


def is_elementwise(optimizer: Optimizer) -> bool:
    """Return whether an optimizer is known to update each element of a parameter independently."""
    return optimizer.__class__ in _ELEMENTWISE


class Update:
    """The optimizer's step on ``parameter`` as a callable kernel, with operands in either memory.

    Attributes
    ----------
    tensors, scalars
        The state by name: tensors of at least one dimension that the step uses, which a plan may
        move, and other values.
    order
        Names of the state in the optimizer's order.
    signature
        Key of the state that the update was made for; equal for updates with the same profile.
    begun
        Whether the state exists.
    held, dropped
        Whether the next call does not update, but keeps the gradient for the caller, or not even
        that.
    count
        Number of updates made.
    gradient
        The gradient kept by a held call; else None.
    """

    def __init__(
        self, optimizer: Optimizer, parameter: Tensor, kind: Any, template: dict[str, Any]
    ) -> None:
        self.optimizer, self.parameter = optimizer, parameter
        self.signature = _state_key(kind, parameter)
        self.tensors = {name: value for name, value in template.items() if _is_movable(value)}
        self.scalars: dict[str, Any] = {}
        self.order = list(template)
        self.begun = False
        self.held = self.dropped = False
        self.count = 0
        self.gradient: Tensor | None = None

    def __str__(self) -> str:
        return f"optimizer.{self.optimizer.__class__.__name__}"

    def __call__(self, *operands: Tensor) -> Sequence[Tensor]:
        """Update the operands (parameter, gradient, state) in place and return the state's tensors.
        A held update keeps the gradient instead."""
        parameter, alone = operands[0], is_elementwise(self.optimizer)
        alone &= all(t.shape == parameter.shape for t in self.tensors.values())
        # Temporaries of elementwise optimizers stay small.
        large = alone and parameter.dim() > 0 and parameter.nbytes > 2 * _BLOCK
        count = -(-parameter.nbytes // _BLOCK)
        self.in_blocks(operands, blocks(parameter.shape[0], count) if large else [None])
        return operands[2:]

    def in_blocks(
        self,
        operands: Sequence[Tensor | SlowTensor],
        spans: Sequence[tuple[int, int] | None],
    ) -> None:
        """Update in blocks of rows, each (first, number) or None for all rows; operands may be in
        either memory."""
        if self.held:
            self.gradient = None if self.dropped else fast(operands[1]).clone()
            return
        scalars = self.scalars if self.begun else None
        with torch.no_grad():
            for span in spans:
                parts = operands if span is None else [one.narrow(0, *span) for one in operands]
                values = [fast(part) for part in parts]
                after = self.step_on(scalars, *values)
                for i, (part, value) in enumerate(zip(parts, values, strict=True)):
                    if isinstance(part, SlowTensor) and i != 1:
                        part.write(value)
                del values, value
        self.scalars, self.begun = after, True
        self.count += 1

    def step_on(
        self,
        scalars: dict[str, Any] | None,
        parameter: Tensor,
        gradient: Tensor,
        *state: Tensor,
    ) -> dict[str, Any]:
        """Update a block in place, and return the state's new scalars. ``scalars`` are those before
        the step, None if there is no state yet."""
        given = dict(zip(self.tensors, state, strict=True))
        before = {} if scalars is None else given | {n: _clone(v) for n, v in scalars.items()}
        after = step_alone(
            self.optimizer, group_of(self.optimizer, self.parameter), parameter, gradient, before
        )
        new = {name for name in after.keys() - before.keys() if _is_movable(after[name])}
        for name in sorted(given.keys() | new):
            own, made = given.get(name), after.get(name)
            if own is None or made is None or made.shape != own.shape:
                raise LoadmasterError(
                    f"{self}: its state {name!r} has changed its shape, which no plan foresees"
                )
            if made is not own and made.data_ptr() != own.data_ptr():
                _take_over(own, made)
        return {name: value for name, value in after.items() if name not in given}

    def sync_to_optimizer(self) -> None:
        """Store the state in the optimizer as its own step would: scalars in the tensors that are
        there, because the caller may refer to them. None of them stays in the plan's memory."""
        if not self.begun:
            return
        there = self.optimizer.state.setdefault(self.parameter, {})
        mine = self.tensors | self.scalars
        for name in (name for name in dict.fromkeys([*self.order, *mine]) if name in mine):
            own, value = there.get(name), mine[name]
            if name in self.tensors or not isinstance(own, Tensor):
                there[name] = _clone(value)
            elif own is not value:
                own.copy_(value)
        self.scalars = {name: there[name] for name in self.scalars}

    def sync_from_optimizer(self) -> None:
        """Read the state from the optimizer, because the caller may have loaded or cleared it since
        the last step."""
        there = self._read_state()
        for name, own in self.tensors.items():
            if self.begun and there[name] is not own:
                own.copy_(there[name])
        self.sync_to_optimizer()

    def _read_state(self) -> dict[str, Any]:
        """Return the optimizer's state of the parameter, and set ``scalars`` and ``begun`` from
        it."""
        there: dict[str, Any] = self.optimizer.state.get(self.parameter) or {}
        self.begun = there.keys() >= self.tensors.keys() and (bool(there) or not self.order)
        self.scalars = {name: value for name, value in there.items() if name not in self.tensors}
        return there

    @property
    def has_other_state(self) -> bool:
        """Whether the optimizer's state of the parameter has other tensors than this update."""
        there = self.optimizer.state.get(self.parameter) or {}
        mine = self.tensors if self.begun else {}
        return any(there.get(name) is not mine.get(name) for name in self.tensors)

    def is_outdated(self, kind: Any) -> bool:
        """Whether the state may have other tensors, because it is gone from the optimizer, or the
        parameter or the ``kind`` of its group has changed."""
        gone = self.begun and self.tensors and not self.optimizer.state.get(self.parameter)
        return bool(gone or self.signature != _state_key(kind, self.parameter))

    def adopt_state(self) -> None:
        """Use the optimizer's own tensors as the state, if it has them."""
        there = self._read_state()
        if self.begun:
            self.tensors = {name: there[name] for name in self.tensors}

    def trial(self) -> Update:
        """Return a copy of the update for stand-in operands."""
        trial = copy.copy(self)
        trial.held = trial.dropped = False
        return trial

    def profile(self, call: Call, captured: Captured) -> CallProfile:
        """Measure the first update, which makes the state, and a later one: time and
        allocations."""
        operands, trial = stand_ins(call, captured)[0], self.trial()
        return profiled_update(trial, lambda: trial(*operands), call.results)


def _take_over(own: Tensor, made: Tensor) -> None:
    """Give tensor ``own`` the contents of ``made``, by swapping their memory if possible."""
    whole = own.untyped_storage(), made.untyped_storage()
    if (
        whole[0].resizable()
        and whole[0].nbytes() == whole[1].nbytes()
        and own.stride() == made.stride()
    ):
        swap_memory(*whole)
    else:
        own.copy_(made)


def _clone(value: Any) -> Any:
    """Return a copy of a scalar that is a tensor; other values stay, and tensors that the optimizer
    keeps from a time with other hyperparameters."""
    return value.clone() if isinstance(value, Tensor) and not _is_movable(value) else value


def _is_movable(value: Any) -> bool:
    """Whether a value is a tensor with dimensions."""
    return isinstance(value, Tensor) and value.dim() > 0


def group_of(optimizer: Optimizer, parameter: Tensor) -> dict[str, Any]:
    """Return the optimizer's parameter group of a parameter. Raises `LoadmasterError`."""
    for group in optimizer.param_groups:
        if any(one is parameter for one in group["params"]):
            return cast(dict[str, Any], group)
    raise LoadmasterError(
        f"optimizer.{optimizer.__class__.__name__} has dropped a parameter that the plan updates:"
        " compile the model again"
    )


def step_alone(
    optimizer: Optimizer,
    group: dict[str, Any],
    parameter: Tensor,
    gradient: Tensor,
    state: dict[str, Any],
) -> dict[str, Any]:
    """Make one step of a copy of ``optimizer`` on one parameter, and return the state after it."""
    alone = object.__new__(optimizer.__class__)
    alone.__dict__.update(optimizer.__dict__)
    alone.__dict__.pop(
        "step", None
    )  # an instance attribute set by schedulers, which counts steps of the whole optimizer
    only = torch.nn.Parameter(parameter.detach(), requires_grad=False)
    if gradient.stride() != only.stride():  # autograd does the same
        gradient = torch.empty_like(only).copy_(gradient)
    only.grad = gradient
    alone.param_groups = [{**group, "params": [only]}]
    alone.state = defaultdict(dict, {only: state} if state else {})
    # Without the hooks around it, which are of the step of the whole optimizer.
    step = optimizer.__class__.step
    getattr(step, "__wrapped__", step)(alone)
    return dict(alone.state[only])


class Updates:
    """The updates of a model's parameters, one for each parameter, shared by all graphs.

    Attributes
    ----------
    left
        Parameters (by ``id``) that are left to the optimizer's own step, because one backward pass
        does not complete their gradients.
    made
        Parameters (by ``id``) that backward passes have updated since the last call of that step.
    """

    def __init__(self, optimizer: Optimizer | None) -> None:
        self.optimizer = optimizer
        self.left: set[int] = set()
        self.made: set[int] = set()
        self._updates: dict[int, Update] = {}
        self._forms: dict[Any, dict[str, Any]] = {}

    def of(self, parameter: Tensor) -> Update:
        """Return the update of a parameter, made at the first call or when it is out of date.
        Raises `BudgetError` if the optimizer cannot step on one parameter alone."""
        optimizer = self.optimizer
        assert optimizer is not None
        known = self._updates.get(id(parameter))
        kind = _kind_of(optimizer, group_of(optimizer, parameter))
        if known is None or known.is_outdated(kind):
            template = _state_template(optimizer, parameter, kind, self._forms)
            known = self._updates[id(parameter)] = Update(optimizer, parameter, kind, template)
        return known

    def are_outdated(self, updates: Iterable[Update]) -> bool:
        """Return whether some updates are out of date."""
        if self.optimizer is None:
            return False
        kinds: dict[int, Any] = {}
        for group in self.optimizer.param_groups:
            kinds |= dict.fromkeys(map(id, group["params"]), _kind_of(self.optimizer, group))
        return any(
            update.is_outdated(kinds.get(id(update.parameter), update.signature[0]))
            for update in updates
        )

    def is_left(self, parameter: Tensor) -> bool:
        """Return whether a parameter is left to the optimizer's own step; also if hooks read its
        gradient."""
        return bool(
            id(parameter) in self.left
            or parameter._backward_hooks
            or getattr(parameter, "_post_accumulate_grad_hooks", None)
            or has_pre_hooks(self.optimizer)
        )

    def wanted(self) -> set[int]:
        """Return the parameters (by ``id``) that backward passes may update."""
        groups = self.optimizer.param_groups if self.optimizer else []
        return {id(p) for group in groups for p in group["params"] if not self.is_left(p)}


@dataclass(frozen=True)
class Traced(Captured):
    """A captured and profiled graph, before it is planned.

    Attributes
    ----------
    profiles
        Profile of each call.
    updates, states
        Updates, and their state tensors by storage; both by the position of the gradient among the
        results of the backward part.
    given
        Storages of parameters and buffers, each with its position among the arguments.
    movable
        Storages of the caller that a plan may move.
    gradients
        Storages of gradients that a plan may move.
    """

    profiles: list[CallProfile] = field(default_factory=list)
    updates: dict[int, Update] = field(default_factory=dict)
    states: dict[int, dict[int, Tensor]] = field(default_factory=dict)
    given: dict[int, int] = field(default_factory=dict)
    movable: frozenset[int] = frozenset()
    gradients: frozenset[int] = frozenset()

    def tensors(self, given: Sequence[Any]) -> dict[int, Tensor]:
        """Return parameters and buffers among the arguments ``given``, and optimizer state, by
        storage."""
        tensors = {storage: given[i] for storage, i in self.given.items()}
        for state in self.states.values():
            tensors |= state
        return tensors

    def fresh(self) -> set[int]:
        """Return the storages of optimizer state that no update has written yet."""
        return {s for i, state in self.states.items() if not self.updates[i].begun for s in state}


def with_updates(traced: Traced, given: Sequence[Any], updates: Updates) -> Traced:
    """Insert an update into the backward part as soon as the gradient is complete and the parameter
    is no longer read. Parameters left to the optimizer, passed twice, or without a storage of their
    own, get no update."""
    first, second = traced.parts
    if len(second.returned) != len(first.given):
        return traced
    mine = updates.wanted()
    storages, calls = list(traced.storages), list(traced.calls)
    added: list[tuple[int, Call]] = []
    for i, (slot, gradient) in enumerate(zip(first.given, second.returned, strict=True)):
        if (
            is_view(slot)
            and is_view(gradient)
            and slot.storage in traced.given
            and id(given[i]) in mine
        ):
            update = traced.updates[i] = updates.of(given[i])
            state = traced.states[i] = dict(enumerate(update.tensors.values(), len(storages)))
            own = storages[slot.storage].name
            storages += [
                Storage(f"{own}.{name}", tensor.untyped_storage().nbytes(), Owner.CALLER)
                for name, tensor in update.tensors.items()
            ]
            after = [
                k + 1
                for k, c in enumerate(calls)
                if slot.storage in c.storages or gradient.storage in c.writes
            ]
            made = tuple(view_of(tensor, s) for s, tensor in state.items())
            reads = tuple(dict.fromkeys((slot.storage, gradient.storage, *state)))
            call = Call(
                f"update_{own}",
                update,
                (slot, gradient, *made),
                {},
                made,
                reads,
                (slot.storage, *state),
            )
            added.append((max([second.first, *after]), call))
    for position, call in sorted(added, key=lambda pair: -pair[0]):
        calls.insert(position, call)
    returned = tuple(None if i in traced.updates else v for i, v in enumerate(second.returned))
    others = {view.storage for view in views([returned, first.returned])}
    for view in views(second.returned):
        storage = storages[view.storage]
        if storage.owner is Owner.RETURNED and view.storage not in others:
            # The update is the last reader of the gradient.
            storages[view.storage] = replace(storage, owner=Owner.PLAN)
    parts = first, replace(second, end=len(calls), returned=returned)
    return replace(traced, storages=storages, calls=calls, parts=parts)


def _state_key(kind: Any, parameter: Tensor) -> tuple[Any, ...]:
    """Return a key, equal for parameters whose state has equal names and forms; ``kind`` is that of
    their group."""
    return kind, parameter.shape, parameter.stride(), parameter.dtype


def _kind_of(optimizer: Optimizer, group: dict[str, Any]) -> tuple[Any, ...]:
    """Return what decides which state the parameters of a group have: the optimizer's type, and
    which hyperparameters are zero."""

    def is_set(value: Any) -> Any:
        """Return whether a number is not zero, and the type of anything else."""
        return value != 0 if isinstance(value, int | float) else type(value).__name__

    names = sorted(group.keys() & optimizer.defaults.keys() - {"lr"})
    return optimizer.__class__, *((name, is_set(group[name])) for name in names)


def _state_template(
    optimizer: Optimizer, parameter: Tensor, kind: Any, known: dict[Any, dict[str, Any]]
) -> dict[str, Any]:
    """Return the state after a first step: tensors with undefined contents, and scalars. ``known``
    caches states by `_state_key`. Raises `BudgetError`."""
    key = _state_key(kind, parameter)
    # A trial on the whole parameter would take as much memory as a step.
    shape = (1,) * parameter.dim() if is_elementwise(optimizer) else parameter.shape
    if key not in known:
        trial, gradient = (
            torch.full(shape, 0.5, dtype=parameter.dtype, device=parameter.device) for _ in range(2)
        )
        try:
            with torch.no_grad(), torch.inference_mode(False):
                group = group_of(optimizer, parameter)
                state = step_alone(optimizer, group, trial, gradient, {})
        except Exception as error:
            raise BudgetError(
                f"optimizer {optimizer.__class__.__name__} cannot update one parameter after"
                f" another ({error}): call its step() yourself"
            ) from error
        known[key] = {n: v.to("meta") if _is_movable(v) else v for n, v in state.items()}
    return {
        name: value
        if not _is_movable(value)
        else torch.empty_like(parameter, dtype=value.dtype)
        if value.shape == shape
        else torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
        for name, value in known[key].items()
    }
