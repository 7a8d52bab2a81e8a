"""Finds the factory of ``torch:module.path:factory``, calls it, and captures the module that it
returns.

A factory is a function that may take ``batch``, and other sizes by name, and returns a module and
its example inputs (a tensor, a tuple, or a dict of keyword arguments), and optionally a function of
the parameters that makes an optimiser, such as ``torch.optim.Adam``. It is looked up on the Python
path and in the current folder, and runs without memory for tensors, whatever their sizes: nothing
that it makes has values.
"""

from __future__ import annotations

import inspect
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from loadmaster.core.errors import ModelError, error_text
from loadmaster.core.files import protect
from loadmaster.workloads.frontends.frontend import LoadOptions, labelled
from loadmaster.workloads.graph import Graph

VERSION = (2, 13)
"""Release of torch whose traces are understood."""


def load_factory(spot: str, options: LoadOptions) -> Graph:
    """Capture the graph of an inference, or of a training step, of the module that
    ``module.path:factory`` makes; dimensions are arguments of the factory by name.

    Raises
    ------
    ModelError
        torch is missing or of another release, the factory is not found or fails, or the module
        cannot be traced.
    """
    label = f"torch:{spot}"
    with _capturing(label):
        from loadmaster.workloads.frontends.torch.capture import capture

        factory = _bind(_find_factory(spot), options.batch, options.dims)
        name = options.name or spot.rpartition(":")[2]
        return capture(factory, training=options.training, name=name, source=label)


def load_module(made: tuple[Any, ...], label: str, options: LoadOptions) -> Graph:
    """Capture a module and its inputs as a factory would return them; afterwards the module is as
    it was. Errors as `load_factory`."""
    with _capturing(label):
        from loadmaster.workloads.frontends.torch.capture import capture, unchanged

        with unchanged(made[0]):
            name = options.name or label
            return capture(lambda: made, training=options.training, name=name, source=label)


@contextmanager
def _capturing(label: str) -> Iterator[None]:
    """Within the block, prefix errors with a label and silence torch's warnings. Raise ModelError
    if torch is missing."""
    with labelled(label), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        require_torch()
        yield


def as_made(source: str, precision: str | None) -> None:
    """Raise `ModelError` if a precision is asked for: tensors are as the factory makes them."""
    if precision is not None:
        raise ModelError(
            f"{source}: --precision is for files: cast what the factory makes, such as with"
            " module.half()"
        )


def factory_of(
    spot: str, batch: int | None = None, dims: Mapping[str, int] | None = None
) -> Callable[[], Any]:
    """Return the function ``module.path:factory`` with all arguments bound. It and its calls raise
    `ModelError`."""
    with labelled(f"torch:{spot}"):
        bound = _bind(_find_factory(spot), batch, dims or {})

    def made() -> Any:
        """Return what the factory returns."""
        try:
            return bound()
        except (Exception, SystemExit) as error:
            raise ModelError(f"torch:{spot}: the factory failed: {error_text(error)}") from error

    return made


def require_torch(oldest: tuple[int, int] = VERSION) -> None:
    """Raise `ModelError` if torch is not there, is older, or newer than this version knows."""
    try:
        import torch
    except ImportError as error:
        raise ModelError(
            f"torch is not installed ({error}): install it with pip install 'loadmaster[torch]'"
        ) from None
    release = tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2])
    if not oldest <= release <= VERSION:
        wanted = " to ".join(".".join(map(str, of)) for of in sorted({oldest, VERSION}))
        raise ModelError(
            f"torch {torch.__version__} is installed: this needs torch {wanted};"
            " install loadmaster[torch]"
        )


def _find_factory(spot: str) -> Callable[..., Any]:
    """Import the function that ``module.path:factory`` names; raise ModelError if it cannot be
    imported."""
    path, _, attribute = spot.partition(":")
    if not re.fullmatch(r"\w+(\.\w+)*:\w+", spot):
        raise ModelError("write torch:module.path:factory, such as torch:networks.resnet:resnet50")
    # The current folder comes first.
    sys.path.insert(0, "")
    try:
        module = import_module(path)
    except (Exception, SystemExit) as error:
        absent = isinstance(error, ModuleNotFoundError) and error.name
        if absent and (path == absent or path.startswith(f"{absent}.")):
            raise ModelError(
                f"there is no module {absent!r} on the Python path or in {Path.cwd()}"
            ) from None
        raise ModelError(f"importing {path} failed: {error_text(error)}") from error
    finally:
        sys.path.remove("")
    protect([getattr(module, "__file__", None) or ""])
    factory = getattr(module, attribute, None)
    if not callable(factory):
        known = [
            key
            for key, value in vars(module).items()
            if inspect.isfunction(value) and value.__module__ == module.__name__
        ]
        raise ModelError(
            f"{path} has no function {attribute!r}: it has {', '.join(known[:8]) or 'none'}"
        )
    return factory  # type: ignore[no-any-return]


def _bind(
    factory: Callable[..., Any], batch: int | None, dims: Mapping[str, int]
) -> Callable[[], Any]:
    """Return the factory with all arguments bound."""
    given = dict(dims) if batch is None else {**dims, "batch": batch}
    try:
        inspect.signature(factory).bind(**given)
    except ValueError:
        # It does not say what it takes.
        pass
    except TypeError as error:
        raise ModelError(
            f"the factory cannot be called ({error}): --batch N and --dim NAME=N give its"
            " arguments, by name"
        ) from None
    return lambda: factory(**given)
