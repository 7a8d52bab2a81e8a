"""Kernels whose operands rest in the slow memory: each gives what it gives on whole tensors, and
takes little memory."""

import math
from functools import partial
from unittest.mock import MagicMock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.support.blocks import LINK, in_blocks, whole
from tests.support.compiled import Tied, clones, grads, same, with_plan, without_plan
from tests.support.fuzzing import fuzz
from tests.support.modules import Parts
from tests.support.onnx_builder import sizes
from torch import nn, randn
from torch.fx.experimental.proxy_tensor import make_fx

from loadmaster.integrations.torch_compile import blocks
from loadmaster.integrations.torch_compile.backend import model_of
from loadmaster.integrations.torch_compile.blocks import BlockCall, stream_storages
from loadmaster.integrations.torch_compile.captured import View, capture
from loadmaster.integrations.torch_compile.cpu_memory import PAGE, SlowFile, pages
from loadmaster.integrations.torch_compile.cuts import SUM
from loadmaster.integrations.torch_compile.slow_tensor import SlowTensor, parts

aten = torch.ops.aten
CLOSE = 1e-5
"""The stated tolerance, relative to the norm of the result."""


ROWS, CLASSES = 24, 640


def _tensors(text):
    """Random tensors of these shapes; ``+`` makes one positive."""
    given = [(each[0] == "+", randn(sizes(each.strip("+")))) for each in text.split()]
    return [one.abs() if positive else one for positive, one in given]


def close(one, other, within=CLOSE):
    return (one - other).norm() <= within * other.norm()


def _classes():
    classes = torch.randint(CLASSES, (ROWS,))
    classes[3] = -100
    return classes


def _layer_norm_backward(g, x, m, s, w):
    return aten.native_layer_norm_backward(g, x, [64], m, s, w, w, [True] * 3)


SCORES = f"{ROWS}x{CLASSES}"
EXACT = {
    "log_softmax": (lambda x: aten._log_softmax(x, 1, False), SCORES),
    "its gradient": (
        lambda g, y: aten._log_softmax_backward_data(g, y, 1, torch.float32),
        f"{SCORES} {SCORES}",
    ),
    "addition": (lambda a, b: aten.add.Tensor(a, b, alpha=2), f"{SCORES} {SCORES}"),
    "broadcast": (lambda a, b: aten.mul.Tensor(a, b), f"{SCORES} {ROWS}x1"),
    "relu": (aten.relu.default, "3x40x50"),
    "clone of a transpose": (
        lambda x: aten.clone(x.t(), memory_format=torch.contiguous_format),
        SCORES,
    ),
    "slice_backward": (
        lambda g: aten.slice_backward(g, [ROWS + 5, CLASSES], 0, 2, ROWS + 2, 1),
        SCORES,
    ),
    "slice_backward of columns": (
        lambda g: aten.slice_backward(g, [ROWS, CLASSES + 7], 1, 0, -7, 1),
        SCORES,
    ),
    "slice_backward of the last dimension": (
        lambda g: aten.slice_backward(g, [ROWS, CLASSES + 7], -1, 3, CLASSES + 3, 1),
        SCORES,
    ),
    "bmm": (aten.bmm.default, "8x16x24 8x24x16"),
}


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("room", [8 << 10, 60 << 10])
def test_blocks_of_kernels_that_compute_each_element_alone_are_exact(name, room, tmp_path):
    function, shapes = EXACT[name]
    inputs = _tensors(shapes)
    made, _ = in_blocks(function, inputs, room, tmp_path)
    assert same(made, whole(function, inputs))


@pytest.mark.parametrize(
    "function", [lambda x: aten._softmax(x, 0, False), aten.gelu.default, aten.exp.default]
)
def test_blocks_may_differ_in_the_last_bit_where_the_ends_of_vectors_are_computed_otherwise(
    function, tmp_path
):
    (scores,) = _tensors(SCORES)
    (made,), _ = in_blocks(function, [scores], 8 << 10, tmp_path)
    assert close(made, function(scores))


def test_kernels_that_pick_rows_by_index_are_exact(tmp_path):
    (table, scores), indices = _tensors(f"500x32 {SCORES}"), torch.randint(500, (4, 16))
    cases = [
        (lambda t, i: aten.embedding(t, i), [table, indices], (1,)),
        (
            lambda g, i: aten.embedding_dense_backward(g, i, 500, 7, False),
            [torch.randn(4, 16, 32), indices],
            (0, 1),
        ),
        (lambda x, c: aten.nll_loss_forward(x, c, None, 1, -100), [scores, _classes()], (1,)),
        (lambda x, c: aten.nll_loss_forward(x, c, None, 2, -100), [scores, _classes()], (1,)),
        (
            lambda g, x, c, n: aten.nll_loss_backward(g, x, c, None, 1, -100, n),
            [torch.tensor(1.5), scores, _classes(), torch.tensor(23.0)],
            (0, 2, 3),
        ),
    ]
    for function, inputs, keep in cases:
        made, _ = in_blocks(function, inputs, 16 << 10, tmp_path, keep)
        assert same(made, whole(function, inputs))
    with pytest.raises(IndexError, match="out of range in self"):
        blocks.picked_rows(3, MagicMock(), (), table, indices + len(table))
    wrong = torch.full((ROWS,), CLASSES)
    with pytest.raises(IndexError, match=f"Target {CLASSES} is out of bounds"):
        blocks.picked_scores(3, MagicMock(), (), scores, wrong, None, 1, -100)


@pytest.mark.parametrize("keep", [(), (0,), (1,), (0, 1)])
@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (lambda a, b: aten.mm(a, b.t()), "70x90 110x90"),
        (lambda a, b: aten.mm(a.t(), b.t()), "90x70 110x90"),
        (lambda a, b, c: aten.addmm(c, a, b.t(), beta=0.5, alpha=2), "70x90 110x90 110"),
    ],
    ids=["plain", "transposed", "added"],
)
def test_matrix_products_in_blocks_are_close(keep, function, shapes, tmp_path):
    inputs = _tensors(shapes)
    for room in (6 << 10, 20 << 10):
        (made,), _ = in_blocks(function, inputs, room, tmp_path, (*keep, 2))
        assert close(made, function(*inputs))


def product_in_blocks(left, right, room):
    """How a product of matrices of these sizes, all of which rest, is cut."""
    inputs = [torch.randn(left), torch.randn(right)]
    captured = capture([make_fx(aten.mm.default)(*inputs)], inputs)
    (call,) = captured.calls
    return blocks._blocks_of(call, frozenset({*call.reads, *call.writes}), room)


def test_sums_are_cut_only_where_that_moves_much_less():
    assert product_in_blocks((64, 4096), (4096, 64), 3 << 20).cut.results == (0,)
    parts = product_in_blocks((64, 4096), (4096, 64), 300 << 10)
    assert SUM in (parts.inner or parts).cut.results
    assert product_in_blocks((64, 4096), (4096, 64), 100) is None


def test_results_of_products_are_written_row_by_row():
    found = product_in_blocks((512, 64), (64, 8192), 1 << 20)
    assert found.cut.results == (0,)
    assert found.pieces > 1


@fuzz(60)
@given(st.data())
def test_any_block_is_written_and_read_back_and_nothing_else_changes(tmp_path_factory, data):
    shape = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=3))
    order = data.draw(st.permutations(range(len(shape))))
    values = torch.randn([shape[d] for d in order]).permute(
        [order.index(d) for d in range(len(shape))]
    )
    assert list(values.shape) == shape
    file = SlowFile(tmp_path_factory.mktemp("file"))
    file.reserve(16 * PAGE + pages(values.nbytes))
    start = 4 * data.draw(st.integers(0, 2000))
    slow = SlowTensor(View(0, values.dtype, tuple(shape), values.stride(), 0), file, start)
    slow.write(values)
    dim = data.draw(st.integers(0, len(shape) - 1))
    first = data.draw(st.integers(0, shape[dim] - 1))
    length = data.draw(st.integers(1, shape[dim] - first))
    block = slow.narrow(dim, first, length)
    assert torch.equal(block.read(), values.narrow(dim, first, length))
    assert parts(block.view, True) <= parts(block.view, False) <= math.prod(block.shape)
    block.write(torch.full(block.shape, 7.0))
    changed = values.clone()
    changed.narrow(dim, first, length).fill_(7)
    assert torch.equal(slow.read(), changed)


VOCABULARY, STEP_BUDGET = 60_000, 14_000 << 10
"""Matrix libraries have buffers of their own, up to 9 MiB of them on some processors."""


def trained(budget, tokens, adam):
    """Gradients, or parameters and optimizer state, after some steps, the losses, and the model."""
    torch.manual_seed(0)
    module, unmoved = Tied(1, classes=VOCABULARY, width=64, inner=64), budget is None
    optimizer = torch.optim.AdamW(module.parameters())
    options = {"optimizer": optimizer} if adam else {}
    call = without_plan(module) if unmoved else with_plan(module, budget, refine_after=2, **options)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = call(tokens)
        loss.backward()
        losses.append(loss.item())
        if not adam:
            made = grads(module)
        else:
            optimizer.step()
            states = (optimizer.state[parameter] for parameter in module.parameters())
            made = [*module.parameters(), *(state["exp_avg"] for state in states)]
    return clones(made), losses, None if unmoved else model_of(call)


def kinds_in_blocks(plan):
    calls = plan.program.captured.calls
    return {call.target.whole.kind for call in calls if isinstance(call.target, BlockCall)}


@pytest.mark.parametrize("adam", [False, True])
def test_a_model_trains_under_a_budget_below_what_its_largest_layer_needs(adam):
    tokens = torch.randint(VOCABULARY, (48,))
    right, losses, _ = trained(None, tokens, adam)
    made, mine, model = trained(f"{STEP_BUDGET >> 10} KiB", tokens, adam)
    (plan,) = model.plans
    assert plan.placed_peak <= STEP_BUDGET < VOCABULARY * 64 * 4
    kinds = kinds_in_blocks(plan)
    assert kinds >= {
        "aten.mm",
        "aten._log_softmax",
        "aten.embedding",
        "aten.nll_loss_backward",
        "aten.embedding_dense_backward",
    }
    assert not adam or "optimizer.AdamW" in kinds
    assert mine == pytest.approx(losses, rel=CLOSE)
    within = 1e-3 if adam else CLOSE  # Adam divides a small gradient by itself
    assert all(close(a, b, within) for a, b in zip(made, right, strict=True))
    assert plan.times.unforeseen == plan.times.copied_results == 0
    assert plan.kernels_in_blocks


def test_kernels_stay_whole_where_the_budget_has_room_for_them():
    tokens = torch.randint(VOCABULARY, (48,))
    right, _, _ = trained(None, tokens, False)
    made, _, model = trained("90%", tokens, False)
    assert same(made, right)
    assert not model.plans[0].kernels_in_blocks


# Convolutions, normalisation, attention and pooling, along whichever dimension.


HEADS = "2x4x40x16 2x4x40x16 2x4x40x16"
ATTENTION = aten._scaled_dot_product_flash_attention_for_cpu
ATTENTION_BACKWARD = aten._scaled_dot_product_flash_attention_for_cpu_backward


def _convolution(x, w, b=None, stride=1, transposed=False, groups=1):
    return aten.convolution(x, w, b, [stride] * 2, [1, 1], [1, 1], transposed, [0, 0], groups)


def _gradients(g, x, w, transposed=False, groups=1, mask=(True, True, True)):
    return aten.convolution_backward(
        g, x, w, [g.shape[1]], [1, 1], [1, 1], [1, 1], transposed, [0, 0], groups, list(mask)
    )


def _channel_norm(x, w, b, mean, variance):
    return aten._native_batch_norm_legit_functional(x, w, b, mean, variance, True, 0.1, 1e-5)


def _attention_backward(*mask):
    given = _tensors(HEADS)
    out, scores = ATTENTION(*given, attn_mask=mask[0] if mask else None)

    def function(g, q, k, v, out, scores, mask=None):
        return ATTENTION_BACKWARD(g, q, k, v, out, scores, 0.0, False, attn_mask=mask)

    return function, [randn(out.shape), *given, out, scores, *mask]


IMAGES, MORE, FEW = "8x6x20x20", "1x48x8x8", "1x6x20x20"


def _pooling_backward():
    (x,) = _tensors(IMAGES)
    out, indices = aten.max_pool2d_with_indices(x, [2, 2], [2, 2])

    def function(g, x, i):
        return aten.max_pool2d_with_indices_backward(g, x, [2, 2], [2, 2], [0, 0], [1, 1], False, i)

    return function, [randn(out.shape), x, indices]


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
    "its gradients": (
        lambda g, x, w, m, s: aten.native_batch_norm_backward(
            g, x, w, None, None, m, s, True, 1e-5, [True] * 3
        ),
        "8x24x9x9 8x24x9x9 24 24 +24",
        16,
        1,
    ),
    "batch norm as it is": (
        lambda x, w, b, m, v: aten._native_batch_norm_legit_no_training(x, w, b, m, v, 0.1, 1e-5),
        "8x24x9x9 24 24 24 +24",
        16,
        1,
    ),
    "its gradients as it is": (
        lambda g, x, w, m, v, none: aten.native_batch_norm_backward(
            g, x, w, m, v, none, none, False, 1e-5, [True] * 3
        ),
        [*_tensors("8x24x9x9 8x24x9x9 24 24 +24"), torch.empty(0)],
        16,
        1,
    ),
    "layer norm": (
        lambda x, w, b: aten.native_layer_norm(x, [64], w, b, 1e-5),
        "4x30x64 64 64",
        8,
        1,
    ),
    "layer norm's gradients": (_layer_norm_backward, "4x30x64 4x30x64 4x30x1 +4x30x1 64", 40, 0),
    "layer norm's gradients of one sample": (
        _layer_norm_backward,
        "1x120x64 1x120x64 1x120x1 +1x120x1 64",
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
    "maximum pooling's gradient": (*_pooling_backward(), 24, 0),
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
        close(a, b) if b.is_floating_point() else torch.equal(a, b)
        for a, b in zip(made, right, strict=True)
    )
    assert (
        SUM in target.run.cut.results
        or name.startswith(
            ("convolution", "transposed", "average", "their", "gradients by channels")
        )
        or all(map(torch.equal, made, right))
    )


def test_the_gradient_of_a_layer_norm_with_statistics_in_memory(tmp_path):
    """PyTorch's kernel reads statistics as contiguous, whatever their strides."""
    inputs = _tensors("90x16x64 90x16x64 16x90x1 +16x90x1 64")
    inputs[:2] = (one.transpose(0, 1) for one in inputs[:2])
    made, target = in_blocks(_layer_norm_backward, inputs, 100 << 10, tmp_path, keep=(2, 3))
    assert target.run.pieces > 1
    assert all(map(close, made, _layer_norm_backward(*inputs)))


def test_a_tensor_whose_blocks_would_be_ten_thousands_of_reads_stays_in_memory():
    captured = {
        rows: capture([make_fx(lambda x: aten._softmax(x, 1, False))(x)], [x])
        for rows in (2_000, 20_000)
        for x in [randn(rows, 2).t()]
    }
    streamed = {
        rows: stream_storages(one, frozenset({0}), frozenset({0, 1}), 5 * rows, LINK).streamed
        for rows, one in captured.items()
    }
    assert streamed == {2_000: {0, 1}, 20_000: {1}}


def pyramid(own, x):
    """Convolutions at two sizes with batch norm, pooling and a skip connection; convolutions set
    what it needs at least."""
    skip = torch.relu(own.norm(own.first(x)))
    below = nn.functional.interpolate(own.second(nn.functional.max_pool2d(skip, 2)), scale_factor=2)
    return own.last(torch.cat([skip, below], 1)).square().mean()


def trained_on_images(budget, images):
    torch.manual_seed(0)
    module = Parts(
        pyramid,
        first=nn.Conv2d(3, 16, 3, padding=1),
        norm=nn.BatchNorm2d(16),
        second=nn.Conv2d(16, 16, 3, padding=1),
        last=nn.Conv2d(32, 2, 1),
    )
    call = module if budget is None else with_plan(module, budget, refine_after=2)
    for _ in range(3):
        module.zero_grad()
        loss = call(images)
        loss.backward()
    made = [loss.detach(), *grads(module), *module.buffers()]
    return [one.double() for one in made], None if budget is None else model_of(call)


def test_a_network_of_images_trains_under_a_budget_below_what_its_convolutions_need():
    images = randn(8, 3, 48, 48)
    right, _ = trained_on_images(None, images)
    made, model = trained_on_images("3584 KiB", images)
    (plan,) = model.plans
    calls = plan.program.captured.calls
    assert plan.placed_peak <= 3584 << 10 < max(map(plan.program.captured.operand_bytes, calls))
    assert kinds_in_blocks(plan) >= {"aten.convolution", "aten.convolution_backward"}
    assert all(
        (a - b).norm() <= 10 * CLOSE * b.norm() + 1e-7 for a, b in zip(made, right, strict=True)
    )
    assert plan.times.unforeseen == plan.times.copied_results == 0


def test_an_operand_without_rows_is_never_cut_into_no_blocks():
    """The weight is larger than the room, and the only block is empty."""
    inputs = torch.randn(0, 64), torch.randn(64, 64)
    captured = capture([make_fx(torch.mm)(*inputs)], inputs)
    large = captured.parts[0].given[1].storage
    cut = stream_storages(captured, frozenset({large}), frozenset({large}), 64 * 64, LINK)
    assert cut.calls
