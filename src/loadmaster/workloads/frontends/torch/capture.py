"""Runs a torch module with tensors that have shapes and no bytes, and records every kernel that it
would launch, in order.

What is recorded is what eager execution does, below automatic differentiation: backward kernels
where autograd runs them, in-place operators as such, running statistics and parameters updated in
place. That is the order and those are the lifetimes that training has. Recording calls directly,
without a symbolic trace or functionalisation, takes a fraction of the time of exporting a joint
graph.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from inspect import isfunction
from types import SimpleNamespace
from typing import Any, TypeAlias
from unittest import mock

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    unset_fake_temporarily,
)
from torch.nn import parameter as lazy
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from loadmaster.core.errors import LoadmasterError, ModelError, error_text
from loadmaster.workloads.frontends.frontend import require_trained
from loadmaster.workloads.frontends.torch.graph_builder import Recording
from loadmaster.workloads.frontends.torch.ops import OVERWRITING
from loadmaster.workloads.graph import Graph, TensorKind

Optimiser: TypeAlias = torch.optim.Optimizer
MakeOptimiser: TypeAlias = Callable[[list[nn.Parameter]], Optimiser]


_HIGHER_ORDER = re.compile(r"HigherOrderOperator (\w+)")
"""How PyTorch's error begins where a mode meets ``torch.cond``, ``while_loop`` or the like."""


def capture(factory: Callable[[], Any], *, training: bool, name: str, source: str) -> Graph:
    """Call a factory and record one inference, or one training step, of the module that it returns.

    A training step is the forward pass, the loss (the module's result if that is one number, else
    the sum of all floating results), the backward pass, and a step of the optimiser if the factory
    returns one. Without an optimiser the gradients are results.

    Raises
    ------
    ModelError
        The factory or the module fails, or needs the values of tensors.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        with (
            _explained(
                "the factory looks at values ({}): it runs with shapes alone; compute them without"
                " torch",
                "the factory failed",
            ),
            _Unfilled(),
            castable(),
        ):
            module, args, kwargs, make = _parts(factory())
            if _is_lazy(module):
                # A call gives its parameters their shapes, as its first step would.
                with torch.no_grad():
                    module(*args, **kwargs)
        with _explained(
            "what it computes depends on values ({}), and a plan needs to know it before",
            "cannot be run",
        ):
            traced = _TracedModule(module, args, kwargs, make, training, mode)
            return traced.record(name, source)


@contextmanager
def _explained(by_values: str, otherwise: str) -> Iterator[None]:
    """Make ModelErrors of errors within the block: ``by_values`` where it needs the values of
    tensors, with the reason, else ``otherwise``."""
    try:
        yield
    except LoadmasterError:
        raise
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise ModelError(by_values.format(error_text(error))) from error
    except (Exception, SystemExit) as error:
        if found := _HIGHER_ORDER.search(str(error)):
            raise ModelError(
                f"it calls {found[1]}, whose functions run as values decide, and a plan needs to"
                " know it before: have the factory choose the branch or the count in Python, and"
                " use scaled_dot_product_attention for attention"
            ) from error
        raise ModelError(f"{otherwise}: {error_text(error)}") from error


def _is_lazy(module: nn.Module) -> bool:
    """Whether a module has parameters or buffers without a shape."""
    return any(map(lazy.is_lazy, (*module.parameters(), *module.buffers())))


@contextmanager
def unchanged(module: nn.Module) -> Iterator[None]:
    """Give a module back its attributes, parameters and buffers, which capturing replaces. Raises
    `ModelError`."""
    if _is_lazy(module):
        raise ModelError("it has lazy parameters without a shape: call the module once before")
    kept = [
        (table, dict(table))
        for part in module.modules()
        for table in (vars(part), part._parameters, part._buffers)
    ]
    try:
        yield
    finally:
        # The tables of TorchScript's modules have no update.
        for table, before in kept:
            for name in set(table.keys()) - before.keys():
                del table[name]
            for name, value in before.items():
                table[name] = value


def _parts(made: Any) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any], MakeOptimiser | None]:
    """Return module, positional and keyword inputs, and the function that makes the optimiser or
    None."""
    if not isinstance(made, tuple) or len(made) not in (2, 3) or not isinstance(made[0], nn.Module):
        raise ModelError(
            "the factory must return a module and its inputs (a tensor, a tuple or a dict), and"
            f" optionally what makes an optimiser of parameters; it returned {type(made).__name__}"
        )
    module, inputs, make = (*made, None)[:3]
    if make is not None and not callable(make):
        raise ModelError(
            "the third thing that the factory returns must make an optimiser of parameters; it is"
            f" a {type(make).__name__}"
        )
    if isinstance(inputs, Mapping):
        return module, (), dict(inputs), make
    return module, tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,), {}, make


_UNRECORDED = (torch.ops.aten.detach.default, torch.ops.aten.lift_fresh.default)
"""Calls that launch no kernel: another name for a tensor, and a constant that exists before the
step."""


class _DispatchMode(TorchDispatchMode):  # type: ignore[misc]
    """Intercepts every operator below automatic differentiation."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Tell PyTorch not to shield this mode from its compiler."""
        # Nothing is compiled here, and shielding every call from the compiler takes as long as the
        # call.
        return False


class _Unfilled(_DispatchMode):
    """Skips operators that fill tensors: there are no bytes to fill, and initialising parameters
    takes most of a factory's time."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Return the tensor itself for operators that only fill it; run all others."""
        name = func._opname.removesuffix("_")
        if (
            name in OVERWRITING
            and name != "copy"
            and args
            and isinstance(args[0], Tensor)
            and args[0].ndim > 0
        ):
            return args[0]
        return func(*args, **(kwargs or {}))


class _Recorder(_DispatchMode):
    """Runs every call, and adds it to the recording."""

    def __init__(self, recording: Recording) -> None:
        super().__init__()
        self._recording = recording
        self._count: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator and record the call; composite operators are decomposed and their parts
        recorded."""
        kwargs = kwargs or {}
        if func in _UNRECORDED or func.namespace == "prim":
            return func(*args, **kwargs)
        if _is_composite(func):
            with self:
                return func.decompose(*args, **kwargs)
        result = func(*args, **kwargs)
        name = func._opname
        number = self._count[name]
        self._count[name] += 1
        self._recording.call(f"{name}_{number}" if number else name, func, args, kwargs, result)
        return result


@cache
def _is_composite(func: Any) -> bool:
    """Whether an operator consists of others on every device."""
    return bool(
        torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")
    )


class _TracedModule:
    """One module, its inputs and its optimiser, all without bytes."""

    def __init__(
        self,
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        make_optimiser: MakeOptimiser | None,
        training: bool,
        mode: FakeTensorMode,
    ) -> None:
        self._mode = mode
        self._training = training
        self._known: dict[int, tuple[Tensor, Tensor]] = {}
        for part in module.modules():
            for table in (part._parameters, part._buffers):
                for name, tensor in table.items():
                    if tensor is not None:
                        table[name] = self._without_bytes(tensor)
        self._module = module
        try:
            module.train(training)
        except NotImplementedError:
            # What torch.export makes has one mode.
            if training:
                raise
        self._args, self._kwargs = pytree.tree_map_only(Tensor, self._without_bytes, (args, kwargs))
        self._parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self._optimiser = (
            self._warm_up(make_optimiser) if training and make_optimiser is not None else None
        )

    def _without_bytes(self, tensor: Any) -> Any:
        """Return a tensor of the same shape without bytes, on the CPU."""
        if id(tensor) in self._known:
            return self._known[id(tensor)][1]
        fake: Any = tensor
        if tensor.device.type == "meta":
            with torch.no_grad():
                fake = torch.empty_strided(
                    tensor.size(), tensor.stride(), dtype=tensor.dtype, device="cpu"
                )
            fake = (
                nn.Parameter(fake, tensor.requires_grad)
                if isinstance(tensor, nn.Parameter)
                else fake.requires_grad_(tensor.requires_grad)
            )
        elif not isinstance(tensor, FakeTensor):
            fake = self._mode.from_tensor(tensor)
        self._known[id(tensor)] = (tensor, fake)
        return fake

    def _warm_up(self, make: MakeOptimiser) -> Optimiser:
        """Return the optimiser after one step, so that its state exists."""
        optimiser = make(list(self._parameters.values()))
        if not isinstance(optimiser, torch.optim.Optimizer):
            raise ModelError(f"what should make an optimiser made a {type(optimiser).__name__}")
        for parameter in self._parameters.values():
            parameter.grad = torch.empty_like(parameter)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        return optimiser

    def record(self, name: str, source: str) -> Graph:
        """Record the step."""
        recording = Recording()
        for label, tensor in self._weights():
            recording.given(label, tensor, TensorKind.WEIGHT)
        for label, tensor in self._inputs():
            recording.given(label, tensor, TensorKind.INPUT)
        # Attention and encoder layers run as the operators that they consist of, in inference as in
        # training, so that a plan can place each.
        unfused = mock.patch.object(torch.backends.mha, "get_fastpath_enabled", return_value=False)
        with unfused, _Recorder(recording):
            outputs = self._step() if self._training else self._inference()
        return recording.graph(name, source, outputs)

    def _weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield names and tensors of the parameters, the buffers and the optimiser's state."""
        yield from self._module.named_parameters()
        yield from self._module.named_buffers()
        if self._optimiser is not None:
            owners = {id(parameter): name for name, parameter in self._parameters.items()}
            for parameter, state in self._optimiser.state.items():
                for key, value in state.items():
                    if isinstance(value, Tensor):
                        yield f"{owners[id(parameter)]}.{key}", value

    def _inputs(self) -> Iterator[tuple[str, Tensor]]:
        """Yield names and tensors of the arguments, each tensor once."""
        seen: set[int] = set()
        for path, value in pytree.tree_flatten_with_path((self._args, self._kwargs))[0]:
            if isinstance(value, Tensor) and id(value) not in seen:
                seen.add(id(value))
                yield "input" + pytree.keystr(path[1:]), value

    def _inference(self) -> list[Tensor]:
        """Run the module without gradients; return its results."""
        with torch.no_grad():
            result = self._module(*self._args, **self._kwargs)
        found = _tensors(result)
        if not found and result is not None:
            raise ModelError("the module returns no tensor, nor a tuple, list or dict of tensors")
        return found

    def _step(self) -> list[Tensor]:
        """Run one training step: forward, backward, and the optimiser if there is one. Return the
        loss, and without an optimiser the gradients."""
        loss = require_trained(_loss(self._module(*self._args, **self._kwargs)))
        parameters = list(self._parameters.values())
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        if self._optimiser is None:
            return [loss, *(gradient for gradient in gradients if gradient is not None)]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        self._optimiser.step()
        return [loss]


def _tensors(result: Any) -> list[Tensor]:
    """Return all tensors in a result."""
    return [
        value
        for value in pytree.tree_leaves(dict(result) if isinstance(result, Mapping) else result)
        if isinstance(value, Tensor)
    ]


def _loss(result: Any) -> Tensor:
    """Return the first result if it is one number, else the sum of all floating-point results."""
    floating = [tensor for tensor in _tensors(result) if tensor.is_floating_point()]
    if not floating:
        raise ModelError(
            "the module returns no floating-point tensor, and a training step needs a loss"
        )
    if floating[0].numel() == 1:
        return floating[0] if floating[0].ndim == 0 else floating[0].reshape(())
    total, *others = (tensor.sum() for tensor in floating)
    return sum(others, total)


@contextmanager
def castable() -> Iterator[None]:
    """Let modules without bytes be initialised, cast, moved, copied and materialised.

    PyTorch exchanges what is below a parameter where its tensor is of a class of its own, as
    tensors without bytes are. It refuses where the mode without bytes refers to them, which does no
    harm, as that refers to nothing of their contents.
    """
    # Initialisation leaves a tensor as it is: some functions repeat until all values are in range,
    # which never ends without values. Names that were imported before still lead to the original
    # functions, whose own helpers are replaced.
    untouched: dict[str, Any] = {
        name: lambda tensor, *_, **__: tensor
        for name, value in vars(nn.init).items()
        if isfunction(value) and name.endswith("_")
    }
    kinds = (lazy.UninitializedParameter, lazy.UninitializedBuffer)
    mixin = lazy.UninitializedTensorMixin  # type: ignore[attr-defined]
    with ExitStack() as stack:
        stack.enter_context(mock.patch.multiple(nn.init, **untouched))
        unheld = SimpleNamespace(getweakrefs=lambda _: [])
        stack.enter_context(mock.patch.object(torch.utils, "weakref", unheld))
        for kind in kinds:
            # These have no elements yet: they are made and cast as ordinary ones.
            for name in ("__new__", "__torch_function__"):
                plain = staticmethod(unset_fake_temporarily()(getattr(kind, name)))
                stack.enter_context(mock.patch.object(kind, name, plain))
        stack.enter_context(mock.patch.object(mixin, "materialize", _materialize_lazy))
        # A copy of a tensor is in the same mode; PyTorch copies the mode with the tensor.
        same = mock.patch.object(FakeTensorMode, "__deepcopy__", lambda mode, _: mode, create=True)
        stack.enter_context(same)
        yield


def _materialize_lazy(
    self: Any, shape: Any, device: torch.device | None = None, dtype: torch.dtype | None = None
) -> None:
    """Do what `UninitializedTensorMixin.materialize` does; the tensor has no bytes."""
    was = self.data
    made = torch.empty(shape, device=device or was.device, dtype=dtype or was.dtype)
    if isinstance(self, nn.Parameter):
        made = nn.Parameter(made, self.requires_grad)
    torch.utils.swap_tensors(self, made)
