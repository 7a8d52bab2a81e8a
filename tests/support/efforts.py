"""Efforts of searches in tests: little, and none beyond planning separately."""

from dataclasses import replace

import loadmaster as lm
from loadmaster.core.effort import Effort

TEST = Effort.TEST
SEPARATE = replace(TEST, name="separate", evaluations=0)


def verified(graphs, target, *, effort=TEST, **options):
    """A plan with little search, which both verifiers accept."""
    plan = lm.plan(graphs, target, effort=effort, **options)
    assert lm.verify_against(plan, graphs, target) == ()
    return plan
