"""How many random examples tests try: a quarter of what they ask for, always the same ones, or as
many times what they ask for as ``LOADMASTER_FUZZ`` says, other ones in every run."""

import os

from hypothesis import HealthCheck, settings

FUZZ = float(os.environ.get("LOADMASTER_FUZZ", "0.25"))
REPEATABLE = "LOADMASTER_FUZZ" not in os.environ


def fuzz(examples: float = 100) -> settings:
    """Settings for a share of so many examples; tests that say nothing have those of 100."""
    return settings(
        deadline=None,
        suppress_health_check=list(HealthCheck),
        max_examples=max(1, round(examples * FUZZ)),
        derandomize=REPEATABLE,
        database=None,
    )
