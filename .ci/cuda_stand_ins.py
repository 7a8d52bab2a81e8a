"""Makes shared libraries that stand in for CUDA's, so that a PyTorch built for CUDA can be
imported, and used on the CPU, without them.

``python .ci/cuda_stand_ins.py``, in an environment that has torch, and none of the packages
``nvidia-*``. Gigabytes of libraries that a test on the CPU never calls need not be fetched then.
What PyTorch runs on the CPU is its own, unchanged. Every function of the stand-ins returns 100,
which CUDA means as "no device", and its other libraries as an error: `torch.cuda.is_available()`
says no.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

_FAILS, _TEXT = (
    "int {}(void) {{ return 100; }}\n",
    'const char *{}(void) {{ return "a stand-in for CUDA"; }}\n',
)


def _read(option: str, library: Path) -> str:
    return subprocess.run(
        ["readelf", "--wide", option, library], capture_output=True, text=True, check=True
    ).stdout


def _stem(library: str) -> str:
    return library.removeprefix("lib").split(".")[0].split("_")[0].lower()


def _owner(symbol: str, version: str, absent: set[str]) -> str | None:
    """The absent library that a symbol is from: its version names the library, or its own name
    begins as the library's does."""
    if version in absent:
        return version
    found = [library for library in absent if symbol.lower().lstrip("_").startswith(_stem(library))]
    return max(found, key=lambda library: len(_stem(library)), default=None)


def wanted(folder: Path) -> dict[str, dict[str, str]]:
    """What PyTorch's libraries want of those that are absent: version by symbol, by library."""
    libraries = sorted(folder.glob("*.so*"))
    there = {library.name for library in libraries}
    needed = {
        name
        for library in libraries
        for name in re.findall(r"\(NEEDED\).*\[(.*)\]", _read("--dynamic", library))
    }
    absent = {
        name
        for name in needed - there
        if re.match(r"lib(cu|nv|nccl)", name) and name != "libcuda.so.1"
    }
    found: dict[str, dict[str, str]] = defaultdict(dict, {name: {} for name in absent})
    for library in libraries:
        for symbol, version in re.findall(
            r" UND ([\w]+)(?:@([\w.]+))?", _read("--dyn-syms", library)
        ):
            owner = _owner(symbol, version, absent)
            if owner is not None:
                found[owner][symbol] = version
    return found


def make(library: Path, symbols: dict[str, str]) -> None:
    """Compile a library whose functions all fail."""
    versions: dict[str, list[str]] = defaultdict(list)
    for symbol, version in sorted(symbols.items()):
        versions[version].append(symbol)
    code = "".join(
        (_TEXT if "ErrorString" in symbol else _FAILS).format(symbol) for symbol in sorted(symbols)
    )
    script = "".join(
        f"{version} {{ global: {'; '.join(names)}; }};\n"
        for version, names in versions.items()
        if version
    )
    with tempfile.TemporaryDirectory() as folder:
        source, map_ = Path(folder, "functions.c"), Path(folder, "versions.map")
        source.write_text(code)
        map_.write_text(script)
        options = [f"-Wl,--version-script={map_}"] if script else []
        compiler = [
            "cc",
            "-w",
            "-fno-builtin",
            "-shared",
            "-fPIC",
            f"-Wl,-soname,{library.name}",
            *options,
        ]
        subprocess.run([*compiler, source, "-o", library], check=True)


def main() -> None:
    """Make the stand-ins that the installed torch needs, beside its own libraries."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        sys.exit("cuda_stand_ins: torch is not installed here")
    folder = Path(found.origin).parent / "lib"
    for name, symbols in sorted(wanted(folder).items()):
        make(folder / name, symbols)
        print(f"{name}: {len(symbols)} functions")


if __name__ == "__main__":
    main()
