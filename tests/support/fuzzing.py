"""How many random examples tests try: a quarter of what they ask for, always the same ones, or as
many times what they ask for as ``LOADMASTER_FUZZ`` says, other ones in every run."""

import os
from copy import deepcopy

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

FUZZ = float(os.environ.get("LOADMASTER_FUZZ", "0.25"))
REPEATABLE = "LOADMASTER_FUZZ" not in os.environ
seeds = st.integers(0, 10**9)


def fuzz(examples=100):
    """Settings for a share of so many examples; tests that say nothing have those of 100."""
    return settings(
        deadline=None,
        suppress_health_check=list(HealthCheck),
        max_examples=max(1, round(examples * FUZZ)),
        derandomize=REPEATABLE,
        database=None,
    )


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


@st.composite
def spoilt(draw, document):
    """A JSON document in which a value somewhere is another."""
    made = place = deepcopy(document)
    while True:
        keys = sorted(place) if isinstance(place, dict) else range(len(place))
        key = draw(st.sampled_from(keys))
        if not isinstance(place[key], dict | list) or not place[key] or draw(st.booleans()):
            place[key] = draw(JSON)
            return made
        place = place[key]
