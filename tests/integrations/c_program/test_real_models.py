"""ResNet-50, MobileNetV2 and BERT-base with random weights: programs of their plans against ONNX
Runtime."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from tests.support.c_programs import execute, expected, outputs_of
from tests.support.efforts import SEPARATE
from tests.support.weighted import with_random_weights

import loadmaster as lm
from loadmaster.integrations.c_program.export import export_program

FIXTURES = Path(__file__).parents[3] / "fixtures"


def feeds(model: onnx.ModelProto, dims: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Random pictures, or tokens of which the last are masked."""
    generator, found = np.random.default_rng(5), {}
    for given in model.graph.input:
        shape = [dims.get(d.dim_param, d.dim_value) for d in given.type.tensor_type.shape.dim]
        if given.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
            found[given.name] = generator.normal(size=shape).astype(np.float32)
        elif "mask" in given.name:
            found[given.name] = (np.arange(shape[-1]) < 3 * shape[-1] // 4).astype(
                np.int64
            ) * np.ones(shape, np.int64)
        else:
            found[given.name] = generator.integers(0, 90, shape)
    return found


def check(
    tmp_path: Path,
    source: str,
    seed: str,
    changes: tuple[str, ...] = (),
    make: tuple[str, ...] = (),
    cut: str = "auto",
    **dims: int,
) -> None:
    file = tmp_path / "net.onnx"
    model = with_random_weights(source, file)
    network = lm.load(file, precision="fp32", dims=dims)
    plan = lm.plan([network], lm.target("edge-npu", list(changes)), effort=SEPARATE, cut=cut)
    program = export_program(plan, [str(file)], tmp_path / "program", dims=dims).program
    subprocess.run(["make", "-s", "-C", str(tmp_path / "program"), *make], check=True)
    given = feeds(model, dims)
    inputs = [given[port.name.split("/", 1)[1]] for port in program.inputs]
    ended = execute(
        tmp_path / "program", inputs, len(program.outputs), ["--jitter", seed, "--engines", "5"]
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    due = expected(model, given)
    for port, mine in zip(
        program.outputs, outputs_of(tmp_path / "program", program.outputs), strict=True
    ):
        its = due[port.name.split("/", 1)[1]]
        assert its.std() > 0
        assert np.abs(mine - its).max() <= 1e-4 * np.abs(its).max(), port.name


@pytest.mark.slow
@pytest.mark.parametrize("opset", [11, 15])
def test_a_small_bert_as_exporters_trace_it(tmp_path: Path, opset: int) -> None:
    """Layer normalisation and Gelu in their parts, shapes that are computed, and masks."""
    pytest.importorskip("onnxruntime", exc_type=ImportError)
    source, small = (
        str(FIXTURES / f"traced-bert-opset{opset}.onnx.gz"),
        ("scratchpad.capacity=32KiB",),
    )
    check(tmp_path, source, "4", small, ("SANITIZE=thread",), batch=2, steps=16)


@pytest.mark.slow
def test_mobilenet_in_pieces_on_several_cores(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", exc_type=ImportError)
    check(
        tmp_path,
        str(FIXTURES / "mobilenetv2.onnx.gz"),
        "6",
        make=("SANITIZE=thread", "KERNELS=", "CFLAGS=-O3"),
    )


@pytest.mark.slow
@pytest.mark.parametrize("source", ["onnx:resnet50", str(FIXTURES / "bert-base.onnx.gz")])
def test_a_large_network(tmp_path: Path, source: str) -> None:
    """Operators are whole, but for those that exceed the scratchpad: cutting is tested with smaller
    networks."""
    pytest.importorskip("onnxruntime", exc_type=ImportError)
    check(tmp_path, source, "6", cut="none")
