"""Small convolutional networks as an ONNX file would hold them: with windows, so that they can be
cut."""

from functools import cache

from tests.support.efforts import verified
from tests.support.networks import npu
from tests.support.onnx_builder import int8_graph


def convolutions(name="cut", *, rows=12, channels=8, strides=(1, 2), skip=True, pad=1):
    """A chain of 3 x 3 convolutions of the given strides with rectifiers; ``skip`` adds the last
    result to that of one more."""
    nodes = []
    weights = {}

    def conv(source, target, stride):
        weights[f"w_{target}"] = channels, channels, 3, 3
        options = f"strides={[stride] * 2}, pads={[pad] * 4}"
        nodes.append(f"[{target}] c_{target} = Conv<{options}>({source}, w_{target})")
        nodes.append(f"[relu_{target}] {target} = Relu(c_{target})")

    last = "x"
    for number, stride in enumerate(strides):
        conv(last, f"t{number}", stride)
        last = f"t{number}"
    if skip:
        conv(last, "again", 1)
        nodes.append(f"[add] sum = Add({last}, again)")
        last = "sum"
    return int8_graph(nodes, {"x": (1, channels, rows, rows)}, [last], weights, name=name)


def cut_network():
    """The network of :func:`cut_plan`."""
    return convolutions(rows=16, channels=32, strides=(1, 1, 2))


@cache
def cut_plan(mini_batches=1):
    """A plan on two cores in which operators run in pieces."""
    machine = npu(2, 40_000, bandwidth=2e10)
    plan = verified([cut_network()], machine, mini_batches=mini_batches)
    assert any(job.ranges for job in plan.jobs), "else tests of pieces prove nothing"
    return plan
