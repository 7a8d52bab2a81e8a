"""Commands that run in this process search as little as tests do."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def _quick(little_effort, forked_interpreter):
    pass
