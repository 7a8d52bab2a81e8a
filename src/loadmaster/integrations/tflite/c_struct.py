"""The plan as C source: a ``BufferPlan`` for TFLM's ``NonPersistentMemoryPlannerShim``, which needs
no planner in the binary."""

from __future__ import annotations

import re

from loadmaster.core.errors import AllocationError
from loadmaster.integrations.tflite.arena import ArenaPlan
from loadmaster.integrations.tflite.lifetimes import Lifetimes
from loadmaster.integrations.tflite.scratch import Scratch

_TEMPLATE = """\
// Written by Loadmaster for {title}: {head} bytes of arena.
// Planned tensors in the order of the file, then scratch buffers in the order in which kernels ask
// for them.
#include "tensorflow/lite/micro/memory_planner/memory_plan_struct.h"

const struct BufferPlan k{symbol}Plan = {{
    {count},
    {{
{entries}
    }},
}};
"""


def buffer_plan(title: str, found: Lifetimes, scratch: Scratch, plan: ArenaPlan) -> str:
    """The source of one C or C++ file; ``title`` names the model, and the constant after it.

    Raises
    ------
    AllocationError
        If it is not known which scratch buffers kernels ask for one by one: probing finds how many
        bytes an operator's take together.
    """
    if scratch.source == "unknown" or (scratch.source == "probed" and scratch.buffers):
        raise AllocationError(
            f"{title}: --c-struct lists every scratch buffer that kernels ask for: give the log of"
            " a target's build with --scratch FILE"
        )
    owners = [
        *(tensor.name for tensor in found.tensors),
        *(buffer.name for buffer in scratch.buffers),
    ]
    lines = (
        f"        {{{offset}}},  // {_comment(owner)}"
        for owner, offset in zip(owners, (*plan.offsets, *plan.scratch_offsets), strict=True)
    )
    return _TEMPLATE.format(
        title=_comment(title),
        head=plan.head,
        symbol=_symbol(title),
        count=len(owners),
        entries="\n".join(lines),
    )


def _symbol(title: str) -> str:
    words = re.findall(r"[A-Za-z0-9]+", title)
    return "".join(word[:1].upper() + word[1:] for word in words) or "Model"


def _comment(text: str) -> str:
    """Text that cannot end a line of comment early or go on after it."""
    return "".join(
        char if char.isascii() and char.isprintable() and char != "\\" else "?" for char in text
    )
