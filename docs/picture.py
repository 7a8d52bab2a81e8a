"""Takes docs/plan.png, the README's picture, of the report that `make demo` writes: python
docs/picture.py

Needs Chromium with its driver, and the package selenium.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from selenium import webdriver

ROOT = Path(__file__).parents[1]
FIGURES = ROOT / "docs" / "figures.json"
"""Figures of the pages that pictures were taken of, which a test compares with today's."""
DRAWN = "return !!window.Bokeh && Bokeh.documents.length == 1 && Bokeh.documents[0].is_idle"
KEEP = """
const shown = [...document.querySelectorAll(".chart")].filter((chart) =>
  ["Schedule", "Link to dram", "scratchpad: peak"].some((name) => chart.ariaLabel.includes(name)))
const beside = ".hint, section p:not(.card p):not(:has(strong)), .notes, h2, .wide, .chart"
for (const element of document.querySelectorAll(beside))
  if (!shown.includes(element)) element.style.display = "none"
for (const section of document.querySelectorAll("section")) {
  section.style.margin = "0"
  const stays = section.querySelector(".cards") || shown.some((chart) => section.contains(chart))
  if (!stays) section.style.display = "none"
}
document.querySelector("main").style.padding = "14px 20px 0"
return Math.ceil(document.querySelector("main").getBoundingClientRect().height)
"""


def main() -> None:
    """Open the report, leave only what the picture shows, take it."""
    with browser() as driver:
        resize(driver, 900)
        driver.get((ROOT / "demo-plan" / "report.html").as_uri())
        while not driver.execute_script(DRAWN):
            time.sleep(0.1)
        resize(driver, driver.execute_script(KEEP))
        time.sleep(1)
        driver.save_screenshot(str(ROOT / "docs" / "plan.png"))
    note("plan", ROOT / "demo-plan" / "report.html")


def figures_of(page: Path) -> list[list[str]]:
    """Return the names and values on a page's cards, or the rows of its tables if it has none."""
    text = page.read_text(encoding="utf-8")
    cards = re.findall(r"<div class=card><h3>(.*?)</h3><p class=value>(.*?)</p>", text)
    rows = re.findall(r"<tr>(<td.*?)</tr>", text)
    return [list(card) for card in cards] or [re.findall(r"<td.*?>(.*?)</td>", row) for row in rows]


def note(picture: str, page: Path) -> None:
    """Keep the figures of the page that a picture was taken of."""
    known = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    known[picture] = figures_of(page)
    FIGURES.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n")


@contextmanager
def browser() -> Iterator[webdriver.Chrome]:
    """Start a browser without a window, and end it."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or "chromium"
    for flag in ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(flag)
    driver = webdriver.Chrome(
        options=options, service=webdriver.ChromeService(shutil.which("chromedriver"))
    )
    try:
        yield driver
    finally:
        driver.quit()


def resize(driver: webdriver.Chrome, height: int, width: int = 1180) -> None:
    """Make the page so many pixels wide and high."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


if __name__ == "__main__":
    main()
