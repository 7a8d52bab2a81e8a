"""Synthetic plans for the report to draw."""

import pytest
from tests.support.browser import chromium
from tests.support.drawn_plan import drawn_plan
from tests.support.hand_plan import long_plan


@pytest.fixture(scope="session")
def plan():
    return drawn_plan(notes=("the search stopped at its time limit",))


@pytest.fixture(scope="session")
def large_plan():
    return long_plan(6_000)


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture
def driver(browser):
    """The session's browser, with its own width and colours again after each test."""
    yield browser
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
