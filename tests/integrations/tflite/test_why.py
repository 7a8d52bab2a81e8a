"""Why an arena is as large as it is: peaks by operator, and remedies that were tried."""

from pathlib import Path

import numpy as np
from tests.support.tflite_models import Model, b, i

from loadmaster.integrations.tflite.bands.shrink import banded
from loadmaster.integrations.tflite.export import export_model
from loadmaster.integrations.tflite.why import AliveTensor, OperatorPeak, arena_reasons

FIXTURE = Path(__file__).parents[3] / "fixtures" / "wake-words.tflite"


def test_the_peak_is_named_by_its_operator_and_its_tensors():
    reasons = arena_reasons(FIXTURE)
    tensors = (AliveTensor("t9", 36864), AliveTensor("t6", 18432))
    assert reasons.peaks[0] == OperatorPeak("operator 2 (CONV_2D)", 55296, tensors)
    assert [each.bytes for each in reasons.peaks] == [55296, 46080, 46080]
    assert reasons.head_before == 73728
    assert reasons.no_bands is None


def test_remedies_are_what_planning_with_them_gives():
    reasons = arena_reasons(FIXTURE)
    found = {each.option: each for each in reasons.remedies}
    in_place = export_model(FIXTURE, scratch="none", in_place="reference")
    assert found["--in-place reference"].head == in_place.plan.head == 55296
    assert (found["--extra-macs 1%"].head, found["--extra-macs 1%"].work) == (46080, 1.0)
    five = found["--extra-macs 5%"]
    assert reasons.front is not None
    (choice,) = (each for each in reasons.front.choices if each.work == five.work)
    assert five.head == banded(reasons.front, choice).plan.head == 36864


def test_a_smaller_input_is_tried_as_if_the_model_were_converted_with_it(tmp_path):
    """Strides, PAD, odd sizes and a pool over all that is left; what depends on the size is not
    tried."""

    def network(rows, columns, *, flat=False):
        net = (model := Model()).subgraph()
        value, sides = net.input((1, rows, columns, 4)), (rows, columns)
        for stride, width in ((2, 8), (1, 16)):
            shape = (width, 3, 3, net.shapes[value][3])
            weights = net.tensor(shape, data=np.ones(shape))
            bias = net.tensor((width,), data=np.zeros(width))
            options = {0: b(0), 1: i(stride), 2: i(stride), 4: i(1), 5: i(1)}
            sides = (-(-sides[0] // stride), -(-sides[1] // stride))
            shape = (1, *sides, width)
            value = net.out("CONV_2D", [value, weights, bias], shape, options)
        pads = net.tensor((4, 2), "int32", [[0, 0], [1, 1], [0, 2], [0, 0]])
        sides = (sides[0] + 2, sides[1] + 2)
        value = net.out("PAD", [value, pads], (1, *sides, 16), {})
        if flat:
            shape = net.tensor((2,), "int32", [1, 16 * sides[0] * sides[1]])
            value = net.out("RESHAPE", [value, shape], (1, 16 * sides[0] * sides[1]), {})
        else:
            options = {0: b(1), 1: i(1), 2: i(1), 3: i(sides[1]), 4: i(sides[0])}
            value = net.out("AVERAGE_POOL_2D", [value], (1, 1, 1, 16), options)
        net.outputs.append(value)
        path = tmp_path / f"{rows}.tflite"
        path.write_bytes(model.bytes())
        return path

    (tried,) = (r for r in arena_reasons(network(20, 12)).remedies if r.what.startswith("an input"))
    assert tried.what == "an input of 15 x 9"
    assert tried.head == export_model(network(15, 9), scratch="none").plan.head
    reasons = arena_reasons(network(20, 12, flat=True))
    assert not [each for each in reasons.remedies if each.what.startswith("an input")]


def test_another_order_is_tried(tmp_path):
    """Branches that make much and keep little, written breadth first."""
    model = Model()
    net = model.subgraph()
    value, large = net.input((1, 4, 4, 4)), []
    for _ in range(3):
        weights = net.tensor((16, 1, 1, 4), data=np.ones((16, 1, 1, 4)))
        bias = net.tensor((16,), data=np.zeros(16))
        options = {0: b(0), 1: i(1), 2: i(1), 4: i(1), 5: i(1)}
        large.append(net.out("CONV_2D", [value, weights, bias], (1, 4, 4, 16), options))
    axes = net.tensor((2,), "int32", [1, 2])
    means = [net.out("MEAN", [each, axes], (1, 1, 1, 16), {0: b(1)}) for each in large]
    net.outputs.append(net.out("CONCATENATION", means, (1, 1, 1, 48), {0: i(3)}))
    path = tmp_path / "branches.tflite"
    path.write_bytes(model.bytes())
    reasons = arena_reasons(path)
    (order,) = (each for each in reasons.remedies if each.what == "operators in another order")
    assert order.head < reasons.head_before == reasons.peaks[0].bytes


def test_a_file_that_cannot_be_rewritten_says_why(tmp_path):
    path = tmp_path / "net.tflite"
    for kind, note, text in (
        ("CUSTOM:ethos-u", False, "operator 0 (CUSTOM:ethos-u) is not one of TFLM's"),
        ("RELU", True, "has addresses for its tensors already"),
        ("SOFTMAX", False, "nothing in it takes less in bands"),
    ):
        model = Model()
        net = model.subgraph()
        net.outputs.append(net.out(kind, [net.input((1, 4, 4, 8))], (1, 4, 4, 8)))
        if note:
            content = np.array([1, 0, 2, 0, 512], dtype=np.int32).tobytes()
            model.note("OfflineMemoryAllocation", content)
        path.write_bytes(model.bytes())
        assert str(arena_reasons(path).no_bands).startswith(text)
        assert not [each for each in arena_reasons(path).remedies if each.what == "bands"]
