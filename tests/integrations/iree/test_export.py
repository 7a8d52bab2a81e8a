"""Programs of IREE with Loadmaster's plan: the same outputs, and as much less memory as was
said."""

import re
import subprocess
import sys

import numpy as np
import pytest
from tests.support.command_line import names, printed, ran, refused, run
from tests.support.json_schema import conforms
from tests.support.needs import TOOLCHAIN
from tests.support.onnx_builder import constant, info, model, save

pytest.importorskip("iree.compiler", reason=TOOLCHAIN)
pytest.importorskip("iree.runtime", reason=TOOLCHAIN)

from loadmaster.integrations.iree.export import TARGET, tool

BATCH = 2


def network(folder, rows=16, opset=17):
    """Convolutions of operands that are alive for different times."""
    rng = np.random.default_rng(0)
    shapes = {"w1": (8, 3, 3, 3), "w2": (12, 8, 3, 3), "w3": (8, 8, 3, 3)}
    weights = [constant(name, rng.normal(size=shape), np.float32) for name, shape in shapes.items()]
    nodes = [
        "a = Conv<pads=[1, 1, 1, 1]>(x, w1)",
        "b = Relu(a)",
        "c = Conv<pads=[1, 1, 1, 1], strides=[2, 2]>(b, w2)",
        "d = Conv<pads=[1, 1, 1, 1]>(b, w3)",
        "e = Add(d, b)",
        "f = Conv<pads=[1, 1, 1, 1], strides=[2, 2]>(e, w2)",
        "g = Concat<axis=1>(c, f)",
        "y = GlobalAveragePool(g)",
    ]
    proto = model(nodes, [info("x", [BATCH, 3, rows, 16])], "y", weights, opset=opset, ir_version=8)
    proto.graph.output[0].CopyFrom(info("y", [BATCH, 24, 1, 1]))
    del proto.opset_import[1:]
    return save(folder, proto)


def stock(source, folder):
    """The program as IREE itself compiles it, and its weights."""
    module, weights, program = (folder / f"stock.{suffix}" for suffix in ("mlir", "irpa", "vmfb"))
    importer = [
        *tool("iree-import-onnx"),
        source,
        "--externalize-params",
        "--save-params-to",
        weights,
        "-o",
        module,
    ]
    for command in (importer, [*tool("iree-compile"), module, *TARGET, "-o", program]):
        subprocess.run(list(map(str, command)), check=True, capture_output=True)
    return program, weights


def executed(program, weights, inputs, out):
    """Outputs, and the most bytes that were on the device at once."""
    parameters = [f"--parameters=model={weights}"] if weights.exists() else []
    command = [
        sys.executable,
        "-m",
        "iree._runtime.scripts.iree_run_module",
        f"--module={program}",
        *parameters,
        "--device=local-sync",
    ]
    flags = [f"--input=@{inputs}", f"--output=@{out}", "--print_statistics"]
    done = subprocess.run([*command, *flags], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    peak = re.search(r"DEVICE_LOCAL:\s*(\d+)B peak", done.stdout + done.stderr)
    assert peak
    return out.read_bytes(), int(peak[1])


@pytest.mark.parametrize("opset", [13, 17])
def test_a_planned_program_gives_the_same_outputs_in_less_memory(opset, tmp_path):
    source = network(tmp_path, opset=opset)
    planned = tmp_path / "out" / "planned.vmfb"
    inputs = tmp_path / "x.npy"
    shown = printed("export", "iree", source, "--out", planned)
    conforms("export-iree", shown)
    assert shown["files"][-1] == str(planned)
    saved = sum(pack["before"] - pack["bytes"] for pack in shown["packs"])
    assert saved > 0
    assert all(
        pack["lower_bound"] == pack["bytes"] and pack["status"] == "optimal"
        for pack in shown["packs"]
    )
    np.save(inputs, np.random.default_rng(1).normal(size=(BATCH, 3, 16, 16)).astype(np.float32))
    program, weights = stock(network(tmp_path), tmp_path)
    before, most_before = executed(program, weights, inputs, tmp_path / "before.npy")
    after, most_after = executed(
        planned, planned.with_suffix(".irpa"), inputs, tmp_path / "after.npy"
    )
    assert before == after
    assert most_before - most_after == saved


def test_sizes_that_are_not_static_are_refused_and_nothing_is_written(tmp_path):
    source = network(tmp_path, rows="rows")
    refused(
        run("export", "iree", source, "--out", tmp_path / "out" / "p.vmfb"),
        "net.onnx",
        "is not known when",
        "static",
    )
    assert not (tmp_path / "out").exists()


def test_models_that_iree_cannot_compile_are_refused_with_its_reason(tmp_path):
    broken = tmp_path / "m.mlir"
    broken.write_text("func.func @f() -> nothing")
    refused(
        run("export", "iree", broken, "--out", tmp_path / "p.vmfb"),
        "m.mlir",
        "iree-compile failed",
        "error:",
    )
    damaged = tmp_path / "m.onnx"
    damaged.write_bytes(b"\xff" * 64)
    refused(
        run("export", "iree", damaged, "--out", tmp_path / "p.vmfb"), "m.onnx", "is no ONNX model"
    )
    empty = tmp_path / "e.mlir"
    empty.write_text(
        "func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {\n  return %x : tensor<4xf32>\n}\n"
    )
    refused(
        run("export", "iree", empty, "--out", tmp_path / "p.vmfb"), "e.mlir", "no transient memory"
    )
    assert names(tmp_path) == ["e.mlir", "m.mlir", "m.onnx"]


def test_a_text_program_for_a_target_of_ones_own(tmp_path):
    source = tmp_path / "m.mlir"
    source.write_text(
        "func.func @main(%a: tensor<64x64xf32>, %b: tensor<64x64xf32>) -> tensor<64x64xf32> {\n  %z"
        " = arith.constant 0.0 : f32\n  %e = tensor.empty() : tensor<64x64xf32>\n  %i = linalg.fill"
        " ins(%z : f32) outs(%e : tensor<64x64xf32>) -> tensor<64x64xf32>\n  %1 = linalg.matmul"
        " ins(%a, %b : tensor<64x64xf32>, tensor<64x64xf32>) outs(%i : tensor<64x64xf32>) ->"
        " tensor<64x64xf32>\n  %2 = linalg.matmul ins(%1, %b : tensor<64x64xf32>,"
        " tensor<64x64xf32>) outs(%i : tensor<64x64xf32>) -> tensor<64x64xf32>\n  %3 ="
        " linalg.matmul ins(%2, %1 : tensor<64x64xf32>, tensor<64x64xf32>) outs(%i :"
        " tensor<64x64xf32>) -> tensor<64x64xf32>\n  return %3 : tensor<64x64xf32>\n}\n"
    )
    done = ran("export", "iree", source, "--out", tmp_path / "p.vmfb", "--", *TARGET)
    assert "32,768" in done.stdout
    assert names(tmp_path) == ["m.mlir", "p.vmfb"]
