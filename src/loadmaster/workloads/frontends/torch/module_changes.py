"""Changes of modules that PyTorch refuses for tensors without bytes: casts, copies, and parameters
that get their shape at the first call.

PyTorch exchanges what is below a parameter where its tensor is of a class of its own, as tensors
without bytes are, and that fails where anybody else refers to them. Here the parameter gets its new
contents as an ordinary one does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.nn import parameter as lazy


@contextmanager
def castable() -> Iterator[None]:
    """Let modules without bytes be cast, moved, copied and materialised, as others can be."""
    kinds = (lazy.UninitializedParameter, lazy.UninitializedBuffer)
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(nn.Module, "_apply", _apply))
        for kind in kinds:
            stack.enter_context(mock.patch.object(kind, "__new__", _with_bytes(kind.__new__)))
        mixin = lazy.UninitializedTensorMixin  # type: ignore[attr-defined]
        stack.enter_context(mock.patch.object(mixin, "materialize", _materialize))
        # A copy of a tensor is in the same mode; PyTorch copies the mode with the tensor.
        same = mock.patch.object(FakeTensorMode, "__deepcopy__", lambda mode, _: mode, create=True)
        stack.enter_context(same)
        yield


def _apply(self: nn.Module, change: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
    """Do what `torch.nn.Module._apply` does with ordinary tensors: parameters stay the objects that
    they are."""
    for child in self.children() if recurse else ():
        child._apply(change)
    for name, parameter in self._parameters.items():
        if parameter is None:
            continue
        with torch.no_grad(), _as_made(parameter):
            changed = change(parameter)
            if not torch._has_compatible_shallow_copy_type(parameter, changed):
                self._parameters[name] = nn.Parameter(changed, parameter.requires_grad)
                continue
            _become(parameter, changed)
            if parameter.grad is not None:
                _become(parameter.grad, change(parameter.grad))
    for name, buffer in self._buffers.items():
        if buffer is not None:
            with _as_made(buffer):
                self._buffers[name] = change(buffer)
    return self


def _as_made(tensor: Tensor) -> AbstractContextManager[Any]:
    """Where a tensor can be changed: a lazy one, which has its own few bytes, outside of the mode
    without bytes."""
    return unset_fake_temporarily() if lazy.is_lazy(tensor) else nullcontext()


def _become(tensor: Tensor, other: Tensor) -> None:
    """Give a tensor the type, the layout and the device of another."""
    if other is tensor:
        return
    tensor.data = other
    if isinstance(tensor, FakeTensor):
        tensor.fake_device = other.device


def _with_bytes(make: Callable[..., Any]) -> Callable[..., Any]:
    """Make lazy tensors, which have no elements yet, as ordinary ones."""

    def made(*args: Any, **kwargs: Any) -> Any:
        with unset_fake_temporarily():
            return make(*args, **kwargs)

    return made


def _materialize(
    self: Any, shape: Any, device: torch.device | None = None, dtype: torch.dtype | None = None
) -> None:
    """Do what `UninitializedTensorMixin.materialize` does; the tensor has no bytes."""
    mode = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
    with unset_fake_temporarily():
        # Not by an operator: the mode would keep a reference, with which nothing can be swapped.
        whole = torch.empty(shape, device="meta", dtype=dtype or self.data.dtype)
        full = FakeTensor(mode, whole, torch.device(device or self.data.device))
        if isinstance(self, nn.Parameter):
            full._is_param = True
            full.requires_grad_(self.requires_grad)
        torch.utils.swap_tensors(self, full)
