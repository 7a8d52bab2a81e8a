"""Opens a page in headless Chromium without a network and says what happened."""

import json
import shutil
from contextlib import contextmanager

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
REQUEST = "Network.requestWillBeSent"
BROWSERS_OWN = ("chrome:", "chrome-untrusted:", "about:")
"""Beginnings of the addresses of pages that no page of ours can be."""
HANG = 300
"""Seconds after which a browser is taken to hang: far more than anything takes on a busy
machine."""


@contextmanager
def chromium(profile):
    """A browser that resolves no host name; skips the test where there is none, unless one is
    required."""
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
    driver.set_page_load_timeout(HANG)
    driver.set_script_timeout(HANG)
    try:
        yield driver
    finally:
        driver.quit()


def open_page(driver, folder, text):
    """Write a page and load it, and wait until its charts are drawn."""
    page = folder / "page.html"
    page.write_text(text, "utf-8")
    driver.get_log("browser")
    driver.get(page.as_uri())
    wait_for(driver, DRAWN)


def of_charts(driver, expression):
    """The value of an expression for each chart, whose view is ``v``."""
    return driver.execute_script(f"{CHARTS} return charts.map(v => {expression})")


def charts_drawn(driver):
    """How many drawings of a page are as large as a chart."""
    drawn = driver.execute_script(in_shadow("return all('canvas').map(c => [c.width, c.height])"))
    return sum(width > 500 and height > 100 for width, height in drawn)


def wait_for(driver, condition):
    """Wait in the page until a script returns true, however long that takes."""
    script = "const done = arguments[arguments.length - 1], met = () => {" + condition + "};"
    driver.execute_async_script(
        script + "const look = () => met() ? done() : setTimeout(look, 20); look()"
    )


def console_errors(driver):
    """What the page complained about since the last call."""
    return [entry["message"] for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]


def outside_requests(driver):
    """Addresses that the page has asked for since it was opened, other than itself and data within
    it.

    What the browser opens by itself is left out: other windows, whatever this one showed before,
    and the browser's own pages, whose last requests may be reported only after the page's first.
    """
    entries = [json.loads(entry["message"]) for entry in driver.get_log("performance")]
    mine = [
        e["message"]["params"]
        for e in entries
        if e["webview"] == driver.current_window_handle and e["message"]["method"] == REQUEST
    ]
    last = max(i for i, params in enumerate(mine) if params["request"]["url"] == driver.current_url)
    asked = [
        params["request"]["url"]
        for params in mine[last:]
        if not params.get("documentURL", "").startswith(BROWSERS_OWN)
    ]
    return [url for url in asked if not url.startswith(("file:", "data:", "blob:", *BROWSERS_OWN))]


def in_shadow(script):
    """A script with ``all(selector)``, which finds elements inside Bokeh's shadow trees too."""
    return (
        "function all(s, r = document) { return [...r.querySelectorAll(s),"
        " ...[...r.querySelectorAll('*')].flatMap(e => e.shadowRoot ? all(s, e.shadowRoot) : [])] }"
        + script
    )
