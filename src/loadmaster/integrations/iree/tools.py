"""IREE's own tools, of the one version whose passes are known by name, and how they are run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from loadmaster.core.errors import MissingPackageError, ModelError

VERSION = "3.13"
"""The release whose passes and pipelines are called by name; others may call them differently."""
_PACKAGE = "iree-base-compiler"
TARGET = (
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=host",
)
"""What is compiled for unless flags say otherwise: the processor of this machine."""


def require_version() -> None:
    """Raise `MissingPackageError` if IREE's compiler is not installed, or is of another release
    than the one that is known."""
    install = f"pip install 'loadmaster[iree]' ({_PACKAGE} {VERSION})"
    try:
        found = version(_PACKAGE)
    except PackageNotFoundError:
        raise MissingPackageError(
            f"exporting to IREE needs {_PACKAGE}, which is not installed: {install}"
        ) from None
    if found.split(".")[:2] != VERSION.split("."):
        raise MissingPackageError(
            f"exporting to IREE calls passes of {_PACKAGE} {VERSION} by name, and {found} is"
            f" installed: {install}"
        )


_MODULES = {
    "iree-import-onnx": "iree.compiler.tools.import_onnx",
    "iree-compile": "iree.compiler.tools.scripts.iree_compile",
    "iree-opt": "iree.compiler.tools.scripts.iree_opt",
}


def tool(name: str) -> list[str]:
    """Command that runs one of IREE's tools in this Python's installation."""
    return [sys.executable, "-m", _MODULES[name]]


def run_tool(name: str, arguments: Sequence[str | Path], log: Path) -> None:
    """Run a tool, with what it prints on standard error going to a file.

    Raises
    ------
    ModelError
        If the tool fails, with the first error that it prints.
    """
    with log.open("wb") as file:
        done = subprocess.run(
            [*tool(name), *map(str, arguments)],
            stdout=subprocess.DEVNULL,
            stderr=file,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    if done.returncode:
        raise ModelError(f"{name} failed: {_first_error(log)}")


def _first_error(log: Path) -> str:
    """The first line that calls itself an error, else the last."""
    last = "no reason given"
    with log.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            if "error:" in line.lower():
                return line.strip()[:400]
            last = line.strip()[:400] or last
    return last
