"""The event engines, as slowly and as exactly as they can be said: work that remains, in
fractions."""

from fractions import Fraction
from math import ceil, inf


def simulated(
    duration, demand, resource, order, edges=(), *, whole=True, below=inf, number=Fraction
):
    """When tasks start and end that run one after another on every resource, and share links of
    which they demand so much each; ``whole`` says whether time passes in whole steps, rounded up.

    What has not ended by ``below`` has no end.
    """
    queues = {r: [t for t in order if resource[t] == r] for r in set(resource)}
    waiting = {t: set() for t in order}
    for before, after in edges:
        waiting[after].add(before)
    slack = 0 if number is Fraction else 1e-6
    now, left = number(0), {}
    start = {}
    end = {}
    while True:
        busy = {resource[t] for t in left}
        for r, queue in queues.items():
            if queue and r not in busy and waiting[queue[0]] <= end.keys():
                task = queue.pop(0)
                left[task], start[task] = number(duration[task]), now
        if not left or now >= below:
            return start, end
        shares = {t: [number(share) for share in demand[t]] for t in left}
        loads = [sum(column) for column in zip(*shares.values(), strict=True)]
        slower = {
            t: max([number(1), *(load for load, mine in zip(loads, own, strict=True) if mine)])
            for t, own in shares.items()
        }
        step = min(work * slower[t] for t, work in left.items())
        step = number(ceil(step - slack)) if whole else step
        now += step
        for task in list(left):
            left[task] -= step / slower[task]
            if left[task] <= slack:
                del left[task]
                end[task] = now
