"""Results in the place of an operand that nobody needs any more: the same bits, in less memory."""

from itertools import cycle

import pytest
import torch
from tests.support.compiled import same, with_plan, without_plan
from tests.support.nightly import by_night
from torch import nn

from loadmaster.integrations.torch_compile.backend import model_of
from loadmaster.integrations.torch_compile.versions import IN_PLACE

aten = torch.ops.aten
SIZES = [(7,), (3, 5, 1031), (64, 33, 41)]
"""Fewer elements than a vector has, ends that are no whole vectors, and enough for several
threads."""
NUMBERS = {
    "leaky_relu": (0.1,), "hardtanh": (-0.5, 0.5), "pow.Tensor_Scalar": (3,), "clamp": (-0.5, 0.5),
    "clamp_min": (-0.5,), "clamp_max": (0.5,),
    "threshold_backward": (0,), "hardtanh_backward": (-0.5, 0.5),
    "leaky_relu_backward": (0.1, False),
    "add.Scalar": (2,), "sub.Scalar": (2,), "mul.Scalar": (2,), "div.Scalar": (3,),
}  # fmt: skip
"""What operators take after their tensors."""


def tensors(operator):
    """Names of an operator's tensors."""
    return [
        argument.name for argument in operator._schema.arguments if str(argument.type) == "Tensor"
    ]


def used(operator, position, given):
    """Make one operand, use it for the last time, and make something of the result."""
    numbers = NUMBERS.get(str(operator).removeprefix("aten.").removesuffix(".default"), ())
    return operator(
        *(one.flip(0) if i == position else one for i, one in enumerate(given)), *numbers
    ).flip(0)


def operands(operator, size):
    """Tensors for an operator."""
    return [
        torch.rand(size) > 0.5 if kind == "condition" else torch.randn(size)
        for kind in tensors(operator)
    ]


ELEMENTWISE = sorted((one for one in IN_PLACE if "batch_norm" not in str(one)), key=str)
CASES = [
    (one, i) for one in ELEMENTWISE for i, name in enumerate(tensors(one)) if name != "condition"
]


def calls_in_place(function):
    """The calls of the only graph whose result took an operand's place, by operator; no result was
    copied to its place."""
    (plan,) = model_of(function).plans
    assert plan.times.copied_results == 0
    return [call.target for call in plan.program.captured.calls if call.in_place]


@pytest.mark.parametrize("sizes", [SIZES, *by_night(*([size] for size in SIZES))], ids=str)
def test_a_result_in_an_operands_place_has_the_same_bits(sizes):
    def each(given):
        return [
            used(operator, position, one)
            for (operator, position), one in zip(CASES, given, strict=True)
        ]

    given = [
        operands(operator, size) for (operator, _), size in zip(CASES, cycle(sizes), strict=False)
    ]
    right = each(given)
    compiled = with_plan(each, dynamic=False)
    for _ in range(2):
        for (operator, position), found, expected in zip(
            CASES, compiled(given), right, strict=True
        ):
            assert same([found], [expected]), f"{operator}, operand {position}"
    assert calls_in_place(compiled) == [operator for operator, _ in CASES]


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_normalisation_in_place_has_the_same_bits(layout):
    net = nn.Sequential(
        nn.Conv2d(3, 9, 3),
        nn.BatchNorm2d(9),
        nn.ReLU(),
        nn.Conv2d(9, 9, 3),
        nn.BatchNorm2d(9),
        nn.Sigmoid(),
    )
    net = net.eval().to(memory_format=layout)
    x = torch.randn(4, 3, 37, 29).to(memory_format=layout)
    with torch.no_grad():
        right = without_plan(net)(x)
        compiled = with_plan(net)
        for _ in range(2):
            assert torch.equal(compiled(x), right)
    normalised = aten._native_batch_norm_legit_no_training.default
    # What the last operator makes is the caller's.
    assert calls_in_place(compiled) == [normalised, aten.relu.default, normalised]


def shared_view(x):
    x = x.flip(0)
    return (x + x.t()).flip(0)


def read_later(x):
    x = x.flip(0)
    return x.relu().flip(0) + x


def returned(x):
    x = x.flip(0)
    return x, x.relu().flip(0)


def another_type(x):
    return x.flip(0).int().add(0.5).flip(0)


@pytest.mark.parametrize("function", [shared_view, read_later, returned, another_type])
def test_an_operand_that_is_needed_keeps_its_place(function):
    x = torch.randn(33, 33)
    right = function(x)
    compiled = with_plan(function)
    for found, expected in zip(compiled(x), right, strict=True):
        assert torch.equal(found, expected)
    assert not calls_in_place(compiled)


def test_a_chain_takes_one_place():
    def chain(x):
        for _ in range(4):
            x = torch.sigmoid(x.mul(1.5).relu())
        return x.flip(0)

    x = torch.randn(512, 512)
    compiled = with_plan(chain)
    assert torch.equal(compiled(x), chain(x))
    (plan,) = model_of(compiled).plans
    assert plan.program.placed.arena <= x.nbytes + 4096
