"""The verifier of finished plans: naive checks that share nothing with the engines that make them.

Nothing here may import more than the nouns (the plan, the target, units), and every check works
from the plan's own records. Each is a sweep in O(n log n), but for reachability in the order,
which is O(edges x steps / 64).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice

from loadmaster.core.arguments import validate_arguments
from loadmaster.core.errors import SHOWN, PlanError, Violation
from loadmaster.core.progress import gc_relaxed
from loadmaster.planning.plan_records import PlanRecord
from loadmaster.planning.verify import (
    dataflow,
    energy,
    figures,
    memory,
    movement,
    order,
    pieces,
    records,
)
from loadmaster.planning.verify.facts import Facts

_COUNTED = 10_000
"""Further violations of a rule that are counted, at most."""
_MESSAGE_LENGTH = 1000
"""Characters of a message, at most."""

Check = Callable[[Facts], Iterator[str]]

RULES: tuple[dict[str, Check], ...] = (
    {"number": records.numbers},
    {"name": records.names},
    {"reference": records.references},
    {"time": records.times},
    {"range": pieces.ranges},
    {
        "complete": records.completeness,
        "producer": records.producers,
        "core": records.cores,
        "compute": records.compute,
        "precision": records.precisions,
        "alike": records.alike,
        "dataflow": dataflow.dataflow,
        "piece": pieces.pieces,
        "part": pieces.parts,
        "chain": pieces.chains,
        "read": pieces.reads,
        "size": memory.sizes,
        "capacity": memory.capacities,
        "lifetime": memory.lifetimes,
        "alignment": memory.alignments,
        "overlap": memory.overlaps,
        "double": memory.doubles,
        "tile": memory.tiles,
        "input": memory.inputs,
        "weight": memory.weights,
        "output": memory.outputs,
        "residence": memory.residence,
        "arrival": memory.arrival,
        "in-place": memory.in_place,
        "order": order.orders,
        "cycle": order.cycles,
        "dependency": order.dependencies,
        "race": order.races,
        "operand": movement.operands,
        "stream": movement.streams,
        "copy": movement.copies,
        "bandwidth": movement.bandwidths,
        "curve": figures.curves,
        "makespan": figures.makespan,
        "release": figures.releases,
        "latency": figures.latencies,
        "byte-energy": energy.rates,
        "energy": energy.energy,
        "objective": figures.objective,
        "status": figures.status,
        "work": figures.work,
        "rate": figures.rates,
        "traffic": figures.traffic,
        "memory": figures.memory_use,
    },
)
"""What must hold, by the names of the rules, in stages: a stage may rely on all that come before
it."""


@validate_arguments(PlanError)
def verify(plan: PlanRecord) -> tuple[Violation, ...]:
    """Check that a plan holds.

    What lower bounds of times, traffic and energy say is taken on trust, and with it the word
    ``optimal``: they are only checked to be on the right side of the value and to agree with one
    another. To prove them takes every job's cost on every core, which a plan does not hold. The
    page on the plan file lists all that is taken on trust.

    Parameters
    ----------
    plan
        Any plan whose fields have the types that they should have, however wrong their values are.

    Returns
    -------
    tuple of Violation
        Empty if the plan holds. Else what is wrong, at most 20 of a rule and then how many more.
        Where numbers, names, references or times are broken, the checks that rely on them are left
        out.
    """
    with gc_relaxed():
        facts = Facts(plan)
        return broken({rule: check(facts) for rule, check in stage.items()} for stage in RULES)


def broken(stages: Iterable[Mapping[str, Iterator[str]]]) -> tuple[Violation, ...]:
    """What breaks the first stage of rules that is broken; those after it rely on it."""
    for stage in stages:
        if found := tuple(
            violation for rule, messages in stage.items() for violation in tell(rule, messages)
        ):
            return found
    return ()


def tell(rule: str, messages: Iterator[str]) -> tuple[Violation, ...]:
    """What breaks a rule: the first messages, and how many more there are."""
    shown = [Violation(rule, _line(message)) for message in islice(messages, SHOWN)]
    more = sum(1 for _ in islice(messages, _COUNTED))
    if more:
        shown.append(
            Violation(rule, f"and {more} more" if more < _COUNTED else f"and at least {more} more")
        )
    return tuple(shown)


def _line(message: str) -> str:
    """One printable line of bearable length, whatever memories and cores are called."""
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in message)
    return shown if len(shown) <= _MESSAGE_LENGTH else shown[: _MESSAGE_LENGTH - 3] + "..."
