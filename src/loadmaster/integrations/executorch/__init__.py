"""Memory planning for ExecuTorch: `memory_planning` returns a pass for its export
(docs/how-to/executorch.md)."""

from loadmaster.integrations.executorch.planning_pass import memory_planning as memory_planning
