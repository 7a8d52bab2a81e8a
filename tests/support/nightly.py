"""Parameters that wait for the night."""

import pytest


def by_night(*values):
    """Parameters of a test that only `.ci/nightly` runs."""
    return [pytest.param(value, marks=pytest.mark.nightly) for value in values]
