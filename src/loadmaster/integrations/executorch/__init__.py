"""Memory plans for ExecuTorch: `memory_planning` makes the pass that its export takes
(docs/executorch.md)."""

from loadmaster.integrations.executorch.planning_pass import memory_planning as memory_planning
