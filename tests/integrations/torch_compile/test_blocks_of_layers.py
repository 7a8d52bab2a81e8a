"""Convolutions, normalisation, attention and pooling in blocks: each gives what it gives on whole
tensors, along whichever dimension."""

from functools import partial

import pytest
import torch
from tests.support.blocks import in_blocks, whole
from tests.support.compiled import with_plan
from tests.support.onnx_builder import sizes
from torch import nn, randn

from loadmaster.integrations.torch_compile.backend import model_of
from loadmaster.integrations.torch_compile.blocks import BlockCall
from loadmaster.integrations.torch_compile.cuts import SUM

aten = torch.ops.aten
CLOSE = 1e-5
"""The stated tolerance, relative to the norm of the result."""
HEADS = "2x4x40x16 2x4x40x16 2x4x40x16"
ATTENTION = aten._scaled_dot_product_flash_attention_for_cpu
ATTENTION_BACKWARD = aten._scaled_dot_product_flash_attention_for_cpu_backward


def _tensors(text):
    """Random tensors of these shapes; ``+`` makes one positive."""
    given = [(each[0] == "+", randn(sizes(each.strip("+")))) for each in text.split()]
    return [one.abs() if positive else one for positive, one in given]


def _convolution(x, w, b=None, stride=1, transposed=False, groups=1):
    return aten.convolution(x, w, b, [stride] * 2, [1, 1], [1, 1], transposed, [0, 0], groups)


def _gradients(g, x, w, transposed=False, groups=1, mask=(True, True, True)):
    return aten.convolution_backward(
        g, x, w, [g.shape[1]], [1, 1], [1, 1], [1, 1], transposed, [0, 0], groups, list(mask)
    )


def _channel_norm(x, w, b, mean, variance):
    return aten._native_batch_norm_legit_functional(x, w, b, mean, variance, True, 0.1, 1e-5)


def _channel_norm_backward(g, x, w):
    _, mean, scale = aten.native_batch_norm(x, w, None, None, None, True, 0.1, 1e-5)
    return lambda g, x, w, m, s: aten.native_batch_norm_backward(
        g, x, w, None, None, m, s, True, 1e-5, [True] * 3
    ), [g, x, w, mean, scale]


def _attention_backward(*mask):
    given = _tensors(HEADS)
    out, scores = ATTENTION(*given, attn_mask=mask[0] if mask else None)

    def function(g, q, k, v, out, scores, mask=None):
        return ATTENTION_BACKWARD(g, q, k, v, out, scores, 0.0, False, attn_mask=mask)

    return function, [randn(out.shape), *given, out, scores, *mask]


IMAGES, MORE, FEW = "8x6x20x20", "1x48x8x8", "1x6x20x20"
CASES = {
    "convolution by samples": (_convolution, f"{IMAGES} 4x6x3x3 4", 16, 0),
    "convolution by channels": (_convolution, f"{MORE} 48x48x3x3 48", 60, -1),
    "convolution with a stride": (partial(_convolution, stride=2), f"{FEW} 32x6x3x3", 24, -1),
    "convolution of groups": (partial(_convolution, groups=3), f"{IMAGES} 6x2x3x3", 16, 0),
    "transposed convolution": (partial(_convolution, transposed=True), f"{MORE} 48x40x3x3", 60, -1),
    "gradients by samples": (_gradients, f"8x4x20x20 {IMAGES} 4x6x3x3", 24, 0),
    "gradients by channels": (_gradients, f"{MORE} {MORE} 48x48x3x3", 120, 1),
    "gradients by channels of the input": (_gradients, "1x4x20x20 1x48x20x20 4x48x3x3", 40, -1),
    "gradients of a transposed one": (
        partial(_gradients, transposed=True),
        f"{MORE} {MORE} 48x48x3x3",
        120,
        -1,
    ),
    "gradients of groups": (partial(_gradients, groups=3), f"{IMAGES} {IMAGES} 6x2x3x3", 24, 0),
    "gradients without the input's": (
        partial(_gradients, mask=(False, True, True)),
        f"8x4x20x20 {IMAGES} 4x6x3x3",
        24,
        0,
    ),
    "batch norm": (_channel_norm, "8x24x9x9 24 24 24 24", 16, 1),
    "its gradients": (*_channel_norm_backward(*_tensors("8x24x9x9 8x24x9x9 24")), 16, 1),
    "batch norm as it is": (
        lambda x, w, b, m, v: aten._native_batch_norm_legit_no_training(x, w, b, m, v, 0.1, 1e-5),
        "8x24x9x9 24 24 24 +24",
        16,
        1,
    ),
    "layer norm": (
        lambda x, w, b: aten.native_layer_norm(x, [64], w, b, 1e-5),
        "4x30x64 64 64",
        8,
        1,
    ),
    "layer norm's gradients": (
        lambda g, x, m, s, w: aten.native_layer_norm_backward(g, x, [64], m, s, w, w, [True] * 3),
        "4x30x64 4x30x64 4x30x1 +4x30x1 64",
        8,
        1,
    ),
    "group norm": (
        lambda x, w, b: aten.native_group_norm(x, w, b, 8, 6, 400, 3, 1e-5),
        f"{IMAGES} 6 6",
        20,
        0,
    ),
    "group norm's gradients": (
        lambda g, x, m, s, w: aten.native_group_norm_backward(
            g, x, m, s, w, 8, 6, 400, 3, [True] * 3
        ),
        f"{IMAGES} {IMAGES} 8x3 +8x3 6",
        30,
        0,
    ),
    "attention": (ATTENTION, HEADS, 16, 1),
    "attention, causal": (lambda q, k, v: ATTENTION(q, k, v, 0.0, True), HEADS, 16, 1),
    "attention with fewer keys": (ATTENTION, "2x4x40x16 2x2x40x16 2x2x40x16", 32, 0),
    "attention with a mask": (
        lambda q, k, v, m: ATTENTION(q, k, v, attn_mask=m),
        f"{HEADS} 2x1x40x40",
        40,
        1,
    ),
    "attention's gradients": (*_attention_backward(), 40, 1),
    "attention's gradients with a mask": (*_attention_backward(randn(40, 40)), 40, 1),
    "maximum pooling": (
        lambda x: aten.max_pool2d_with_indices(x, [3, 3], [2, 2], [1, 1]),
        FEW,
        8,
        1,
    ),
    "average pooling": (lambda x: aten.avg_pool2d(x, [2, 2], [2, 2]), IMAGES, 16, 0),
    "average pooling's gradient": (
        lambda g, x: aten.avg_pool2d_backward(g, x, [2, 2], [2, 2], [0, 0], False, True, None),
        f"8x6x10x10 {IMAGES}",
        16,
        0,
    ),
    "nearest neighbours": (lambda x: aten.upsample_nearest2d(x, [40, 40]), FEW, 16, 1),
    "their gradient": (
        lambda g: aten.upsample_nearest2d_backward(g, [20, 20], [8, 6, 10, 10]),
        IMAGES,
        16,
        0,
    ),
    "concatenation": (lambda a, b: aten.cat([a, b], 1), f"{IMAGES} {IMAGES}", 48, 0),
    "picked": (
        lambda x, i: aten._unsafe_index(x, [None, None, i, None]),
        [*_tensors(IMAGES), torch.arange(9)],
        16,
        0,
    ),
    "put": (
        lambda x, v, i: aten._unsafe_index_put(x, [None, None, i, None], v, True),
        [*_tensors(f"{IMAGES} 8x6x12x20"), torch.arange(12) % 9],
        24,
        0,
    ),
    "mean": (lambda x: aten.mean.dim(x, [-1, -2], True), IMAGES, 16, 0),
    "sum": (lambda x: aten.sum.dim_IntList(x, [0]), "600x32", 16, 0),
}
"""What runs, on which tensors, the room in KiB, and the dimension of the first operand that is
cut."""


@pytest.mark.parametrize("name", CASES)
def test_layers_in_blocks_are_close(name, tmp_path):
    function, inputs, room, dim = CASES[name]
    inputs = _tensors(inputs) if isinstance(inputs, str) else inputs
    made, target = in_blocks(partial(function), inputs, room << 10, tmp_path)
    assert target.run.pieces > 1
    assert target.run.cut.operands[0] == dim
    right = [one for one in whole(function, inputs) if one is not None]
    made = [one for one in made if one is not None]
    assert [one.shape for one in made] == [one.shape for one in right]
    assert all(
        (a - b).norm() <= CLOSE * b.norm()
        for a, b in zip(made, right, strict=True)
        if b.is_floating_point()
    )
    assert all(
        torch.equal(a, b) for a, b in zip(made, right, strict=True) if not b.is_floating_point()
    )
    assert (
        SUM in target.run.cut.results
        or name.startswith(
            ("convolution", "transposed", "average", "their", "gradients by channels")
        )
        or all(map(torch.equal, made, right))
    )


def test_maximum_pooling_gives_its_gradient_to_the_same_elements(tmp_path):
    (x,) = _tensors(IMAGES)
    out, indices = aten.max_pool2d_with_indices(x, [2, 2], [2, 2])

    def function(g, x, i):
        return aten.max_pool2d_with_indices_backward(g, x, [2, 2], [2, 2], [0, 0], [1, 1], False, i)

    inputs = [randn(out.shape), x, indices]
    (made,), target = in_blocks(function, inputs, 24 << 10, tmp_path)
    assert target.run.pieces > 1
    assert torch.equal(made, function(*inputs))


class Images(nn.Module):
    """Convolutions at two sizes with batch norm, pooling and a skip connection; convolutions set
    what it needs at least."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.second, self.last = nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(32, 2, 1)

    def forward(self, x):
        skip = torch.relu(self.norm(self.first(x)))
        below = nn.functional.interpolate(
            self.second(nn.functional.max_pool2d(skip, 2)), scale_factor=2
        )
        return self.last(torch.cat([skip, below], 1)).square().mean()


def _trained(budget, images):
    module = Images()
    call = module if budget is None else with_plan(module, budget, refine_after=2)
    for _ in range(3):
        module.zero_grad()
        loss = call(images)
        loss.backward()
    made = [loss.detach(), *(p.grad for p in module.parameters()), *module.buffers()]
    return [one.double() for one in made], None if budget is None else model_of(call)


def test_a_network_of_images_trains_under_a_budget_below_what_its_convolutions_need():
    images = randn(8, 3, 48, 48)
    right, _ = _trained(None, images)
    made, model = _trained("3584 KiB", images)
    (plan,) = model.plans
    calls = plan.program.captured.calls
    assert plan.placed_peak <= 3584 << 10 < max(map(plan.program.captured.operand_bytes, calls))
    assert {c.target.whole.kind for c in calls if isinstance(c.target, BlockCall)} >= {
        "aten.convolution",
        "aten.convolution_backward",
    }
    assert all(
        (a - b).norm() <= 10 * CLOSE * b.norm() + 1e-7 for a, b in zip(made, right, strict=True)
    )
    assert plan.times.unforeseen == plan.times.copied_results == 0
