"""TFLM's interpreter runs in forks of the tests' process: Python need not start for each model."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def _forked(forked_interpreter):
    pass
