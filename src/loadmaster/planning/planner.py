"""From networks and a target to a plan: the best of several cuts of the networks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from loadmaster.core.arguments import require_known, validate_arguments
from loadmaster.core.effort import Effort
from loadmaster.core.errors import CapacityError, PackingError, PlanError
from loadmaster.core.progress import (
    NO_DEADLINE,
    Deadline,
    Interrupts,
    Progress,
    deferred_interrupts,
    gc_relaxed,
)
from loadmaster.core.units import format_bytes, format_seconds, seconds_of
from loadmaster.cost.analytical.energy import EnergyModel, energy_rates
from loadmaster.cost.analytical.job_costs import job_tables
from loadmaster.cost.analytical.nests import EXPECTED, kind_of
from loadmaster.planning.assemble import assemble
from loadmaster.planning.cut_selection import CutSelection
from loadmaster.planning.cutting.candidates import Candidate, candidates, uncut
from loadmaster.planning.cutting.network_bounds import network_bounds
from loadmaster.planning.goal import Goal, goal_of
from loadmaster.planning.plan import Plan
from loadmaster.planning.problem import PlanProblem
from loadmaster.planning.workload_planner import WorkloadPlanner
from loadmaster.targets.hardware import Target, excess_of
from loadmaster.targets.load import as_target
from loadmaster.workloads.frontends.load import is_source, load
from loadmaster.workloads.graph import Graph
from loadmaster.workloads.job import Workload
from loadmaster.workloads.lowering.instantiate import lower

CUTS = ("auto", "none")
"""Values of ``cut``: let the planner choose, or cut only operators that exceed the fast memory."""
_MOST_MEMORIES = 2
_LESS_ROOM = (7 / 8, 3 / 4, 1 / 2)
"""Shares of a fast memory that operands must be copied to, for which operators are cut if no plan
of cuts for all of it has addresses."""
_AFTER_SEARCH = 12.0
"""Part of a time limit that is reserved for everything but the search, as a multiple of the time
that lowering and costing took: first orders, addresses, bounds and output took about as long for
thousands of jobs."""


@validate_arguments(PlanError)
def plan(
    graphs: Any,
    target: Target | str | Path,
    *,
    mini_batches: int = 1,
    seed: int = 0,
    effort: Effort | str = Effort.NORMAL,
    time_limit: float | None = None,
    objective: str = "throughput",
    network: str | None = None,
    deadlines: Mapping[str, float] | None = None,
    periods: Mapping[str, float] | None = None,
    cut: str = "auto",
    smaller: Target | None = None,
    progress: Progress | None = None,
) -> Plan:
    """Plan networks together on a target.

    Operators are cut into pieces that run on several cores, or in bands that fit into a small fast
    memory. A model suggests a few such cuts (:mod:`loadmaster.planning.cutting`). Each candidate
    gets a quick score from a few evaluations. The best candidate is planned in full, and so are
    whole operators, unless a bound shows that they cannot be better. So a plan is never worse than
    the plan with whole operators, unless time runs out.

    A full plan lowers networks to jobs, costs every job on every core, then maps, places, allocates
    and simulates them: first with all tensors in main memory, then with the fast memory filled
    along the same order. The joint search starts from the better of the two and changes cores,
    order, residency and transfers together. The best plan is returned, so it is never worse than
    mapping, placing and allocating separately. Plans are compared by total lateness, then by the
    objective, then by the makespan.

    Parameters
    ----------
    graphs : sequence of Graph, or one
        From :func:`loadmaster.load`; or what it reads: files, names, an ``onnx.ModelProto``, or
        ``(module, inputs)`` of torch.
    target : Target, str or Path
        From :func:`loadmaster.target`, or what it reads: ``"edge-npu"``.
    mini_batches : int
        Instances of every network; they share weights.
    seed : int
        The same input and seed give the same plan.
    effort : Effort or str
        How much the searches may do: ``quick``, ``normal`` or ``thorough``, or budgets of your own;
        without evaluations networks are mapped, placed and allocated separately.
    time_limit : float, optional
        Seconds in which the plan should be complete. The search stops early enough for bounds and
        output, and memories are packed with the least effort that packs them; the plan's notes
        then say so. Ctrl-C ends the search likewise; a second Ctrl-C aborts. Costs, one choice of
        cuts, one plan and the bounds are completed whatever the limit.
    objective : str
        What is minimised: ``throughput``, the makespan; ``latency``, the longest time from the
        release of a mini-batch of one network to its end; ``energy``; or ``edp``, energy times
        makespan.
    network : str, optional
        The network whose latency counts; the first unless told.
    deadlines, periods : mapping, optional
        Seconds, by network. Mini-batch ``k`` is released at ``k`` times the period: none of its
        jobs starts earlier. It is due one deadline later. Without a period all mini-batches are
        released at the start; without a deadline they are never late.
    cut : str
        ``auto``, or ``none``: only operators that exceed the fast memory are cut.
    smaller : Target, optional
        A machine with at most the target's memory, bandwidth, cores and clock. The networks are
        planned for it too, and that plan is returned if it is the better one on the target: so more
        memory is never slower. More cores, a faster clock or link rarely are, where tiles change or
        jobs share a link.
    progress : callable, optional
        Called with the name of the stage and the completed share of it.

    Raises
    ------
    CapacityError
        If main memory cannot hold the networks, or no plan was found that fits: the message states
        the bytes of the smallest plan and the bytes that every plan needs. If a machine that must
        copy operands cannot hold the operands of one job.
    PlanError
        If an argument is out of range, a network is not known, or ``smaller`` is not.
    """
    graphs, target = as_networks(graphs), as_target(target)
    budget = Effort.of(effort, PlanError)
    _check_machine(target)
    if smaller is not None:
        _require_smaller(smaller, target)
    require_known("cut", cut, CUTS, PlanError)
    deadline = Deadline.within(time_limit)
    with deferred_interrupts() as interrupts, gc_relaxed():
        report = _reporting(progress, interrupts)
        report("lowering", 0.0)

        def goal_for(workload: Workload) -> Goal:
            """Return the goal for a workload."""
            return goal_of(workload, objective, network, deadlines or {}, periods or {})

        planners = _Planners(
            graphs, mini_batches, goal_for, seed, budget, deadline, report, interrupts
        )
        selection = planners.selection(target, cut)
        machines = [] if smaller is None else [smaller]
        found, refusal = None, None
        try:
            found = selection.best()
        except CapacityError as error:
            refusal = error
            if isinstance(error, PackingError):
                rooms = (int(target.near.capacity * share) for share in _LESS_ROOM)
                machines += [target.with_memory(1, capacity=room) for room in rooms]
        for machine in machines:
            if found is not None and machine is not smaller:
                break
            with suppress(CapacityError):
                planner, theirs = planners.selection(machine, cut).best()
                found = selection.compared(found, planner.retargeted(theirs, target))
        if found is None:
            raise refusal or AssertionError
        chosen, best = found
        problem = chosen.problem
        report("bounding", 0.0)
        bounds = network_bounds(graphs, target, mini_batches, goal_for, problem.energy.rates)
        of_jobs = None if bounds is not None and deadline.passed() else chosen.bounds()
        report("assembling", 0.0)
        notes = [
            *_streaming_notes(problem.workload, target),
            *_unused_efficiencies(problem.workload, target),
            *selection.notes(stopped=chosen.interrupted),
            *(uncut(graphs) if cut == "auto" else ()),
        ]
        if cut == "auto" and selection.full:
            notes.append("no further cuts of operators were tried, because there are too many jobs")
        if bounds is not None and of_jobs is not None:
            notes.append(
                "the lower bound holds for all cuts; for the chosen cuts it is"
                f" {format_seconds(seconds_of(of_jobs.makespan.picoseconds))}:"
                f" {of_jobs.makespan.limit}"
            )
        return assemble(problem, best, bounds or chosen.bounds(), seed, notes)


@dataclass(frozen=True)
class _Planners:
    """Makes planners of candidates, and the selection among the candidates, for a given machine."""

    graphs: Sequence[Graph]
    mini_batches: int
    goal_for: Callable[[Workload], Goal]
    seed: int
    effort: Effort
    deadline: Deadline
    report: Progress
    interrupts: Interrupts

    def planner(self, candidate: Candidate, machine: Target, report: Progress) -> WorkloadPlanner:
        """Lower and cost the jobs of a candidate, and return their planner."""
        begun = time.monotonic()
        workload = lower(self.graphs, machine, mini_batches=self.mini_batches, cuts=candidate.cuts)
        goal = self.goal_for(workload)
        (table,) = job_tables(workload, machine, [candidate.tiling])
        tilings = np.full(
            len(workload.jobs), list(EXPECTED).index(candidate.tiling), dtype=np.int64
        )
        energy = EnergyModel(table, energy_rates(machine))
        search = self.deadline.before(_AFTER_SEARCH * (time.monotonic() - begun))
        problem = PlanProblem(workload, table, machine, goal, energy, tilings)
        return WorkloadPlanner(problem, self.seed, self.effort, search, report, self.interrupts)

    def selection(self, machine: Target, cut: str) -> CutSelection:
        """Return the selection among all candidates for a machine."""
        offered = candidates(
            self.graphs,
            machine,
            self.mini_batches,
            cut,
            lambda: selection.is_late(),
            lambda: selection.full,
            lambda: selection.urgent,
            self.effort,
        )
        selection = CutSelection(
            offered,
            lambda candidate: self.planner(candidate, machine, selection.progress),
            self.interrupts,
            self.deadline if cut == "auto" else NO_DEADLINE,
            self.report,
        )
        return selection


def _reporting(progress: Progress | None, interrupts: Interrupts) -> Progress:
    """Wrap a progress callback so that a KeyboardInterrupt inside it is handled like one in the
    planner."""

    def report(stage: str, share: float) -> None:
        """Report progress; a Ctrl-C during it counts as one during the search."""
        try:
            if progress is not None:
                progress(stage, share)
        except KeyboardInterrupt:
            interrupts()

    return report


def as_networks(given: Any) -> tuple[Graph, ...]:
    """Return one or several networks, and load each that is not a graph yet."""
    several = given if isinstance(given, Iterable) and not is_source(given) else [given]
    graphs = tuple(load(each) if is_source(each) else each for each in several)
    if not all(isinstance(graph, Graph) for graph in graphs):
        raise PlanError("networks must be a list of graphs, or of what loadmaster.load reads")
    return graphs


def _check_machine(target: Target) -> None:
    """Refuse a machine that plans are not for."""
    if not 1 <= len(target.memories) <= _MOST_MEMORIES:
        raise PlanError(
            f"{target.name}: plans are for a main memory and at most one more that cores share, and"
            f" this machine has {len(target.memories)}"
        )
    if not target.main.in_place and (target.fast is None or target.copy is None):
        raise PlanError(
            f"{target.name}: a machine that must copy operands needs a fast memory and a copy"
            " engine"
        )


def _unused_efficiencies(workload: Workload, target: Target) -> Iterator[str]:
    """Note kinds of operators that a target spells in another way than the networks."""
    kinds = {kind_of(job.kind, job.nests) for job in workload.jobs}
    there = {kind.lower(): kind for kind in kinds}
    stated = {name for core in target.cores for name in core.efficiency}
    for name in sorted(stated - kinds):
        if kind := there.get(name.lower()):
            yield f"the efficiency of {name} is not used: these operators are called {kind}"


def _require_smaller(smaller: Target, target: Target) -> None:
    """Refuse a ``smaller`` machine that exceeds the target in any figure."""
    for excess in excess_of(smaller, target):
        raise PlanError(
            f"smaller: {excess} of {smaller.name} is not within that of {target.name}: give a"
            " machine of which it has more"
        )


def _streaming_notes(workload: Workload, target: Target) -> Iterator[str]:
    """Note the jobs whose operands exceed the fast memory, and the operators that were tiled to
    fit."""
    if not target.room:
        return
    fast = target.near
    tiles = sum(job.tile == 0 and job.tiles > 1 and not job.ranges for job in workload.jobs)
    if tiles:
        yield (
            f"{tiles} operators were split into tiles, because their operands exceed {fast.name}"
            f" ({format_bytes(fast.capacity)})"
        )
    sizes = [
        (sum(operand.bytes for operand in (*job.reads, *job.writes)), job.name)
        for job in workload.jobs
    ]
    large = sorted((item for item in sizes if item[0] > fast.capacity), reverse=True)
    if large and target.main.in_place:
        yield (
            f"too large for {fast.name} ({format_bytes(fast.capacity)}): the operands of"
            f" {len(large):,} of {len(sizes):,} jobs, which stream from {target.main.name}; the"
            f" largest are those of {large[0][1]} with {format_bytes(large[0][0])}"
        )
