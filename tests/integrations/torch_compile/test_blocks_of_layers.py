"""Convolutions, normalisation, attention and pooling in blocks: each gives what it gives on whole
tensors, along whichever dimension."""

import pytest

torch = pytest.importorskip("torch", exc_type=ImportError)
from tests.support.blocks import in_blocks, whole  # noqa: E402
from torch import nn, randn  # noqa: E402

from loadmaster.integrations.torch_compile.backend import (  # noqa: E402
    loadmaster,
    model_of,
)
from loadmaster.integrations.torch_compile.cutting.axes import SUM  # noqa: E402
from loadmaster.integrations.torch_compile.cutting.block_call import BlockCall  # noqa: E402

aten = torch.ops.aten
CLOSE = 1e-5
"""The stated tolerance, relative to the norm of the result."""
IMAGES, MORE, FEW = (8, 6, 20, 20), (1, 48, 8, 8), (1, 6, 20, 20)
ATTENTION = aten._scaled_dot_product_flash_attention_for_cpu
ATTENTION_BACKWARD = aten._scaled_dot_product_flash_attention_for_cpu_backward


def _convolution(x, w, b, stride=1, transposed=False, groups=1):
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


def _attended(heads=4, keys=4, mask=None):
    q, k, v = randn(2, heads, 40, 16), randn(2, keys, 40, 16), randn(2, keys, 40, 16)
    return q, k, v, ATTENTION(q, k, v, attn_mask=mask)


def _attention_backward(mask=None):
    q, k, v, (out, scores) = _attended(mask=mask)

    def function(g, q, k, v, out, scores, mask):
        return ATTENTION_BACKWARD(g, q, k, v, out, scores, 0.0, False, attn_mask=mask)

    if mask is None:
        return lambda g, q, k, v, out, scores: function(g, q, k, v, out, scores, None), [
            randn(out.shape),
            q,
            k,
            v,
            out,
            scores,
        ]
    return function, [randn(out.shape), q, k, v, out, scores, mask]


CASES = {
    "convolution by samples": (
        lambda x, w, b: _convolution(x, w, b),
        [randn(IMAGES), randn(4, 6, 3, 3), randn(4)],
        16 << 10,
        0,
    ),
    "convolution by channels": (
        lambda x, w, b: _convolution(x, w, b),
        [randn(MORE), randn(48, 48, 3, 3), randn(48)],
        60 << 10,
        -1,
    ),
    "convolution with a stride": (
        lambda x, w: _convolution(x, w, None, 2),
        [randn(FEW), randn(32, 6, 3, 3)],
        24 << 10,
        -1,
    ),
    "convolution of groups": (
        lambda x, w: _convolution(x, w, None, groups=3),
        [randn(IMAGES), randn(6, 2, 3, 3)],
        16 << 10,
        0,
    ),
    "transposed convolution": (
        lambda x, w: _convolution(x, w, None, 1, True),
        [randn(MORE), randn(48, 40, 3, 3)],
        60 << 10,
        -1,
    ),
    "gradients by samples": (
        lambda g, x, w: _gradients(g, x, w),
        [randn(8, 4, 20, 20), randn(IMAGES), randn(4, 6, 3, 3)],
        24 << 10,
        0,
    ),
    "gradients by channels": (
        lambda g, x, w: _gradients(g, x, w),
        [randn(MORE), randn(MORE), randn(48, 48, 3, 3)],
        120 << 10,
        1,
    ),
    "gradients by channels of the input": (
        lambda g, x, w: _gradients(g, x, w),
        [randn(1, 4, 20, 20), randn(1, 48, 20, 20), randn(4, 48, 3, 3)],
        40 << 10,
        -1,
    ),
    "gradients of a transposed one": (
        lambda g, x, w: _gradients(g, x, w, True),
        [randn(MORE), randn(MORE), randn(48, 48, 3, 3)],
        120 << 10,
        -1,
    ),
    "gradients of groups": (
        lambda g, x, w: _gradients(g, x, w, groups=3),
        [randn(IMAGES), randn(IMAGES), randn(6, 2, 3, 3)],
        24 << 10,
        0,
    ),
    "gradients without the input's": (
        lambda g, x, w: _gradients(g, x, w, mask=(False, True, True)),
        [randn(8, 4, 20, 20), randn(IMAGES), randn(4, 6, 3, 3)],
        24 << 10,
        0,
    ),
    "batch norm": (
        _channel_norm,
        [randn(8, 24, 9, 9), randn(24), randn(24), randn(24), randn(24)],
        16 << 10,
        1,
    ),
    "its gradients": (
        *_channel_norm_backward(randn(8, 24, 9, 9), randn(8, 24, 9, 9), randn(24)),
        16 << 10,
        1,
    ),
    "batch norm as it is": (
        lambda x, w, b, m, v: aten._native_batch_norm_legit_no_training(x, w, b, m, v, 0.1, 1e-5),
        [randn(8, 24, 9, 9), randn(24), randn(24), randn(24), randn(24).abs()],
        16 << 10,
        1,
    ),
    "layer norm": (
        lambda x, w, b: aten.native_layer_norm(x, [64], w, b, 1e-5),
        [randn(4, 30, 64), randn(64), randn(64)],
        8 << 10,
        1,
    ),
    "layer norm's gradients": (
        lambda g, x, m, s, w: aten.native_layer_norm_backward(g, x, [64], m, s, w, w, [True] * 3),
        [randn(4, 30, 64), randn(4, 30, 64), randn(4, 30, 1), randn(4, 30, 1).abs(), randn(64)],
        8 << 10,
        1,
    ),
    "group norm": (
        lambda x, w, b: aten.native_group_norm(x, w, b, 8, 6, 400, 3, 1e-5),
        [randn(IMAGES), randn(6), randn(6)],
        20 << 10,
        0,
    ),
    "group norm's gradients": (
        lambda g, x, m, s, w: aten.native_group_norm_backward(
            g, x, m, s, w, 8, 6, 400, 3, [True] * 3
        ),
        [randn(IMAGES), randn(IMAGES), randn(8, 3), randn(8, 3).abs(), randn(6)],
        30 << 10,
        0,
    ),
    "attention": (lambda q, k, v: ATTENTION(q, k, v), [*_attended()[:3]], 16 << 10, 1),
    "attention, causal": (
        lambda q, k, v: ATTENTION(q, k, v, 0.0, True),
        [*_attended()[:3]],
        16 << 10,
        1,
    ),
    "attention with fewer keys": (
        lambda q, k, v: ATTENTION(q, k, v),
        [*_attended(keys=2)[:3]],
        32 << 10,
        0,
    ),
    "attention with a mask": (
        lambda q, k, v, m: ATTENTION(q, k, v, attn_mask=m),
        [*_attended()[:3], randn(2, 1, 40, 40)],
        40 << 10,
        1,
    ),
    "attention's gradients": (*_attention_backward(), 40 << 10, 1),
    "attention's gradients with a mask": (*_attention_backward(randn(40, 40)), 40 << 10, 1),
    "maximum pooling": (
        lambda x: aten.max_pool2d_with_indices(x, [3, 3], [2, 2], [1, 1]),
        [randn(FEW)],
        8 << 10,
        1,
    ),
    "average pooling": (lambda x: aten.avg_pool2d(x, [2, 2], [2, 2]), [randn(IMAGES)], 16 << 10, 0),
    "average pooling's gradient": (
        lambda g, x: aten.avg_pool2d_backward(g, x, [2, 2], [2, 2], [0, 0], False, True, None),
        [randn(8, 6, 10, 10), randn(IMAGES)],
        16 << 10,
        0,
    ),
    "nearest neighbours": (
        lambda x: aten.upsample_nearest2d(x, [40, 40]),
        [randn(FEW)],
        16 << 10,
        1,
    ),
    "their gradient": (
        lambda g: aten.upsample_nearest2d_backward(g, [20, 20], [8, 6, 10, 10]),
        [randn(IMAGES)],
        16 << 10,
        0,
    ),
    "concatenation": (
        lambda a, b: aten.cat([a, b], 1),
        [randn(IMAGES), randn(IMAGES)],
        48 << 10,
        0,
    ),
    "picked": (
        lambda x, i: aten._unsafe_index(x, [None, None, i, None]),
        [randn(IMAGES), torch.arange(9)],
        16 << 10,
        0,
    ),
    "put": (
        lambda x, v, i: aten._unsafe_index_put(x, [None, None, i, None], v, True),
        [randn(IMAGES), randn(8, 6, 12, 20), torch.arange(12) % 9],
        24 << 10,
        0,
    ),
    "mean": (lambda x: aten.mean.dim(x, [-1, -2], True), [randn(IMAGES)], 16 << 10, 0),
    "sum": (lambda x: aten.sum.dim_IntList(x, [0]), [randn(600, 32)], 16 << 10, 0),
}


@pytest.mark.parametrize("name", CASES)
def test_layers_in_blocks_are_close(name, tmp_path):
    function, inputs, room, dim = CASES[name]
    made, target = in_blocks(function, inputs, room, tmp_path)
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
    x = randn(IMAGES)
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


def _trained(budget, images, steps=3):
    module = Images()
    call = (
        module
        if budget is None
        else torch.compile(
            module, backend=loadmaster, options={"fast_memory": budget, "refine_after": 2}
        )
    )
    for _ in range(steps):
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
