"""The update of a parameter that rests in the slow memory with its gradient and its state, block by
block."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from loadmaster.integrations.torch_compile.captured import Call, Captured
from loadmaster.integrations.torch_compile.cutting.block_call import BlockCall, fast
from loadmaster.integrations.torch_compile.kernel_profile import CallProfile
from loadmaster.integrations.torch_compile.slow_tensor import SlowTensor, blocks
from loadmaster.integrations.torch_compile.updates import Update, is_elementwise


@dataclass(frozen=True)
class UpdatedRows:
    """An elementwise optimizer's step in blocks of the parameter's rows; the same to the bit as on
    the whole."""

    pieces: int

    def __call__(
        self,
        call: Call,
        slow: Sequence[SlowTensor | None],
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
    ) -> tuple[Any, ...]:
        """Make the step, or keep the gradient if the update is held."""
        update: Update = call.target
        parameter, gradient = arguments[:2]
        if update.held:
            update.gradient = fast(gradient).clone()
            return (None,) * len(slow)
        scalars = update.scalars if update.begun else None
        for start, length in blocks(parameter.shape[0], self.pieces):
            parts = [operand.narrow(0, start, length) for operand in arguments]
            values = [fast(part) for part in parts]
            after = update.step_on(scalars, *values)
            for part, value in zip(parts, values, strict=True):
                if isinstance(part, SlowTensor) and part is not parts[1]:
                    part.write(value)
            del values
        update.complete(after)
        return (None,) * len(slow)


class BlockUpdate(BlockCall):
    """The target of an update in blocks."""

    @property
    def begun(self) -> bool:
        """Whether the state has been made."""
        return bool(self.whole.target.begun)

    def _measured(self, call: Call, captured: Captured) -> CallProfile:
        """Measure the first update, which makes the state, and a later one."""
        trial: Update = copy.copy(self.whole.target)
        trial.begun, trial.held = False, False
        alone = BlockCall(
            replace(self.whole, target=trial), self.streamed, self.run, self.link, False
        )

        def again() -> None:
            trial.begun = False

        first = alone.measured(call, captured, again)
        later = alone.measured(call, captured)
        return replace(
            later, workspace=max(first.workspace, later.workspace), first=first.allocations
        )


def can_update_rows(call: Call) -> bool:
    """Whether an update treats each element by itself, in the same order of rows for all its
    operands."""
    forms = {(view.size, view.stride) for view in call.arguments}
    return (
        is_elementwise(call.target.optimizer) and len(forms) == 1 and bool(call.arguments[0].size)
    )
