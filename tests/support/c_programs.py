"""Builds and runs exported programs, and what other runtimes say of the same models."""

from __future__ import annotations

import importlib.util
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

import loadmaster.integrations.c_program as package
from loadmaster.integrations.c_program.model import element_type
from loadmaster.integrations.c_program.program import Port, Program
from loadmaster.integrations.c_program.tables import plan_source

Arrays = dict[str, np.ndarray]
TEMPLATES = Path(package.__file__).parent / "files"
FLAGS = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-O1", "-ffp-contract=off", "-pthread"]
PLAIN, ADDRESS, THREAD = "", "address,undefined", "thread"


def checked_by(sanitizer: str) -> list[str]:
    return [f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all"] if sanitizer else []


@cache
def objects(sanitizer: str) -> list[Path]:
    """The files that are the same for all programs, compiled once."""
    folder = Path(mkdtemp(prefix="loadmaster-c-"))
    found = []
    for name in ("kernels", "runtime", "main"):
        found.append(folder / f"{name}.o")
        subprocess.run(
            [
                "gcc",
                *FLAGS,
                *checked_by(sanitizer),
                "-c",
                str(TEMPLATES / f"{name}.c"),
                "-o",
                str(found[-1]),
            ],
            check=True,
        )
    return found


def build(program: Program, folder: Path, sanitizer: str = PLAIN) -> Path:
    """Compile a program's tables, link them with the rest, and write the weights."""
    folder.mkdir(exist_ok=True, parents=True)
    (folder / "plan.c").write_text(plan_source(program))
    (folder / "weights.bin").write_bytes(b"".join(data.tobytes() for _, _, data in program.weights))
    command = [
        "gcc",
        *FLAGS,
        *checked_by(sanitizer),
        f"-I{TEMPLATES}",
        str(folder / "plan.c"),
        *map(str, objects(sanitizer)),
    ]
    subprocess.run([*command, "-lm", "-o", str(folder / "program")], check=True)
    return folder


def execute(
    folder: Path, inputs: Sequence[np.ndarray], outputs: int, options: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Run a program in its folder; its outputs are there as `out0`, `out1`, ..."""
    for number, array in enumerate(inputs):
        array.tofile(folder / f"in{number}")
    files = [
        "weights.bin",
        *(f"in{n}" for n in range(len(inputs))),
        *(f"out{n}" for n in range(outputs)),
    ]
    return subprocess.run(
        ["./program", *options, *files], cwd=folder, capture_output=True, text=True
    )


def outputs_of(folder: Path, ports: Sequence[Port]) -> list[np.ndarray]:
    return [
        np.fromfile(folder / f"out{n}", element_type(port.value, "model")).reshape(port.value.shape)
        for n, port in enumerate(ports)
    ]


def expected(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> Arrays:
    """Outputs of ONNX Runtime where it is installed, else of the evaluator of the onnx package."""
    names = [output.name for output in model.graph.output]
    if importlib.util.find_spec("onnxruntime"):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = 1
        return dict(
            zip(
                names,
                onnxruntime.InferenceSession(model.SerializeToString(), options).run(
                    names, dict(feeds)
                ),
                strict=True,
            )
        )
    return dict(zip(names, ReferenceEvaluator(model).run(names, dict(feeds)), strict=True))
