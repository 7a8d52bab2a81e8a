"""The backend of ``torch.compile(model, backend="loadmaster", options={...})``."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn, cast

import torch
from torch._dynamo import eval_frame
from torch.utils._python_dispatch import _disable_current_modes

from loadmaster.core.errors import LoadmasterError
from loadmaster.core.units import format_bytes
from loadmaster.integrations.torch_compile.captured import (
    NotPlannable,
    differs_from_storage,
    name_runs,
)
from loadmaster.integrations.torch_compile.compiled_model import (
    CompiledModel,
    Fallback,
    PlannedGraph,
    StepSummary,
)
from loadmaster.integrations.torch_compile.executor import has_session, session_of
from loadmaster.integrations.torch_compile.optimizer_step import watch

_CONTEXT = eval_frame.OptimizeContext
_CODE = eval_frame.__file__
_MODELS: weakref.WeakKeyDictionary[Any, CompiledModel] = weakref.WeakKeyDictionary()
"""Models by the context of ``torch.compile``, which lives as long as the compiled function."""
_LOCK = threading.Lock()


def _owner(options: Mapping[str, Any]) -> CompiledModel | None:
    """Return the model of the compiled function on the call stack, made with ``options`` at the
    first call; None outside of compiled functions.

    O(stack frames up to the compiled function), about twenty.
    """
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == _CODE:
            context = frame.f_locals.get("self")
            if isinstance(context, _CONTEXT):
                return _model(context, options)
        frame = frame.f_back
    return None


def model_of(compiled: Callable[..., Any]) -> CompiledModel:
    """Return the model of a function or module returned by ``torch.compile``, or of a module after
    ``module.compile()``. Raises `LoadmasterError`."""
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
    """Return the figures of a step under its plans: budget, peak, bytes moved, predicted seconds,
    and graphs without a plan.

    Parameters
    ----------
    compiled
        Function or module returned by ``torch.compile(..., backend="loadmaster")``, after its first
        step.

    Returns
    -------
    StepSummary
        Figures of the last step; printed, it is one line. Parameters of a module that no graph uses
        are named, because PyTorch does not compile all code.

    Raises
    ------
    LoadmasterError
        If ``compiled`` was not compiled.
    BudgetError
        If the options are wrong.
    """
    model, module = model_of(compiled), getattr(compiled, "_orig_mod", compiled)
    found = model.summary()
    if found.fallbacks or not isinstance(module, torch.nn.Module):
        return found
    outside = [each for each in module.parameters() if model.persistent.known(each) is None]
    bytes = sum(each.nbytes for each in outside)
    reason = f"no compiled graph uses {len(outside)} parameters of {format_bytes(bytes)}"
    return replace(found, fallbacks=(Fallback("module", reason),)) if bytes else found


def _model(context: Any, options: Mapping[str, Any]) -> CompiledModel:
    """Return the runtime of a compiled module, made on the first call."""
    with _LOCK:
        model = _MODELS.get(context)
        if model is None:
            model = _MODELS[context] = CompiledModel(options)
        return model


class CompiledGraph:
    """One graph captured by Dynamo, or its forward and backward graph, planned for each model and
    each combination of input shapes.

    Parameters
    ----------
    options
        The options of ``torch.compile``, equal for all models.
    parts
        One or two graphs; complete once the backend has returned.
    kept
        Number of the first graph's results that go to the caller; None: all.
    planned
        Whether the graph runs by a plan: true until planning has failed.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.parts: list[torch.fx.GraphModule] = []
        self.kept: int | None = None
        self.planned = True
        self._options = options
        # Kept as long as Dynamo keeps the graph.
        self._first = _owner(options) or CompiledModel(options)

    @property
    def model(self) -> CompiledModel:
        """Model of the running compiled function."""
        return _owner(self._options) or self._first

    def forward(self, arguments: Sequence[Any]) -> list[Any]:
        """Run the forward part, and return its results."""
        model, shapes = self.model, None
        given = self.parts[0].graph.find_nodes(op="placeholder")
        if any(isinstance(node.meta.get("val"), torch.SymInt) for node in given):
            shapes = tuple(
                (a.shape, a.stride()) if isinstance(a, torch.Tensor) else a for a in arguments
            )
        with model.lock:
            plans = (one for one in model.graphs if one.graphs is self.parts)
            plan = next((one for one in plans if one.fits(shapes, arguments)), None)
            if plan is None:
                plan = PlannedGraph(model, self.parts, self.kept, shapes)
                model.graphs.append(plan)
                watch(model)
        return plan.forward(arguments)

    def backward(self, arguments: Sequence[Any]) -> list[Any]:
        """Run the backward part under the plan that ran the forward part, and return its results.
        Raises `LoadmasterError`."""
        session = session_of(arguments)
        if not all(map(torch._C._has_storage, filter(torch.is_tensor, arguments))):
            raise LoadmasterError(
                "a backward pass over several gradients at once: leave is_grads_batched out"
            )
        resolved = [
            one.resolve_conj().resolve_neg() if differs_from_storage(one) else one
            for one in arguments
        ]
        return session.second(session, resolved)

    def fall_back(self, reason: str, given: Sequence[Any]) -> None:
        """Run the graph without a plan from now on, and report the ``reason``."""
        self.planned = False
        self.model.fall_back(str(self.parts[0].graph.output_node().prev), reason, given)


def unplanned(graph: torch.fx.GraphModule, _: Any = None) -> Callable[[list[Any]], Any]:
    """Return a function that runs the graph without a plan and frees each value after its last
    use."""

    def run(arguments: list[Any]) -> Any:
        """Run the graph without a plan."""
        return torch.fx.Interpreter(graph).boxed_run(arguments)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def loadmaster(
    graph: torch.fx.GraphModule,
    inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile one graph captured by Dynamo; see `CompileOptions` for the options.

    Wrong options are refused when the graph is called, because Dynamo would replace errors raised
    during compilation by its own.
    """
    from functorch.compile import default_partition

    try:
        plan = CompiledGraph({} if options is None else options)
        plan.model.make_room_to_compile(inputs)
    except LoadmasterError as error:
        return partial(_refuse, error)

    def partition(joint: torch.fx.GraphModule, inputs: Any, **more: Any) -> Any:
        """Divide a training graph into forward and backward, and name their runs."""
        plan.kept = more["num_fwd_outputs"]
        first, second = default_partition(joint, inputs, **more)
        name_runs(first, second, plan.kept)
        return first, second

    forward = partial(_planned_call, plan, plan.forward, 0)
    backward = partial(_planned_call, plan, plan.backward, 1)
    return compiled_by(forward, backward, partition)(graph, inputs)


def compiled_by(
    forward: Any, backward: Any, partition: Any, **settings: Any
) -> Callable[..., Callable[..., Any]]:
    """Return a backend whose forward and backward graphs AOTAutograd makes, with these settings of
    functorch."""
    from torch._dynamo.backends.common import aot_autograd

    def compiled(graph: torch.fx.GraphModule, inputs: Any, **_: Any) -> Callable[..., Any]:
        """Compile a graph with AOTAutograd; the backward pass is compiled with the forward pass."""
        with torch._functorch.config.patch(force_non_lazy_backward_lowering=True, **settings):
            return cast(
                Callable[..., Any],
                aot_autograd(
                    fw_compiler=forward,
                    bw_compiler=backward,
                    inference_compiler=forward,
                    partition_fn=partition,
                    keep_inference_input_mutations=True,
                )(graph, inputs),
            )

    return compiled


def _refuse(error: LoadmasterError, *_: Any) -> NoReturn:
    """Raise the error."""
    raise error.with_traceback(None)


def _planned_call(
    plan: CompiledGraph,
    run: Callable[[Sequence[Any]], list[Any]],
    number: int,
    part: torch.fx.GraphModule,
    _: Any,
) -> Callable[[list[Any]], Any]:
    """Return a function that runs part ``number`` of a graph as planned, or unplanned once planning
    has failed. It empties the list of its arguments."""
    plan.parts.insert(number, part)
    plain = unplanned(part)

    def call(arguments: list[Any]) -> Any:
        """Run the part as planned; fall back to the unplanned part if it cannot be planned. A
        planned forward part has a planned backward part."""
        if plan.planned or (number and has_session(arguments)):
            given = list(arguments)
            try:
                # AOTAutograd's mode is active in the first run, and would convert numbers twice.
                # The caller's default device, a mode, is not that of the plan's own tensors.
                own = torch.device("cpu") if torch._C._len_torch_function_stack() else nullcontext()
                with _disable_current_modes(), own:
                    planned = run(given)
            except NotPlannable as reason:
                plan.fall_back(str(reason), given)
            else:
                arguments.clear()
                return planned
        return plain(arguments)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call
