"""Makes the pictures of docs/gallery.md from plans that it makes itself: python docs/gallery.py

Needs Chromium with its driver, and the package selenium.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from picture import DRAWN, ROOT, browser, note, resize

FOLDER = ROOT / "docs" / "gallery"
WIDTH, HEIGHT = 900, 640


@dataclass(frozen=True)
class Picture:
    """A page of a command, of which the section with ``heading`` is shown at the top."""

    name: str
    command: str
    page: str
    heading: str


PICTURES = (
    Picture(
        "plan",
        "plan fixtures/mobilenetv2.onnx.gz onnx:squeezenet --target edge-npu --precision int8"
        " --mini-batches 2 --effort quick",
        "report.html",
        "Schedule and bandwidth",
    ),
    Picture(
        "sweep",
        "plan onnx:squeezenet --target edge-npu --precision int8 --sweep scratchpad=512KiB:4MiB"
        " --sweep bandwidth=4GB/s:16GB/s --effort quick",
        "sweep.html",
        "Time over area",
    ),
    Picture(
        "allocate",
        "allocate fixtures/buffers.csv --capacity 64KiB",
        "report.html",
        "Memory over time",
    ),
    Picture(
        "map",
        "map onnx:squeezenet onnx:shufflenet --target m3e-s2 --bandwidth 2GB/s --precision int8"
        " --samples 2000",
        "report.html",
        "Schedule",
    ),
    Picture(
        "place",
        "place onnx:squeezenet --target optane-server --batch 64 --fast 50%",
        "report.html",
        "Fast memory over time",
    ),
    Picture(
        "inspect",
        "inspect onnx:resnet50 --precision int8 --target edge-npu",
        "report.html",
        "Roofline",
    ),
)
SCROLL = """
const heads = [...document.querySelectorAll("h2")]
const found = heads.find((h) => h.textContent.startsWith(arguments[0]))
if (!found) return heads.map((h) => h.textContent)
window.scrollTo(0, found.getBoundingClientRect().top - 12)
return null
"""


def main() -> None:
    """Run every command, open its page, take its picture."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as made, browser() as driver:
        for picture in PICTURES:
            out = Path(made) / picture.name
            words = [*picture.command.split(), "--quiet", "--out", str(out)]
            subprocess.run([sys.executable, "-m", "loadmaster", *words], check=True, cwd=ROOT)
            resize(driver, HEIGHT, WIDTH)
            driver.get((out / picture.page).as_uri())
            while not driver.execute_script(DRAWN):
                time.sleep(0.1)
            headings = driver.execute_script(SCROLL, picture.heading)
            if headings is not None:
                sys.exit(f"{picture.name}: no section {picture.heading!r}, but {headings}")
            time.sleep(0.5)
            driver.save_screenshot(str(FOLDER / f"{picture.name}.png"))
            note(f"gallery/{picture.name}", out / picture.page)


if __name__ == "__main__":
    main()
