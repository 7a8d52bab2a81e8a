"""Finds the call of ``torch.compile`` that a graph runs for: each call has its own budget, shared
by all graphs of its function or module.

Dynamo may run one captured graph for several modules: equal code under equal options is captured
once. So the owner of a run is found when the graph runs. Dynamo calls what was compiled from a
frame of its own, which holds the context that ``torch.compile`` has made; the nearest such frame on
the stack names the owner. Only the class of the context is relied on; where there is none, each
graph has its own budget.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from torch._dynamo import eval_frame

from loadmaster.core.errors import LoadmasterError
from loadmaster.integrations.torch_compile.compiled_model import Model, StepSummary
from loadmaster.integrations.torch_compile.settings import Settings

_CONTEXT = eval_frame.OptimizeContext
_CODE = eval_frame.__file__
_MODELS: weakref.WeakKeyDictionary[Any, Model] = weakref.WeakKeyDictionary()
"""Models by the context of ``torch.compile``, which exists as long as what was compiled."""
_LOCK = threading.Lock()


def model_of_run(options: Mapping[str, Any]) -> Model | None:
    """Return the model that the calling code runs for, made with ``options`` at the first call;
    None outside of compiled functions.

    O(depth of the stack down to the compiled function), about twenty frames.
    """
    context = _nearest_context()
    return None if context is None else _model(context, options)


def model_of(compiled: Callable[..., Any]) -> Model:
    """Return the model of what ``torch.compile`` returned, or of a module on which ``compile`` was
    called. Raises `LoadmasterError`."""
    inner = getattr(compiled, "_compiled_call_impl", None) or compiled
    context = getattr(inner, "dynamo_ctx", None)
    if context is None:
        cells = getattr(inner, "__closure__", None) or ()
        context = next(
            (cell.cell_contents for cell in cells if isinstance(cell.cell_contents, _CONTEXT)), None
        )
    if context is None:
        raise LoadmasterError(f"{compiled!r} was not compiled: give what torch.compile returned")
    backend = context.callback
    while hasattr(backend, "_torchdynamo_orig_backend"):
        backend = backend._torchdynamo_orig_backend
    return _model(context, getattr(backend, "kwargs", {}).get("options") or {})


def summary(compiled: Callable[..., Any]) -> StepSummary:
    """Sum up what a step takes by its plan: budget, peak, bytes moved, predicted seconds, and what
    runs without a plan.

    Parameters
    ----------
    compiled
        What ``torch.compile(..., backend="loadmaster")`` returned, once it has run.

    Returns
    -------
    StepSummary
        Figures of the last step; printed, it is one line.

    Raises
    ------
    LoadmasterError
        If ``compiled`` was not compiled.
    BudgetError
        If the options are wrong.
    """
    return model_of(compiled).summary()


def _model(context: Any, options: Mapping[str, Any]) -> Model:
    with _LOCK:
        model = _MODELS.get(context)
        if model is None:
            model = _MODELS[context] = Model(Settings.of(options), options)
        return model


def _nearest_context() -> Any:
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == _CODE:
            context = frame.f_locals.get("self")
            if isinstance(context, _CONTEXT):
                return context
        frame = frame.f_back  # type: ignore[assignment]
    return None
