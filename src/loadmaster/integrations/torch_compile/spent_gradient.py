"""Stands for a gradient that an update in the backward pass has used up, until the optimizer's
step.

With the option ``optimizer`` a gradient ends in the update. Whoever then reads or changes ``.grad``
before the step (norms that are clipped or logged, scalers, gradients that add up) would find None,
as if the parameter had no part in the loss, and do nothing without a word. It finds this instead: a
tensor of the parameter's form without bytes, with which no operator works.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, cast

import torch
from torch.utils._pytree import tree_leaves

from loadmaster.core.errors import LoadmasterError

_ZEROED = (torch.ops.aten.zero_.default, torch.ops.aten._foreach_zero_.default)


class SpentGradient(torch.Tensor):  # type: ignore[misc]
    """The gradient of a parameter that has been updated with it."""

    _parameter: weakref.ref[torch.Tensor]

    @staticmethod
    def __new__(cls, parameter: torch.Tensor) -> SpentGradient:
        """Make it with the form of ``parameter``."""
        made = torch.Tensor._make_wrapper_subclass(
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
        """Refuse all operators but those with which ``zero_grad`` clears gradients."""
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
                " budget, too"
            )
        forget(one for spent_one in spent if (one := spent_one._parameter()) is not None)
        rest = [one for one in given if isinstance(one, torch.Tensor) and not isinstance(one, cls)]
        torch._foreach_zero_(rest) if rest else None
        return arguments[0]


def forget(parameters: Iterable[torch.Tensor]) -> None:
    """Leave no gradient where one was used up: a step has nothing to do there."""
    for parameter in parameters:
        if isinstance(parameter.grad, SpentGradient):
            parameter.grad = None
