"""``torch.compile(model, backend="loadmaster", options={...})``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch

from loadmaster.core.errors import LoadmasterError
from loadmaster.integrations.torch_compile.captured import NotPlannable, Part, View
from loadmaster.integrations.torch_compile.compiled_model import Fallback, Model, model_of
from loadmaster.integrations.torch_compile.executor import session_of
from loadmaster.integrations.torch_compile.planned_graph import PlannedGraph


class CompiledGraph:
    """What Dynamo has captured: one graph, or a forward and a backward graph, planned for every combination of shapes that comes."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.graphs: list[torch.fx.GraphModule] = []
        self.kept: int | None = None
        self.plans: dict[Any, PlannedGraph] = {}
        self.unplanned = False

    def forward(self, arguments: Sequence[Any]) -> list[Any]:
        """Run the first graph."""
        key = tuple((a.shape, a.stride()) if isinstance(a, torch.Tensor) else a for a in arguments) if self._dynamic() else None
        with self.model.lock:
            if key not in self.plans:
                self.plans[key] = PlannedGraph(self.model, f"graph {len(self.model.plans)}", self.graphs, self.kept)
        return self.plans[key].forward(arguments)

    def backward(self, arguments: Sequence[Any]) -> list[Any]:
        """Run the second graph."""
        for plan in list(self.plans.values()):  # another thread may add one
            if plan.program is not None and _fits(plan.program.captured.parts[1], arguments):
                return plan.backward(session_of(plan.program.captured.parts[1], arguments), arguments)
        raise LoadmasterError("a backward pass came whose forward pass was not planned")

    def _dynamic(self) -> bool:
        return any(isinstance(node.meta.get("val"), torch.SymInt) for node in self.graphs[0].graph.find_nodes(op="placeholder"))


def _fits(part: Part, arguments: Sequence[Any]) -> bool:
    """Whether a plan is for these shapes."""
    return all(
        argument.shape == view.size if isinstance(view, View) else not isinstance(view, int) or view == argument
        for view, argument in zip(part.given, arguments, strict=True)
    )


def unplanned(graph: torch.fx.GraphModule) -> Callable[[list[Any]], Any]:
    """The graph as it is, each value freed after its last use: what runs where nothing can be planned."""

    def run(arguments: list[Any]) -> Any:
        return torch.fx.Interpreter(graph).boxed_run(arguments)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def loadmaster(
    graph: torch.fx.GraphModule, inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None, mode: str | None = None
) -> Callable[..., Any]:
    """Compile one graph that Dynamo has captured; see `Settings` for the options."""
    from functorch.compile import default_partition
    from torch._dynamo.backends.common import aot_autograd

    model = model_of({} if options is None else options)
    plan = CompiledGraph(model)

    def partition(joint: torch.fx.GraphModule, joint_inputs: Any, **more: Any) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
        plan.kept = more["num_fwd_outputs"]
        return default_partition(joint, joint_inputs, **more)  # type: ignore[no-any-return]

    def forward(part: torch.fx.GraphModule, _: Any) -> Callable[[list[Any]], Any]:
        plan.graphs.insert(0, part)
        return _boxed(plan, plan.forward, part)

    def backward(part: torch.fx.GraphModule, _: Any) -> Callable[[list[Any]], Any]:
        plan.graphs.append(part)
        return _boxed(plan, plan.backward, part)

    with torch._functorch.config.patch(force_non_lazy_backward_lowering=True):
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


def _boxed(plan: CompiledGraph, run: Callable[[Sequence[Any]], list[Any]], part: torch.fx.GraphModule) -> Callable[[list[Any]], Any]:
    plain = unplanned(part)

    def call(arguments: list[Any]) -> Any:
        if not plan.unplanned:
            given = list(arguments)
            try:
                planned = run(given)
            except NotPlannable as reason:
                plan.unplanned = True
                plan.model.shared |= {id(a) for a in given if isinstance(a, torch.Tensor) and a.requires_grad}
                plan.model.fallbacks.append(Fallback(str(plan.graphs[0].graph.find_nodes(op="output")[0].prev), str(reason)))
            else:
                arguments.clear()
                return planned
        return plain(arguments)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call
