"""Runs a torch module with tensors that have shapes and no bytes, and records every kernel that it would launch, in order.

What is recorded is what eager execution does, below automatic differentiation: backward kernels where autograd runs them, in-place
operators as such, running statistics and parameters updated in place. Tracing once, without functionalisation, gives the order and
the lifetimes that training has, at less than half the cost of exporting a joint graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from loadmaster.errors import LoadmasterError, ModelError
from loadmaster.graph import TensorKind


@dataclass(frozen=True)
class Captured:
    """A recorded run: the trace, and for each of its placeholders what it is and what its owner calls it."""

    module: fx.GraphModule
    kinds: Mapping[str, TensorKind]
    names: Mapping[str, str]


def capture(factory: Callable[[], Any], *, training: bool) -> Captured:
    """Call a factory and record one inference, or one training step, of the module that it returns.

    A training step is the forward pass, the loss (the module's result if that is one number, else the sum of all floating results), the
    backward pass, and a step of the optimiser if the factory returns one. Without an optimiser the gradients are results.

    Raises
    ------
    ModelError
        The factory or the module fails, or needs the values of tensors.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        try:
            made = factory()
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            raise ModelError(
                f"the factory looks at values ({_said(error)}): it runs with shapes alone; compute them without torch"
            ) from error
        except LoadmasterError:
            raise
        except Exception as error:
            raise ModelError(f"the factory failed: {_said(error)}") from error
        run = _Run(*_parts(made), training, mode)
        try:
            return run.trace()
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            raise ModelError(f"what it computes depends on values ({_said(error)}), and a plan needs to know it before") from error
        except LoadmasterError:
            raise
        except Exception as error:
            raise ModelError(f"cannot be traced: {_said(error)}") from error


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:300]}"


def _parts(made: Any) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any], Callable[[list[nn.Parameter]], torch.optim.Optimizer] | None]:
    """Module, positional and keyword inputs, and what makes the optimiser."""
    if not isinstance(made, tuple) or len(made) not in (2, 3) or not isinstance(made[0], nn.Module):
        raise ModelError(
            "the factory must return a module and its inputs (a tensor, a tuple or a dict), and optionally what makes an optimiser "
            f"of parameters; it returned {type(made).__name__}"
        )
    module, inputs, make = made[0], made[1], made[2] if len(made) == 3 else None
    if make is not None and not callable(make):
        raise ModelError(f"the third thing that the factory returns must make an optimiser of parameters; it is a {type(make).__name__}")
    if isinstance(inputs, Mapping):
        return module, (), dict(inputs), make
    return module, tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,), {}, make


class _Run:
    """One module, its inputs and its optimiser, all without bytes."""

    def __init__(
        self,
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        make_optimiser: Callable[[list[nn.Parameter]], torch.optim.Optimizer] | None,
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
        self._module = module.train(training)
        self._args, self._kwargs = pytree.tree_map_only(Tensor, self._without_bytes, (args, kwargs))
        self._parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self._optimiser = self._warmed_up(make_optimiser) if training and make_optimiser is not None else None

    def _without_bytes(self, tensor: Any) -> Any:
        """The same tensor with a shape alone, on the CPU; views of one tensor are not kept together."""
        if id(tensor) in self._known:
            return self._known[id(tensor)][1]
        fake: Any = tensor
        if tensor.device.type == "meta":
            with torch.no_grad():
                fake = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="cpu")
            fake = (
                nn.Parameter(fake, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else fake.requires_grad_(tensor.requires_grad)
            )
        elif not isinstance(tensor, FakeTensor):
            fake = self._mode.from_tensor(tensor)
        self._known[id(tensor)] = (tensor, fake)
        return fake

    def _warmed_up(self, make: Callable[[list[nn.Parameter]], torch.optim.Optimizer]) -> torch.optim.Optimizer:
        """The optimiser after a step, so that its state is there."""
        optimiser = make(list(self._parameters.values()))
        if not isinstance(optimiser, torch.optim.Optimizer):
            raise ModelError(f"what should make an optimiser made a {type(optimiser).__name__}")
        for parameter in self._parameters.values():
            parameter.grad = torch.zeros_like(parameter)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        return optimiser

    def trace(self) -> Captured:
        """Record the step."""
        weights, inputs = dict(self._weights()), dict(self._inputs())
        # The module finds its own tensors: those listed here are the same objects, and become the trace's placeholders.
        step = self._step if self._training else self._inference
        graph = make_fx(lambda *_: step(), tracing_mode="real", _error_on_data_dependent_ops=True)(*weights.values(), *inputs.values())
        placeholders = [node.name for node in graph.graph.nodes if node.op == "placeholder"]
        labels = [*weights, *inputs]
        kinds = [TensorKind.WEIGHT] * len(weights) + [TensorKind.INPUT] * len(inputs)
        return Captured(graph, dict(zip(placeholders, kinds, strict=True)), dict(zip(placeholders, labels, strict=True)))

    def _weights(self) -> Iterator[tuple[str, Tensor]]:
        yield from self._module.named_parameters()
        yield from self._module.named_buffers()
        if self._optimiser is not None:
            owners = {id(parameter): name for name, parameter in self._parameters.items()}
            for parameter, state in self._optimiser.state.items():
                for key, value in state.items():
                    if isinstance(value, Tensor):
                        yield f"{owners[id(parameter)]}.{key}", value

    def _inputs(self) -> Iterator[tuple[str, Tensor]]:
        seen: set[int] = set()
        for path, value in pytree.tree_flatten_with_path((self._args, self._kwargs))[0]:
            if isinstance(value, Tensor) and id(value) not in seen:
                seen.add(id(value))
                yield "input" + pytree.keystr(path[1:]), value

    def _inference(self) -> list[Tensor]:
        with torch.no_grad():
            result = self._module(*self._args, **self._kwargs)
        return _tensors(result)

    def _step(self) -> list[Tensor]:
        loss = _loss(self._module(*self._args, **self._kwargs))
        if not loss.requires_grad:
            raise ModelError("the loss depends on no parameter that is trained: leave out --training, or set requires_grad")
        names = list(self._parameters)
        gradients = torch.autograd.grad(loss, [self._parameters[name] for name in names], allow_unused=True)
        if self._optimiser is None:
            return [loss, *(gradient for gradient in gradients if gradient is not None)]
        for name, gradient in zip(names, gradients, strict=True):
            self._parameters[name].grad = gradient
        del gradients
        self._optimiser.step()
        return [loss]


def _tensors(result: Any) -> list[Tensor]:
    return [value for value in pytree.tree_leaves(dict(result) if isinstance(result, Mapping) else result) if isinstance(value, Tensor)]


def _loss(result: Any) -> Tensor:
    """The first result if it is one number, else the sum of all floating results."""
    floating = [tensor for tensor in _tensors(result) if tensor.is_floating_point()]
    if not floating:
        raise ModelError("the module returns no floating-point tensor, and a training step needs a loss")
    if floating[0].numel() == 1:
        return floating[0] if floating[0].ndim == 0 else floating[0].reshape(())
    total = floating[0].sum()
    for tensor in floating[1:]:
        total = total + tensor.sum()
    return total
