"""Makes an optimizer's step under a model's budget: tensors in slow memory pass through a small
buffer, block by block.

PyTorch calls the hooks of this module around the step of every optimizer, so no option is needed.
Before the step, `Update` updates each large parameter of a model with a budget, one MiB at a time,
with PyTorch's own arithmetic. The gradients of these parameters are hidden from the step itself,
which updates the other parameters, and restored after it. Steps that cannot run in blocks (not
elementwise, with a closure or hooks) run unchanged, on slow memory through the page cache; their
state is offloaded after the step.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from loadmaster.core.errors import BudgetError, LoadmasterError, SlowMemoryError
from loadmaster.integrations.torch_compile.captured import View, on_storage
from loadmaster.integrations.torch_compile.compiled_model import CompiledModel
from loadmaster.integrations.torch_compile.cpu_memory import Arena
from loadmaster.integrations.torch_compile.persistent import SMALLEST, PersistentTensor
from loadmaster.integrations.torch_compile.slow_tensor import SlowTensor
from loadmaster.integrations.torch_compile.updates import (
    Update,
    forget,
    has_pre_hooks,
    is_elementwise,
)

_BLOCK = 1 << 20
"""Bytes of a parameter that are updated at a time."""
_MOST_OPERANDS = 5
"""Most operands of an update: parameter, gradient, and up to three tensors of state."""
_MODELS: weakref.WeakSet[CompiledModel] = weakref.WeakSet()
"""Models with a budget, or with the option ``optimizer``."""
_HIDDEN: weakref.WeakKeyDictionary[Optimizer, list[tuple[Tensor, Tensor]]] = (
    weakref.WeakKeyDictionary()
)
"""By optimizer, the parameters updated before its running step, with their hidden gradients."""


def watch(model: CompiledModel) -> None:
    """From now on, make optimizer steps on the model's parameters under its budget, and check that
    the optimizer is the one of its option ``optimizer``."""
    if model.settings.fast_memory is not None or model.settings.optimizer is not None:
        _MODELS.add(model)


def _before_step(optimizer: Optimizer, arguments: Any, keywords: Any) -> Any:
    """Update large parameters of models with a budget, or record why the step cannot run in blocks.
    PyTorch calls this before the step of any optimizer. Returns the step's new arguments, None if
    they do not change."""
    if torch.compiler.is_dynamo_compiling():
        return None
    _HIDDEN.pop(optimizer, None)  # of a step that has failed
    if _MODELS:
        _check_owner(optimizer)
        if not has_pre_hooks(optimizer):  # hooks must get an error for spent gradients
            _forget_spent(optimizer)
        for model in _models_of(optimizer):
            with model.lock, torch.no_grad():
                parameters = _parameters(model, optimizer)
                if not parameters or model.memory(parameters[0].device).file is None:
                    continue
                model.clear_idle()
                if reason := _reason_unplanned(optimizer, arguments, keywords):
                    model.record_unplanned_step(optimizer, reason)
                else:
                    _update(model, optimizer, parameters)
    return _with_closure(optimizer, arguments, keywords)


def _with_closure(optimizer: Optimizer, arguments: Any, keywords: Any) -> Any:
    """Return the step's arguments with a closure that removes spent gradients after its backward
    pass; None without a closure."""
    closure = keywords.get("closure") or (arguments[1] if len(arguments) > 1 else None)
    if closure is None:
        return None

    def then_forget() -> Any:
        """Return the closure's loss, and forget spent gradients."""
        loss = closure()
        _forget_spent(optimizer)
        return loss

    return arguments[:1], {**keywords, "closure": then_forget}


def _forget_spent(optimizer: Optimizer) -> None:
    """Forget spent gradients of the optimizer's parameters."""
    forget(p for group in optimizer.param_groups for p in group["params"])


def _models_of(optimizer: Optimizer) -> list[CompiledModel]:
    """Return the models whose budget applies to an optimizer's step: those with large parameters of
    it, but those with another optimizer as their option ``optimizer``. The lock of a model of
    others may be held by a step in another thread, within which a block's step comes here too."""
    models = [model for model in list(_MODELS) if model.settings.optimizer in (None, optimizer)]
    return [model for model in models if _parameters(model, optimizer)]


def _check_owner(optimizer: Optimizer) -> None:
    """Raise `LoadmasterError` if backward passes have updated parameters of this optimizer with
    another optimizer, given as the option ``optimizer``."""
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


def _after_step(optimizer: Optimizer, arguments: Any, keywords: Any) -> None:
    """Restore hidden gradients, and offload new state. PyTorch calls this after the step of any
    optimizer."""
    if torch.compiler.is_dynamo_compiling() or not _MODELS:
        return
    for parameter, gradient in _HIDDEN.pop(optimizer, ()):
        parameter.grad = gradient
    for model in _models_of(optimizer):
        with model.lock, torch.no_grad():
            states = [optimizer.state.get(one, {}) for one in _parameters(model, optimizer)]
            try:
                for state in states:
                    model.keep_state([value for value in state.values() if _is_plain(value)])
            except SlowMemoryError as error:
                model.record_unplanned_step(optimizer, str(error))


register_optimizer_step_pre_hook(_before_step)
register_optimizer_step_post_hook(_after_step)


def _parameters(model: CompiledModel, optimizer: Optimizer) -> list[Tensor]:
    """Return the optimizer's parameters that have a gradient, belong to the model, and have at
    least `SMALLEST` bytes."""
    return [
        p
        for group in optimizer.param_groups
        for p in group["params"]
        if p.nbytes >= SMALLEST
        and p.grad is not None
        and (place := model.persistent.known(p)) is not None
        and place.is_of(p)  # not a view of a parameter
    ]


def _reason_unplanned(
    optimizer: Optimizer, arguments: Sequence[Any], keywords: dict[str, Any]
) -> str:
    """Return why a step cannot run parameter by parameter in blocks; empty if it can."""
    if not is_elementwise(optimizer):
        return "it does not treat each element by itself"
    if any(value is not None for value in (*arguments[1:], *keywords.values())):
        return "it has a closure"
    if has_pre_hooks(optimizer):
        return "hooks come before its step"
    if optimizer._optimizer_step_post_hooks:
        return "hooks of its own come after its step"
    if any(getattr(optimizer, name, None) is not None for name in ("grad_scale", "found_inf")):
        return "it unscales gradients itself"
    if any(
        group.get("capturable") or group.get("differentiable") for group in optimizer.param_groups
    ):
        return "it is capturable or differentiable"
    return ""


def _is_plain(value: Any) -> bool:
    """Whether a value is a large strided tensor with a storage of its own."""
    return (
        type(value) in (Tensor, torch.nn.Parameter)
        and value.layout is torch.strided
        and value.nbytes >= SMALLEST
        and value.untyped_storage().nbytes() == value.nbytes
    )


def _update(model: CompiledModel, optimizer: Optimizer, parameters: Sequence[Tensor]) -> None:
    """Update parameters in blocks and hide their gradients; parameters that cannot be updated so
    are left to the optimizer's own step, and all of them if there is no room for their state.

    Blocks are copied in this thread, because handing them to another one takes longer on a busy
    machine.
    """
    updates, planned = model.updates_of(optimizer), list[tuple[Update, list[Tensor]]]()
    try:
        for parameter in parameters:
            gradient = parameter.grad
            if gradient is None or not (_is_plain(parameter) and _is_plain(gradient)):
                continue
            update = updates.of(parameter)
            update.adopt_state()
            tensors = [parameter, gradient, *update.tensors.values()]
            if len(tensors) > _MOST_OPERANDS or any(
                (t.shape, t.stride()) != (parameter.shape, parameter.stride()) for t in tensors
            ):
                continue
            model.keep_state(tensors[2:], fresh=not update.begun)
            planned.append((update, tensors))
    except (BudgetError, SlowMemoryError) as error:
        model.record_unplanned_step(optimizer, str(error))
        return
    arena, threads = Arena(_MOST_OPERANDS * _BLOCK), torch.get_num_threads()
    hidden = _HIDDEN.setdefault(optimizer, [])
    # On a busy machine, synchronising threads at every operator on a block takes far longer.
    torch.set_num_threads(1)
    try:
        for update, tensors in planned:
            _update_in_blocks(arena, update, tensors, [*map(model.place_of, tensors)])
            hidden.append((update.parameter, tensors[1]))
            update.parameter.grad = None
    finally:
        torch.set_num_threads(threads)
        arena.close()


@dataclass(frozen=True)
class _PassingTensor(SlowTensor):
    """A tensor in slow memory whose blocks, whole pages, pass through an arena at offset ``at``;
    contents of a ``fresh`` one are not read."""

    arena: Arena
    at: int
    fresh: bool

    def read(self) -> Tensor:
        """Read the block into the arena, and return it."""
        if not self.fresh:
            self._transfer(self.file.read)
        count = self.shape[0] * self.dtype.itemsize
        return self.arena.tensor(self.view._replace(offset=0), self.at, count)

    def write(self, values: Tensor) -> None:
        """Write the block from the arena; ``values`` are already there."""
        self._transfer(self.file.write)

    def _transfer(self, by: Callable[[memoryview, int], None]) -> None:
        """Read or write the tensor's part of the file."""
        size = self.dtype.itemsize
        with self.arena.part(self.at, self.shape[0] * size) as memory:
            by(memory, self.start + self.view.offset * size)


def _update_in_blocks(
    arena: Arena,
    update: Update,
    tensors: Sequence[Tensor],
    places: Sequence[PersistentTensor | None],
) -> None:
    """Update one parameter in blocks; ``places`` are the entries of tensors in slow memory, None
    for the others."""
    count, operands = update.parameter.numel(), []
    for i, (tensor, one) in enumerate(zip(tensors, places, strict=True)):
        view = View(0, tensor.dtype, (count,), (1,), 0)
        operands.append(
            on_storage(tensor.untyped_storage(), view)
            if one is None or one.place is None
            else _PassingTensor(view, one.place.file, one.place.slot, arena, i * _BLOCK, one.fresh)
        )
    most = _BLOCK // max(tensor.itemsize for tensor in tensors)
    update.in_blocks(operands, [(a, min(most, count - a)) for a in range(0, count, most)])
    update.sync_to_optimizer()
    torch.autograd.graph.increment_version(update.parameter)
    for i, one in enumerate(places):
        if one is not None and i != 1:  # all but the gradient
            one.fresh = False
            one.changed()
