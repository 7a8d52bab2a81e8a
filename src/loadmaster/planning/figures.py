"""What a plan reaches: its objective, its latencies, what it takes in energy, and how far all that
is from the bounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from loadmaster.core.units import FEMTOJOULES, PICOSECONDS, format_seconds, seconds_of
from loadmaster.cost.energy_model import EnergyRates
from loadmaster.planning.decisions import Bounds, Solution
from loadmaster.planning.goal import Goal, delivered
from loadmaster.planning.plan_records import Cost, Objective, PlannedJob, PlannedTransfer
from loadmaster.targets.hardware import Target
from loadmaster.workloads.job import Workload
from loadmaster.workloads.network_timing import MiniBatch, NetworkTiming


class Outcome:
    """The figures of a simulated solution that depend on its goal; energies are counted from the
    plan's own records."""

    def __init__(
        self,
        workload: Workload,
        target: Target,
        rates: EnergyRates,
        goal: Goal,
        solution: Solution,
        bounds: Bounds,
    ) -> None:
        self._target, self._goal, self._bounds, self._rates = target, goal, bounds, rates
        self._makespan = solution.timeline.makespan
        self._ends = goal.ends(
            delivered(workload, solution.placement.copies, solution.timeline.end)
        ).tolist()
        self.unit = {"energy": FEMTOJOULES, "edp": FEMTOJOULES * PICOSECONDS}.get(
            goal.objective, PICOSECONDS
        )
        memories = {target.main.name: rates.main} | (
            {target.fast.name: rates.fast} if target.fast else {}
        )
        self.byte_energy = memories | {
            core.name: rate for core, rate in zip(target.cores, rates.buffers, strict=True)
        }

    def energy(
        self, jobs: Sequence[PlannedJob], transfers: Sequence[PlannedTransfer]
    ) -> dict[str, int]:
        """Femtojoules that each memory and each core takes."""
        taken = dict.fromkeys(self.byte_energy, 0)
        for job in jobs:
            taken[job.core] += round(job.energy * FEMTOJOULES)
        for transfer in transfers:
            for place in (transfer.source, transfer.destination):
                taken[place] += transfer.bytes * self.byte_energy[place]
        return taken

    def _total(self, energy: dict[str, int]) -> int:
        return sum(energy.values()) + self._rates.static(self._makespan)

    def energy_cost(self, energy: dict[str, int]) -> Cost:
        """Joules of everything, with their bound."""
        return Cost(self._total(energy) / FEMTOJOULES, self._bounds.energy / FEMTOJOULES)

    def latency(self) -> dict[str, Cost]:
        """Longest latency of every network."""
        return {
            name: Cost(seconds_of(value), seconds_of(self._bounds.latency[name]))
            for name, value in self._longest().items()
        }

    def _longest(self) -> dict[str, int]:
        longest = dict.fromkeys(self._bounds.latency, 0)
        for network, release, end in zip(
            self._goal.network, self._goal.release.tolist(), self._ends, strict=True
        ):
            longest[network] = max(longest[network], end - release)
        return longest

    def _reached(self, energy: dict[str, int]) -> tuple[int, int]:
        """The objective and its bound, in whole units."""
        bounds, goal = self._bounds, self._goal
        least = bounds.objective(goal.objective, goal.latency_network)
        if goal.objective == "latency":
            assert goal.latency_network is not None
            return self._longest()[goal.latency_network], least
        if goal.objective == "throughput":
            return self._makespan, least
        return self._total(energy) * (self._makespan if goal.objective == "edp" else 1), least

    def objective(self, energy: dict[str, int]) -> Objective:
        """What the plan was made for."""
        value, least = self._reached(energy)
        return Objective(
            self._goal.objective,
            self._goal.latency_network or "",
            value / self.unit,
            least / self.unit,
        )

    def status(self, energy: dict[str, int]) -> str:
        """Nothing is better than what is never late and meets the bound."""
        value, least = self._reached(energy)
        late = any(end > due for end, due in zip(self._ends, self._goal.due.tolist(), strict=True))
        return "optimal" if value <= least and not late else "feasible"

    def timings(self) -> tuple[NetworkTiming, ...]:
        """Periods and deadlines of the networks that have any."""
        return tuple(
            NetworkTiming(
                name, seconds_of(period), None if deadline is None else seconds_of(deadline)
            )
            for name, period, deadline in self._goal.timings()
        )

    def mini_batches(self) -> Iterator[MiniBatch]:
        """What becomes of each mini-batch."""
        goal = self._goal
        columns = (goal.network, goal.number, goal.release.tolist(), self._ends, goal.due.tolist())
        for network, number, release, end, due in zip(*columns, strict=True):
            yield MiniBatch(
                network,
                number,
                seconds_of(release),
                seconds_of(end),
                seconds_of(end - release),
                end > due,
            )

    def notes(self) -> Iterator[str]:
        """Where bounds come from, what cannot be done in time, and what energies rest on."""
        bound = self._bounds.makespan
        terms = ", ".join(
            f"{name} {format_seconds(seconds_of(value))}" for name, value in bound.terms
        )
        of_all = f"; it is the largest of: {terms}" if terms else ""
        yield f"the makespan's lower bound comes from: {bound.limit}{of_all}"
        for name, _, deadline in self._goal.timings():
            least = self._bounds.latency[name]
            if deadline is not None and deadline < least:
                due, needed = (
                    format_seconds(seconds_of(deadline)),
                    format_seconds(seconds_of(least)),
                )
                yield (
                    f"{name}: its deadline of {due} is impossible: whatever the plan, some"
                    f" mini-batch takes at least {needed}"
                )
        unstated = [memory.name for memory in self._target.memories if memory.energy is None]
        cores = "arithmetic and buffers" + (
            f", and bytes of {' and '.join(unstated)}" if unstated else ""
        )
        power = (
            ""
            if self._target.static_power
            else "; no static power is counted, because the target states none"
        )
        yield f"energy is estimated from published figures of 45 nm silicon for {cores}{power}"
