"""In-place updates become new tensors, so that every engine sees tensors that are written once."""

from tests.support.networks import GraphBuilder, npu

import loadmaster as lm
from loadmaster.workloads.graph import Access, Op, OpClass, TensorKind
from loadmaster.workloads.lowering.single_assignment import without_updates


def updating():
    """A convolution, a ReLU in place, a scaled weight, half of the result overwritten through a
    view, and a sum of both."""
    build = GraphBuilder()
    build.conv("y", build.tensor("x", (4, 4, 4), TensorKind.INPUT), 4)
    size = build.tensors["y"].bytes
    build.tensor("half", (size // 2,), alias_of="y")
    elementwise, whole, part, weight = (
        OpClass.ELEMENTWISE,
        Access("y", size),
        Access("half", size // 2),
        Access("y.w", 144),
    )
    build.ops += [
        Op("relu", "Relu", elementwise, (whole,), (whole,), (), size, 8),
        Op("decay", "Mul", elementwise, (weight,), (weight,), (), 144, 8),
        Op("view", "Slice", OpClass.VIEW, (Access("y", 0),), (Access("half", 0),)),
        Op("fill", "Fill", OpClass.MOVEMENT, (Access("x", 8),), (part,), (), 0, 8),
    ]
    build.elementwise("sum", "y", "x")
    return build.graph("sum")


def test_every_update_is_a_new_tensor():
    graph = updating()
    new = without_updates(graph)
    written = [
        new.tensors[a.tensor].storage
        for op in new.ops
        if op.op_class is not OpClass.VIEW
        for a in op.writes
    ]
    assert written == ["y", "y@1", "y.w@1", "y@2", "sum"]
    reads = {op.name: [access.tensor for access in op.reads] for op in new.ops}
    assert reads["relu"] == ["y"]
    assert reads["view"] == ["y@1"]
    # What is not overwritten is copied.
    assert reads["fill"] == ["x", "y@1"]
    assert reads[new.ops[-1].name] == ["y@2", "x"]
    assert new.tensors["half@2"].alias_of == "y@2"
    assert new.outputs == ("sum", "y.w@1")


def test_graphs_without_updates_stay_as_they_are():
    graph = lm.load("onnx:resnet50")
    assert without_updates(graph) is graph


def test_updates_are_planned():
    work = lm.lower([updating()], npu())
    assert [job.after for job in work.jobs] == [tuple(sorted(set(job.after))) for job in work.jobs]
    assert lm.verify(lm.plan([updating()], npu())) == ()


def test_an_update_of_a_part_makes_a_new_tensor_without_a_view_too():
    build = GraphBuilder()
    x, w = build.tensor("x", (8,), TensorKind.INPUT), build.tensor("w", (8,), TensorKind.WEIGHT)
    read, part = (Access(x, 4),), (Access(w, 4),)
    build.ops.append(Op("fill", "Fill", OpClass.MOVEMENT, read, part, (), 0, 8))
    build.elementwise("sum", x, w)
    new = without_updates(build.graph("sum"))
    fill, _ = new.ops
    assert [each.tensor for each in (*fill.reads, *fill.writes)] == ["x", "w", "w@1"]
