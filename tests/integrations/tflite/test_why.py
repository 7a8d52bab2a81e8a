"""Why an arena is as large as it is: peaks by operator, and remedies that were tried."""

import pytest
from tests.support.needs import FIXTURES
from tests.support.tflite_models import branches, one_operator, started

from loadmaster.integrations.tflite.bands.shrink import banded
from loadmaster.integrations.tflite.export import export_model
from loadmaster.integrations.tflite.export_json import AliveTensor, OperatorPeak
from loadmaster.integrations.tflite.planned_file import plan_bytes
from loadmaster.integrations.tflite.why import arena_reasons

FIXTURE = FIXTURES / "wake-words.tflite"


@pytest.mark.slow
def test_the_peak_is_named_by_its_operator_and_its_tensors():
    reasons = arena_reasons(FIXTURE)
    tensors = (AliveTensor("t9", 36864), AliveTensor("t6", 18432))
    assert reasons.peaks[0] == OperatorPeak("operator 2 (CONV_2D)", 55296, tensors)
    assert [each.bytes for each in reasons.peaks] == [55296, 46080, 46080]
    assert reasons.head_before == 73728
    assert reasons.no_bands is None


@pytest.mark.slow
def test_remedies_are_what_planning_with_them_gives():
    reasons = arena_reasons(FIXTURE)
    found = {each.option: each for each in reasons.remedies}
    in_place = export_model(FIXTURE, scratch="none", in_place="reference")
    assert found["--in-place reference"].head == in_place.plan.head == 55296
    assert (found["--extra-macs 1%"].head, found["--extra-macs 1%"].work) == (46080, 1.0)
    five = found["--extra-macs 5%"]
    (choice,) = (each for each in reasons.front.choices if each.work == five.work)
    assert five.head == banded(reasons.front, choice).plan.head == 36864


def test_a_smaller_input_is_tried_as_if_the_model_were_converted_with_it(tmp_path):
    """Strides, PAD, odd sizes and a pool over all that is left; what depends on the size is not
    tried."""

    def network(rows, columns, *, flat=False):
        model, net = started()
        value = net.input((1, rows, columns, 4))
        for stride, width in ((2, 8), (1, 16)):
            value = net.conv(value, width, 3, stride)
        value = net.pad(value, (1, 1), (0, 2))
        _, height, width, _ = net.shapes[value]
        if flat:
            shape = 1, 16 * height * width
            value = net.out("RESHAPE", [value, net.ints(*shape)], shape, {})
        else:
            options = {0: 1, 1: 1, 2: 1, 3: width, 4: height}
            value = net.out("AVERAGE_POOL_2D", [value], "1x1x1x16", options)
        net.outputs.append(value)
        return model.save(tmp_path)

    (tried,) = (r for r in arena_reasons(network(20, 12)).remedies if r.what.startswith("an input"))
    assert tried.what == "an input of 15 x 9"
    assert tried.head == export_model(network(15, 9), scratch="none").plan.head
    reasons = arena_reasons(network(20, 12, flat=True))
    assert not [each for each in reasons.remedies if each.what.startswith("an input")]


def test_another_order_is_tried(tmp_path):
    """Branches that make much and keep little, written breadth first."""
    reasons = arena_reasons(branches(16, 16, 16).save(tmp_path))
    (order,) = (each for each in reasons.remedies if each.what == "operators in another order")
    assert order.head < reasons.head_before == reasons.peaks[0].bytes


def test_a_file_that_cannot_be_rewritten_says_why(tmp_path):
    for kind, note, text in (
        ("CUSTOM:ethos-u", False, "operator 0 (CUSTOM:ethos-u) is not one of TFLM's"),
        ("RELU", True, "has addresses for its tensors already"),
        ("SOFTMAX", False, "nothing in it takes less in bands"),
    ):
        model = one_operator(kind, "1x4x4x8", "", "1x4x4x8", None)
        if note:
            model.note("OfflineMemoryAllocation", plan_bytes([0, 512]))
        path = model.save(tmp_path)
        assert str(arena_reasons(path).no_bands).startswith(text)
        assert not [each for each in arena_reasons(path).remedies if each.what == "bands"]
