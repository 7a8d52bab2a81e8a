"""Memory planning for ExecuTorch: `memory_planning` returns a pass for its export
(docs/how-to/executorch.md)."""

from loadmaster.core.errors import missing

try:
    from loadmaster.integrations.executorch.planning_pass import memory_planning as memory_planning
except ModuleNotFoundError as error:
    raise missing(error, "loadmaster.integrations.executorch") from error
