"""Have each planner plan a program and write its dump, as its users would."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from loadmaster.integrations.iree.export import TARGET, tool

PASS = "iree-stream-layout-slices"


def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
    """Run a tool; what it said last is the error if it fails."""
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | options
    )  # type: ignore[operator]
    if done.returncode:
        raise RuntimeError(
            f"{Path(command[0]).name}: {(done.stderr.strip() or done.stdout.strip())[-300:]}"
        )
    return done


def xla(program: Path, folder: Path) -> Path:
    """Dump what XLA makes of a Python script that compiles one JAX function called ``step``."""
    where = folder / f"{program.stem}-xla"
    run(
        [sys.executable, str(program)],
        XLA_FLAGS=f"--xla_dump_to={where} --xla_dump_hlo_as_text",
        JAX_PLATFORMS="cpu",
    )
    return max(where.glob("*.jit_step.*-buffer-assignment.txt"))


def iree(program: Path, folder: Path) -> Path:
    """Dump what IREE makes of an ONNX file, for this machine's processor."""
    module, dump = folder / f"{program.stem}.mlir", folder / f"{program.stem}.iree.txt"
    weights = folder / f"{program.stem}.irpa"
    importer = [
        *tool("iree-import-onnx"),
        str(program),
        "--opset-version",
        "17",
        "--externalize-params",
        "--save-params-to",
        str(weights),
    ]
    run([*importer, "-o", str(module)])
    printed = [f"--mlir-print-ir-{when}={PASS}" for when in ("before", "after")]
    command = [
        *tool("iree-compile"),
        str(module),
        *TARGET,
        *printed,
        "--mlir-disable-threading",
        "--compile-to=stream",
        "-o",
        os.devnull,
    ]
    dump.write_text(run(command).stderr)
    return dump


def vela(program: Path, folder: Path) -> Path:
    """Dump what Vela makes of a `.tflite` file, for an Ethos-U55 with 128 units."""
    dump = folder / f"{program.stem}.vela.txt"
    command = [
        sys.executable,
        "-c",
        "from ethosu.vela.vela import main; main()",
        str(program),
        "--accelerator-config",
        "ethos-u55-128",
        "--verbose-allocation",
    ]
    dump.write_text(run([*command, "--output-dir", str(folder / "vela")]).stdout)
    return dump


def onnxruntime(program: Path, folder: Path) -> Path:
    """Profile two runs of an ONNX file, with its optimised model beside the profile."""
    import onnxruntime as ort

    dump = folder / f"{program.stem}.json"
    options = ort.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(folder / "running")
    options.optimized_model_filepath = str(dump.with_suffix(".onnx"))
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = ort.InferenceSession(str(program), options, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    shapes = {
        each.name: [size if isinstance(size, int) else 1 for size in each.shape]
        for each in session.get_inputs()
    }
    feeds = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    for _ in range(2):
        session.run(None, feeds)
    shutil.move(session.end_profiling(), dump)
    return dump


PLANNERS: dict[str, tuple[Callable[[Path, Path], Path], str, str, str]] = {
    "xla": (xla, ".py", "jax", "jax==0.10.2"),
    "iree": (iree, ".onnx", "iree.compiler", "'loadmaster[iree]'"),
    "vela": (vela, ".tflite", "ethosu.vela", "ethos-u-vela==5.2.0"),
    "onnxruntime": (onnxruntime, ".onnx", "onnxruntime", "onnxruntime==1.31.1"),
}
"""How a dump is made, of which kind of program, the module that is needed for it and what to
install."""


def is_installed(module: str) -> bool:
    """Whether a module can be imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
