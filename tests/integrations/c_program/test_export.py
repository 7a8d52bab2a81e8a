"""`loadmaster export c`: what it writes, and what it refuses before anything is written."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from tests.support.c_programs import TEMPLATES, expected
from tests.support.command_line import run
from tests.support.efforts import SEPARATE
from tests.support.networks import npu
from tests.support.onnx_builder import absent, constant, model, node, save
from tests.support.program_networks import random_network

import loadmaster as lm
from loadmaster.core.errors import LoadmasterError, ModelError, PlanError
from loadmaster.integrations.c_program.export import export_program
from loadmaster.integrations.c_program.kernels import kinds

DOCS = Path(__file__).parents[3] / "docs"


def planned(path: Path, **options) -> lm.Plan:
    return lm.plan([lm.load(path, **options)], npu(2, 4096), effort=SEPARATE)


def weight(name: str, *shape: int) -> onnx.TensorProto:
    return constant(name, np.random.default_rng(1).uniform(-1, 1, shape), np.float32)


def small(tmp_path: Path, name: str = "net.onnx", kind: str = "Relu") -> Path:
    """A product, and something that is done to its result."""
    nodes = [node("MatMul", ["x", "w"], "y", "product"), node(kind, ["y"], "z", "then")]
    return save(tmp_path, model(nodes, {"x": (4, 8)}, ["z"], [weight("w", 8, 6)]), name)


def refused(
    kind: type[LoadmasterError], out: Path, plan: lm.Plan, *sources: Path, **options
) -> str:
    with pytest.raises(kind) as caught:
        export_program(plan, [str(source) for source in sources], out, **options)
    assert not out.exists(), "nothing is written"
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_command_writes_a_program_that_make_builds_and_that_runs(tmp_path: Path) -> None:
    build = random_network(4, length=6)
    proto = build.model(build.last)
    path = save(tmp_path, proto)
    plan, out = planned(path).save(tmp_path / "plan.json"), tmp_path / "program"
    result = run("export", "c", str(plan), "--model", str(path), "--out", str(out))
    assert result.returncode == 0, result.stderr
    assert {file.name for file in out.iterdir()} == {
        "plan.c",
        "weights.bin",
        *(file.name for file in TEMPLATES.iterdir()),
    }
    subprocess.run(["make", "-s", "-C", str(out), "CFLAGS=-O1"], check=True, capture_output=True)
    for name, array in build.inputs.items():
        array.tofile(out / name)
    words = ["weights.bin", *build.inputs, "result"]
    subprocess.run(["./program", "--jitter", "3", *words], cwd=out, check=True)
    due = expected(proto, build.inputs)[build.last]
    np.testing.assert_allclose(
        np.fromfile(out / "result", np.float32).reshape(due.shape), due, 1e-4, 1e-5
    )

    usage = subprocess.run(["./program"], cwd=out, capture_output=True, text=True)
    assert usage.returncode == 2
    assert "input net/x0: float32" in usage.stderr
    (out / "x0").write_bytes(b"short")
    short = subprocess.run(["./program", *words], cwd=out, capture_output=True, text=True)
    assert (short.returncode, short.stderr) == (1, "x0: does not have as many bytes as the input\n")


def test_the_same_plan_gives_the_same_files(tmp_path: Path) -> None:
    path = small(tmp_path)
    for folder in ("a", "b"):
        export_program(planned(path), [str(path)], tmp_path / folder)
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()


def test_an_operator_without_a_kernel_is_named_with_its_type(tmp_path: Path) -> None:
    path = small(tmp_path, kind="Mish")
    text = refused(ModelError, tmp_path / "out", planned(path), path)
    assert (
        "net.onnx: operator 'then' is of type Mish, for which the program in C has no kernel"
        in text
    )


def test_what_a_kernel_does_not_do_is_named(tmp_path: Path) -> None:
    nodes = [
        node("Pad", ["x", "pads"], "y", "mirror", mode="reflect"),
        node("Relu", ["y"], "z", "then"),
    ]
    path = save(tmp_path, model(nodes, {"x": (4, 8)}, ["z"], [constant("pads", [1, 1, 1, 1])]))
    text = refused(ModelError, tmp_path / "out", planned(path), path)
    assert (
        "operator 'mirror' is of type Pad, which the program in C does not run in mode reflect"
        in text
    )


def test_a_plan_at_int8_is_refused(tmp_path: Path) -> None:
    path = small(tmp_path)
    text = refused(PlanError, tmp_path / "out", planned(path, precision="int8"), path)
    assert "--precision fp32" in text


def test_a_model_that_is_not_the_plans_is_refused(tmp_path: Path) -> None:
    path, other = small(tmp_path), small(tmp_path, "other.onnx", "Tanh")
    nodes = [node("MatMul", ["x", "w"], "y", "product"), node("Relu", ["y"], "z", "afterwards")]
    renamed = save(
        tmp_path, model(nodes, {"x": (4, 8)}, ["z"], [weight("w", 8, 6)]), "renamed.onnx"
    )
    wider = save(
        tmp_path,
        model([replace_width(n) for n in nodes], {"x": (4, 9)}, ["z"], [weight("w", 9, 6)]),
        "wider.onnx",
    )
    plan = planned(path)
    for wrong in (renamed, wider):
        assert "not one of these models" in refused(PlanError, tmp_path / "out", plan, wrong)
    assert "give one for each" in refused(PlanError, tmp_path / "out", plan, path, other)


def replace_width(proto: onnx.NodeProto) -> onnx.NodeProto:
    """The node under the name that the small network has for it."""
    return helper.make_node(
        proto.op_type, proto.input, proto.output, {"afterwards": "then"}.get(proto.name, proto.name)
    )


def test_a_plan_that_does_not_hold_is_refused(tmp_path: Path) -> None:
    path = small(tmp_path)
    plan = planned(path)
    job = replace(plan.jobs[-1], after=())
    broken = replace(plan, jobs=(*plan.jobs[:-1], replace(job, reads=())))
    assert "the plan does not hold" in refused(PlanError, tmp_path / "out", broken, path)


def test_weights_that_are_not_there_are_named(tmp_path: Path) -> None:
    nodes = [node("MatMul", ["x", "w"], "y", "product")]
    path = save(tmp_path, model(nodes, {"x": (4, 8)}, ["y"], [absent("w", (8, 6))]))
    text = refused(ModelError, tmp_path / "out", planned(path), path)
    assert "net.onnx: the elements of the weight 'w' are missing" in text


def test_a_type_that_the_program_does_not_know_is_named(tmp_path: Path) -> None:
    nodes = [
        node("Cast", ["x"], "y", "narrow", to=onnx.TensorProto.INT16),
        node("Cast", ["y"], "z", "wide", to=onnx.TensorProto.FLOAT),
    ]
    path = save(tmp_path, model([*nodes, node("Relu", ["z"], "r", "last")], {"x": (4, 8)}, ["r"]))
    assert "tensor 'y' is of type int16" in refused(
        ModelError, tmp_path / "out", planned(path), path
    )


def test_parts_over_channels_that_the_plan_does_not_tell_are_refused(tmp_path: Path) -> None:
    """A reader of a plan needs to know which elements a part holds."""
    nodes = [node("MatMul", ["x", "w"], "y", "product")]
    path = save(tmp_path, model(nodes, {"x": (4, 64)}, ["y"], [weight("w", 64, 64)]))
    plan = lm.plan([lm.load(path)], npu(2, 4096), effort=SEPARATE, cut="none")
    assert any(tensor.channels for tensor in plan.tensors)
    export_program(plan, [str(path)], tmp_path / "good")
    untold = replace(plan, tensors=tuple(replace(tensor, channels=()) for tensor in plan.tensors))
    assert "the plan does not tell which" in refused(PlanError, tmp_path / "out", untold, path)


def test_names_of_any_kind_become_text(tmp_path: Path) -> None:
    nodes = [
        node("MatMul", ["x", "w"], "y", 'a "quote" \\ ?? and \u00fc'),
        node("Relu", ["y"], "z", "then"),
    ]
    path = save(tmp_path, model(nodes, {"x": (4, 8)}, ["z"], [weight("w", 8, 6)]))
    export_program(planned(path), [str(path)], tmp_path / "out")
    subprocess.run(
        ["make", "-s", "-C", str(tmp_path / "out"), "CFLAGS=-O0"], check=True, capture_output=True
    )


def test_the_page_lists_the_kernels() -> None:
    page = (DOCS / "how-to" / "generate-code.md").read_text().replace("\n", " ")
    missing = [kind for kind in kinds() if f"`{kind}`" not in page]
    assert not missing
