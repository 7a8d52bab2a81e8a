"""Opens a page in headless Chromium without a network and says what happened."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--window-size=1400,1000",
)
CHARTS = "const charts = Bokeh.index.roots.filter(view => view.model.type == 'Figure');"
DRAWN = f"""
    if (!window.Bokeh || Bokeh.documents.length != 1 || !Bokeh.documents[0].is_idle) return false;
    {CHARTS} return charts.length == document.querySelectorAll('.chart').length
"""


@contextmanager
def chromium(profile: Path) -> Iterator[Any]:
    """A browser that resolves no host name; skips the test where there is none, unless one is required."""
    programs = shutil.which("chromium"), shutil.which("chromedriver")
    if None in programs:
        pytest.skip("chromium or chromedriver is not installed")
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = programs[0]
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(programs[1]))
    try:
        yield driver
    finally:
        driver.quit()


def open_page(driver: Any, page: Path) -> None:
    """Load a page and wait until its charts are drawn."""
    driver.get(page.as_uri())
    deadline = time.monotonic() + 30
    while not driver.execute_script(DRAWN):
        assert time.monotonic() < deadline, f"the charts were not drawn in time: {driver.get_log('browser')}"
        time.sleep(0.05)


def console_errors(driver: Any) -> list[str]:
    """What the page complained about since the last call."""
    return [entry["message"] for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]


def outside_requests(driver: Any) -> list[str]:
    """Addresses that the page asked for, other than itself and data within it; ``chrome:`` is the browser's own start page."""
    messages = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    return [url for url in asked if not url.startswith(("file:", "data:", "blob:", "chrome:"))]


def in_shadow(script: str) -> str:
    """A script with ``all(selector)``, which finds elements inside Bokeh's shadow trees too."""
    return (
        "function all(s, r = document) { return [...r.querySelectorAll(s), ...[...r.querySelectorAll('*')]"
        ".flatMap(e => e.shadowRoot ? all(s, e.shadowRoot) : [])] }" + script
    )
