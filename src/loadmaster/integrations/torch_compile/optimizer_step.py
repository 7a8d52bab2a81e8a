"""Makes the step of an optimizer under a model's budget: what rests in the slow memory passes
through a small buffer, block by block.

PyTorch calls the hooks of this module around the step of every optimizer, so that no option is
needed. Before the step, each large parameter of a model with a budget is updated by `Update`:
PyTorch's own arithmetic, on one MiB at a time. The gradients of these parameters are hidden from
the step itself, which does what is left, and shown again after it. Steps that cannot be made so
(not element by element, with a closure or hooks) run as they are, on tensors in the slow memory
through the page cache; their state is offloaded once they have ended.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from loadmaster.core.errors import BudgetError, LoadmasterError
from loadmaster.integrations.torch_compile.captured import View, on_storage
from loadmaster.integrations.torch_compile.compiled_model import Model
from loadmaster.integrations.torch_compile.cpu_memory import Arena
from loadmaster.integrations.torch_compile.persistent import SMALLEST, PersistentTensor
from loadmaster.integrations.torch_compile.slow_tensor import SlowTensor
from loadmaster.integrations.torch_compile.updates import Update, forget, is_elementwise

_BLOCK = 1 << 20
"""Bytes of a parameter that are updated at a time."""
_OPERANDS = 5
"""Most operands of an update: parameter, gradient, and what the elementwise optimizers of PyTorch
keep of each element."""
_MODELS: weakref.WeakSet[Model] = weakref.WeakSet()
"""Models with a budget, or with the option ``optimizer``."""
_HIDDEN: weakref.WeakKeyDictionary[
    torch.optim.Optimizer, list[tuple[torch.Tensor, torch.Tensor]]
] = weakref.WeakKeyDictionary()
"""Parameters that were updated before a step that is under way, with their gradients."""


def watch(model: Model) -> None:
    """Make steps of optimizers of the model's parameters under its budget, from now on, and see
    that they are those of its options."""
    if model.settings.fast_memory is not None or model.settings.optimizer is not None:
        _MODELS.add(model)


def _before_step(optimizer: torch.optim.Optimizer, arguments: Any, keywords: Any) -> Any:
    """Update large parameters of models with a budget; called by PyTorch before the step of any
    optimizer. Returns the step's arguments, where they change."""
    if torch.compiler.is_compiling():
        return None
    if _MODELS:
        _check_owner(optimizer)
        if not optimizer._optimizer_step_pre_hooks:  # which would miss gradients that are gone
            _forget_spent(optimizer)
        _update_large(optimizer, arguments, keywords)
    return _with_closure(optimizer, arguments, keywords)


def _update_large(optimizer: torch.optim.Optimizer, arguments: Any, keywords: Any) -> None:
    """Update large parameters of models with a budget, each alone."""
    for model in _models_of(optimizer):
        with model.lock, torch.no_grad():
            parameters = _parameters(model, optimizer)
            if not parameters or model.memory(parameters[0].device).file is None:
                continue
            model.clear_idle()
            if reason := _reason_against(optimizer, arguments, keywords):
                model.leave_step(f"optimizer.{type(optimizer).__name__}", reason)
            else:
                _update(model, optimizer, parameters)


def _with_closure(optimizer: torch.optim.Optimizer, arguments: Any, keywords: Any) -> Any:
    """Have a step's closure leave no gradient where its backward pass has used it up."""
    closure = keywords.get("closure") or (arguments[1] if len(arguments) > 1 else None)
    if closure is None:
        return None

    def then_forget() -> Any:
        loss = closure()
        _forget_spent(optimizer)
        return loss

    return arguments[:1], {**keywords, "closure": then_forget}


def _forget_spent(optimizer: torch.optim.Optimizer) -> None:
    forget(p for group in optimizer.param_groups for p in group["params"])


def _models_of(optimizer: torch.optim.Optimizer) -> list[Model]:
    """Models under whose budget an optimizer steps: not those that have another one as their
    option, whose state alone is theirs."""
    return [model for model in list(_MODELS) if model.settings.optimizer in (None, optimizer)]


def _check_owner(optimizer: torch.optim.Optimizer) -> None:
    """Raise `LoadmasterError` where backward passes have updated parameters of this optimizer by
    another one, which it has replaced."""
    models = [model for model in list(_MODELS) if model.updates.optimizer is not None]
    own = [model for model in models if model.updates.optimizer is optimizer]
    for model in own:
        model.updates.made.clear()
    mine = set() if own else {id(p) for group in optimizer.param_groups for p in group["params"]}
    for model in models:
        if not mine.isdisjoint(model.updates.made):
            raise LoadmasterError(
                "the backward pass has updated these parameters by the"
                f" {type(model.updates.optimizer).__name__} that the option optimizer named, and"
                f" this {type(optimizer).__name__} is another optimizer: call torch.compile again,"
                " with it as the option"
            )


def _after_step(optimizer: torch.optim.Optimizer, arguments: Any, keywords: Any) -> None:
    """Show the gradients again, and offload state; called by PyTorch after the step of any
    optimizer."""
    if torch.compiler.is_compiling() or not _MODELS:
        return
    for parameter, gradient in _HIDDEN.pop(optimizer, ()):
        parameter.grad = gradient
    for model in _models_of(optimizer):
        with model.lock, torch.no_grad():
            for parameter in _parameters(model, optimizer):
                state = optimizer.state.get(parameter, {})
                model.keep_state([value for value in state.values() if _is_plain(value)])


register_optimizer_step_pre_hook(_before_step)
register_optimizer_step_post_hook(_after_step)


def _parameters(model: Model, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Parameters of a model that the optimizer has a gradient for, and that are worth moving."""
    return [
        p
        for group in optimizer.param_groups
        for p in group["params"]
        if p.nbytes >= SMALLEST
        and p.grad is not None
        and (place := model.persistent.known(p)) is not None
        and place.is_of(p)  # not a part of one
    ]


def _reason_against(
    optimizer: torch.optim.Optimizer, arguments: Sequence[Any], keywords: dict[str, Any]
) -> str:
    """Why a step cannot be made parameter by parameter and block by block; empty if it can."""
    if not is_elementwise(optimizer):
        return "it does not treat each element by itself"
    if any(value is not None for value in (*arguments[1:], *keywords.values())):
        return "it has a closure"
    if optimizer._optimizer_step_pre_hooks:
        return "hooks come before its step"
    if any(getattr(optimizer, name, None) is not None for name in ("grad_scale", "found_inf")):
        return "it unscales gradients itself"
    if any(
        group.get("capturable") or group.get("differentiable") for group in optimizer.param_groups
    ):
        return "it is capturable or differentiable"
    return ""


def _is_plain(value: Any) -> bool:
    return (
        type(value) in (torch.Tensor, torch.nn.Parameter)
        and value.layout is torch.strided
        and value.nbytes >= SMALLEST
        and value.untyped_storage().nbytes() == value.nbytes
    )


def _update(
    model: Model, optimizer: torch.optim.Optimizer, parameters: Sequence[torch.Tensor]
) -> None:
    """Update parameters, and hide the gradients of those that were; the others are left to the
    step.

    Copies are made here, one after the other: handing a block to a thread and back takes longer on
    a busy machine.
    """
    updates, threads = model.updates_of(optimizer), torch.get_num_threads()
    arena, hidden = Arena(_OPERANDS * _BLOCK), _HIDDEN.setdefault(optimizer, [])
    # Threads that wait for each other at every operator on a block take far longer on a busy
    # machine.
    torch.set_num_threads(1)
    try:
        for parameter in parameters:
            gradient = parameter.grad
            if gradient is None or not (_is_plain(parameter) and _is_plain(gradient)):
                continue
            try:
                update = updates.of(parameter)
            except BudgetError as error:
                model.leave_step(f"optimizer.{type(optimizer).__name__}", str(error))
                return
            update.adopt_state()
            tensors = [parameter, gradient, *update.tensors.values()]
            if len(tensors) > _OPERANDS or any(
                (t.shape, t.stride()) != (parameter.shape, parameter.stride()) for t in tensors
            ):
                continue
            model.keep_state(tensors[2:], fresh=not update.begun)
            _update_in_blocks(arena, update, tensors, [*map(model.place_of, tensors)])
            hidden.append((parameter, gradient))
            parameter.grad = None
    finally:
        torch.set_num_threads(threads)
        arena.close()


@dataclass(frozen=True)
class _Passing(SlowTensor):
    """A tensor in the slow memory whose blocks, whole pages, pass through an arena, each at the
    offset ``at``; a ``fresh`` one is not read."""

    arena: Arena
    at: int
    fresh: bool

    def read(self) -> torch.Tensor:
        """The block in the arena."""
        if not self.fresh:
            self._pass(self.file.read)
        count = self.shape[0] * self.dtype.itemsize
        return self.arena.tensor(self.view._replace(offset=0), self.at, count)

    def write(self, values: torch.Tensor) -> None:
        """Write the block as it is in the arena."""
        self._pass(self.file.write)

    def _pass(self, by: Callable[[memoryview, int], None]) -> None:
        size = self.dtype.itemsize
        with self.arena.part(self.at, self.shape[0] * size) as memory:
            by(memory, self.start + self.view.offset * size)


def _update_in_blocks(
    arena: Arena,
    update: Update,
    tensors: Sequence[torch.Tensor],
    places: Sequence[PersistentTensor | None],
) -> None:
    """Make an update of one parameter; ``places`` are those of tensors in the slow memory."""
    count, operands = update.parameter.numel(), []
    for i, (tensor, one) in enumerate(zip(tensors, places, strict=True)):
        view = View(0, tensor.dtype, (count,), (1,), 0)
        operands.append(
            on_storage(tensor.untyped_storage(), view)
            if one is None or one.place is None
            else _Passing(view, one.place.file, one.place.slot, arena, i * _BLOCK, one.fresh)
        )
    most = _BLOCK // max(tensor.itemsize for tensor in tensors)
    update.in_blocks(operands, [(a, min(most, count - a)) for a in range(0, count, most)])
    update.sync_to_optimizer()
    torch.autograd.graph.increment_version(update.parameter)
    for i, one in enumerate(places):
        if one is not None and i != 1:  # all but the gradient
            one.fresh = False
            one.changed()
