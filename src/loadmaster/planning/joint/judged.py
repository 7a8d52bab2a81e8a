"""What orders come to, remembered: searches that begin alike evaluate many orders again."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING

from loadmaster.core.arrays import Ints
from loadmaster.planning.decisions import Score

if TYPE_CHECKING:
    from loadmaster.planning.joint.problem import Evaluation, JointOptions, JointProblem


def fingerprint(order: Ints) -> bytes:
    """What stands for an order where it is looked up."""
    return blake2b(order.tobytes(), digest_size=16).digest()


@dataclass
class Remark:
    """What is remembered of an evaluation: its score, None if it never ends, and energy times time, once that was asked for."""

    score: Score | None
    cost: int | None = None


@dataclass(frozen=True)
class Judged:
    """An order with choices, and what it comes to; it is evaluated again where more is asked for than is remembered."""

    problem: JointProblem
    order: Ints
    options: JointOptions
    remark: Remark
    made: Evaluation | None = None
    """The evaluation, where it was just made."""

    @cached_property
    def evaluation(self) -> Evaluation:
        """All that comes of the order."""
        return self.made or self.problem.evaluate(self.order, self.options)

    def cost(self) -> int:
        """Energy times time, in femtojoules times picoseconds."""
        if self.remark.cost is None:
            run = self.evaluation.run
            self.remark.cost = self.problem.energy_of(run) * run.makespan
        return self.remark.cost
