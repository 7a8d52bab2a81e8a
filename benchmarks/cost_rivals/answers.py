"""What programs answered, kept in a file, so that each is asked once for a layer on an array."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.cost_rivals.layers import described
from loadmaster.targets.hardware import Style
from loadmaster.workloads.graph import LoopNest

Answer = dict[str, float] | str
"""Figures, or why there are none."""


@dataclass(frozen=True)
class Answers:
    """Asks programs, each in a process of its own that may take so many ``seconds``; keeps what
    they say in ``file``, if there is one.

    With no seconds nothing is asked that the file does not know.
    """

    seconds: float
    file: Path | None = None

    def ask(self, program: str, nest: LoopNest, style: Style, **more: int) -> Answer:
        """The answer of a program: a known one, or a new one, also if it had less time before;
        ``more`` is for that program."""
        question = json.dumps({**described(nest, style), **more}, sort_keys=True)
        kept: dict[str, Any] = (
            json.loads(self.file.read_text())
            if self.file is not None and self.file.exists()
            else {}
        )
        known = kept.get(program, {}).get(question)
        if known is not None and (
            isinstance(known["answer"], dict) or known["seconds"] >= self.seconds
        ):
            answer: Answer = known["answer"]
            return answer
        if not self.seconds:
            return "not asked"
        answer = in_process(program, question, self.seconds)
        if self.file is not None:
            kept.setdefault(program, {})[question] = {"answer": answer, "seconds": self.seconds}
            written = self.file.with_name(self.file.name + ".part")
            written.write_text(json.dumps(kept, indent=1))
            written.replace(self.file)
        return answer


def in_process(program: str, question: str, seconds: float) -> Answer:
    """The answer of a program, or why there is none."""
    try:
        command = [sys.executable, "-m", f"benchmarks.cost_rivals.{program}"]
        done = subprocess.run(
            command, input=question, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return f"no answer in {seconds:g} s"
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["failed"])[-1]
    found: dict[str, float] = json.loads(done.stdout)
    return found
