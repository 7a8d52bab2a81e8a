"""Kernels whose operands rest in the slow memory: each gives what it gives on whole tensors, and
takes little memory."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.support.blocks import in_blocks, whole
from tests.support.compiled import Tied, same, with_plan, without_plan
from tests.support.fuzzing import fuzz
from torch.fx.experimental.proxy_tensor import make_fx

from loadmaster.integrations.torch_compile import blocks
from loadmaster.integrations.torch_compile.backend import model_of
from loadmaster.integrations.torch_compile.blocks import BlockCall
from loadmaster.integrations.torch_compile.captured import View, capture
from loadmaster.integrations.torch_compile.cpu_memory import PAGE, SlowFile, pages
from loadmaster.integrations.torch_compile.cuts import SUM
from loadmaster.integrations.torch_compile.slow_tensor import SlowTensor, parts

aten = torch.ops.aten
CLOSE = 1e-5
"""The stated tolerance, relative to the norm of the result."""


ROWS, CLASSES = 24, 640


def _scores():
    return torch.randn(ROWS, CLASSES)


def _classes():
    classes = torch.randint(CLASSES, (ROWS,))
    classes[3] = -100
    return classes


def _table():
    return torch.randn(500, 32), torch.randint(500, (4, 16))


EXACT = {
    "log_softmax": (lambda x: aten._log_softmax(x, 1, False), [_scores]),
    "its gradient": (
        lambda g, y: aten._log_softmax_backward_data(g, y, 1, torch.float32),
        [_scores, _scores],
    ),
    "addition": (lambda a, b: aten.add.Tensor(a, b, alpha=2), [_scores, _scores]),
    "broadcast": (lambda a, b: aten.mul.Tensor(a, b), [_scores, lambda: torch.randn(ROWS, 1)]),
    "relu": (aten.relu.default, [lambda: torch.randn(3, 40, 50)]),
    "clone of a transpose": (
        lambda x: aten.clone(x.t(), memory_format=torch.contiguous_format),
        [_scores],
    ),
    "slice_backward": (
        lambda g: aten.slice_backward(g, [ROWS + 5, CLASSES], 0, 2, ROWS + 2, 1),
        [_scores],
    ),
    "slice_backward of columns": (
        lambda g: aten.slice_backward(g, [ROWS, CLASSES + 7], 1, 0, -7, 1),
        [_scores],
    ),
    "bmm": (aten.bmm.default, [lambda: torch.randn(8, 16, 24), lambda: torch.randn(8, 24, 16)]),
}


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("room", [8 << 10, 60 << 10])
def test_blocks_of_kernels_that_compute_each_element_alone_are_exact(name, room, tmp_path):
    function, make = EXACT[name]
    inputs = [one() for one in make]
    made, _ = in_blocks(function, inputs, room, tmp_path)
    assert same(made, whole(function, inputs))


@pytest.mark.parametrize(
    "function", [lambda x: aten._softmax(x, 0, False), aten.gelu.default, aten.exp.default]
)
def test_blocks_may_differ_in_the_last_bit_where_the_ends_of_vectors_are_computed_otherwise(
    function, tmp_path
):
    scores = _scores()
    (made,), _ = in_blocks(function, [scores], 8 << 10, tmp_path)
    assert (made - function(scores)).norm() <= CLOSE * function(scores).norm()


def test_kernels_that_pick_rows_by_index_are_exact(tmp_path):
    table, indices = _table()
    cases = [
        (lambda t, i: aten.embedding(t, i), [table, indices], (1,)),
        (
            lambda g, i: aten.embedding_dense_backward(g, i, 500, 7, False),
            [torch.randn(4, 16, 32), indices],
            (0, 1),
        ),
        (lambda x, c: aten.nll_loss_forward(x, c, None, 1, -100), [_scores(), _classes()], (1,)),
        (lambda x, c: aten.nll_loss_forward(x, c, None, 2, -100), [_scores(), _classes()], (1,)),
        (
            lambda g, x, c, n: aten.nll_loss_backward(g, x, c, None, 1, -100, n),
            [torch.tensor(1.5), _scores(), _classes(), torch.tensor(23.0)],
            (0, 2, 3),
        ),
    ]
    for function, inputs, keep in cases:
        made, _ = in_blocks(function, inputs, 16 << 10, tmp_path, keep)
        assert same(made, whole(function, inputs))


@pytest.mark.parametrize("keep", [(), (0,), (1,), (0, 1)])
@pytest.mark.parametrize("form", ["plain", "transposed", "added"])
def test_matrix_products_in_blocks_are_close(keep, form, tmp_path):
    left, right = torch.randn(70, 90), torch.randn(110, 90)
    if form == "added":
        inputs = [torch.randn(110), left, right]
        keep = (0, *(i + 1 for i in keep))

        def function(bias, a, b):
            return aten.addmm(bias, a, b.t(), beta=0.5, alpha=2)
    else:
        inputs = [left.t().contiguous(), right] if form == "transposed" else [left, right]

        def function(a, b):
            return aten.mm(a.t() if form == "transposed" else a, b.t())

    for room in (6 << 10, 20 << 10):
        (made,), _ = in_blocks(function, inputs, room, tmp_path, keep)
        right_one = function(*inputs)
        assert (made - right_one).norm() <= CLOSE * right_one.norm()


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
            made = [p.grad.clone() for p in module.parameters() if p.grad is not None]
        else:
            optimizer.step()
            made = [*module.parameters(), *(s["exp_avg"] for s in optimizer.state.values())]
    return [one.detach().clone() for one in made], losses, None if unmoved else model_of(call)


@pytest.mark.parametrize("adam", [False, True])
def test_a_model_trains_under_a_budget_below_what_its_largest_layer_needs(adam):
    tokens = torch.randint(VOCABULARY, (48,))
    right, losses, _ = trained(None, tokens, adam)
    made, mine, model = trained(f"{STEP_BUDGET >> 10} KiB", tokens, adam)
    (plan,) = model.plans
    assert plan.placed_peak <= STEP_BUDGET < VOCABULARY * 64 * 4
    assert {
        c.target.whole.kind for c in plan.program.captured.calls if isinstance(c.target, BlockCall)
    } >= {
        "aten.mm",
        "aten._log_softmax",
        "aten.embedding",
        "aten.nll_loss_backward",
        "aten.embedding_dense_backward",
    } | ({"optimizer.AdamW"} if adam else set())
    assert mine == pytest.approx(losses, rel=CLOSE)
    close = 1e-3 if adam else CLOSE  # Adam divides a small gradient by itself
    assert all((a - b).norm() <= close * b.norm() for a, b in zip(made, right, strict=True))
    assert plan.times.unforeseen == plan.times.copied_results == 0
    assert plan.kernels_in_blocks


def test_kernels_stay_whole_where_the_budget_has_room_for_them():
    tokens = torch.randint(VOCABULARY, (48,))
    right, _, _ = trained(None, tokens, False)
    made, _, model = trained("90%", tokens, False)
    assert same(made, right)
    assert not model.plans[0].kernels_in_blocks
