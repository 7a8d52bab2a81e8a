"""Ranges of storages that torch operators need, against what they really touch."""

import numpy as np
import pytest
from tests.support.efforts import verified
from tests.support.lowered import cuts_by, parts_of
from tests.support.networks import npu

import loadmaster as lm
from loadmaster.workloads.lowering.grid import least_shares

torch = pytest.importorskip("torch")

from tests.support.modules import Parts  # noqa: E402
from torch import nn  # noqa: E402

from loadmaster.workloads.frontends.torch.graph_builder import _describe  # noqa: E402
from loadmaster.workloads.frontends.torch.windows import in_storage  # noqa: E402
from loadmaster.workloads.window import Window, identity, operand_box, volume  # noqa: E402


def random_view(owner, generator):
    """A few transpositions, slices, selections, reshapes that copy nothing, and expansions."""
    view = owner
    for _ in range(int(generator.integers(1, 4))):
        kind, axis = int(generator.integers(5)), int(generator.integers(view.ndim))
        if kind == 0:
            view = view.permute(*generator.permutation(view.ndim).tolist())
        elif kind == 1 and view.shape[axis] > 2:
            view = view.narrow(axis, 1, view.shape[axis] - 1)
        elif kind == 2 and view.ndim > 2:
            view = view.select(axis, view.shape[axis] // 2)
        elif kind == 3 and view.shape[axis] % 2 == 0:
            view = view.unflatten(axis, (view.shape[axis] // 2, 2))
        elif view.is_contiguous() and view.ndim > 2:
            view = view.flatten(0, 1)
    return view


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.flatten(1)[:, 20:44],  # begins inside a row, and ends in the next
        lambda x: x.flatten()[1:901],
        lambda x: x.flatten(1).unfold(1, 40, 16),  # frames overlap
        lambda x: x.as_strided((4, 4), (7, 7)),
    ],
)
def test_views_whose_elements_a_box_does_not_hold_have_no_windows(view):
    owner = torch.arange(40 * 4 * 30).reshape(40, 4, 30)
    seen = view(owner)
    assert in_storage(identity(seen.ndim), _describe("v", seen), _describe("o", owner)) == ()


def test_tensors_beside_each_other_in_a_storage_are_no_windows_of_each_other():
    one, other = torch.zeros(2, 8, 8).unbind()
    assert in_storage(identity(2), _describe("v", other), _describe("o", one)) == ()
    whole = torch.zeros(8, 16)
    first, later = whole[:, 3:11], whole[:, 4:12]
    assert in_storage(identity(2), _describe("v", later), _describe("o", first)) == ()


def test_enlargements_by_other_than_whole_factors_have_no_windows():
    """Though the result is a whole multiple: torch rounds by the factor that is given."""
    module = Parts(lambda own, x: nn.functional.interpolate(x * 2, scale_factor=3.05))
    graph = lm.load((module, torch.zeros(1, 8, 18, 18)))
    (op,) = [op for op in graph.ops if "upsample" in op.kind]
    assert graph.tensors[op.writes[0].tensor].shape == (1, 8, 54, 54)
    assert all(not access.windows for access in op.reads)


@pytest.mark.parametrize("seed", range(10))
def test_a_window_of_a_view_holds_the_elements_of_its_storage(seed):
    """Where only one dimension is cut and none lies beside another in one of the owner, it holds
    nothing else."""
    generator, known = np.random.default_rng(seed), 0
    for _ in range(40):
        shape = tuple(generator.integers(1, 7, int(generator.integers(2, 5))).tolist())
        owner = torch.arange(int(np.prod(shape))).reshape(shape)
        view = random_view(owner, generator)
        windows = in_storage(
            identity(view.ndim), _describe("view", view), _describe("owner", owner)
        )
        if not windows:
            continue
        known += 1
        axis = int(generator.integers(view.ndim))
        first = int(generator.integers(view.shape[axis]))
        last = int(generator.integers(first, view.shape[axis])) + 1
        box = tuple((first, last) if d == axis else (0, n) for d, n in enumerate(view.shape))
        needed = set(view[tuple(slice(a, b) for a, b in box)].ravel().tolist())
        found = operand_box(windows, box, shape)
        held = set(owner[tuple(slice(a, b) for a, b in found)].ravel().tolist())
        assert needed <= held, (shape, view.shape, view.stride(), box, windows)
        if sorted(view.shape) == sorted(shape) and sorted(view.stride()) == sorted(owner.stride()):
            assert len(needed) == volume(found), "a permutation needs what it shows"
    assert known > 20


def test_what_strides_step_over_is_counted_in_the_storage():
    """A quarter of the pixels, whatever the order of dimensions: bounds rest on it."""
    layer = nn.Conv2d(3, 4, 1, stride=2, bias=False)
    last = Parts(lambda own, x: own.layer(x.permute(0, 3, 1, 2)), layer=layer)
    graph, (group,), _ = parts_of(lm.load((last, torch.zeros(1, 16, 16, 3))))
    shares = least_shares(graph, group)
    assert sorted(shares.values()) == [0.25, 1.0]


@pytest.mark.parametrize("kernel", [2, [2], (2, 2)])
def test_pools_of_a_single_image_are_cut(kernel):
    for pool in (nn.functional.max_pool2d, nn.functional.avg_pool2d):
        graph = lm.load((Parts(lambda own, x, pool=pool: pool(x, kernel)), torch.zeros(3, 8, 8)))
        (read,) = graph.ops[0].reads
        assert read.windows == (Window(0), Window(1, 2, 1, 0, 1), Window(2, 2, 1, 0, 1))


def blocks(own, x):
    """Convolutions, pooling, a concatenation, enlarging, and attention between heads that are views
    of one product."""
    x = nn.functional.max_pool2d(own.first(x), 2)
    small = nn.functional.avg_pool2d(own.depthwise(x), 2)
    x = torch.cat([nn.functional.interpolate(small, scale_factor=2), x], 1)
    steps = x.flatten(2).transpose(1, 2)
    query, key, value = own.project(steps).view(1, -1, 3, 4, 4).permute(2, 0, 3, 1, 4)
    mixed = torch.softmax(query @ key.transpose(-2, -1), -1) @ value
    return own.last(mixed.transpose(1, 2).flatten(2)).mean(1)


@pytest.mark.slow
def test_torch_networks_are_cut_and_their_plans_hold():
    module = Parts(
        blocks,
        first=nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU()),
        depthwise=nn.Conv2d(8, 8, 3, groups=8, padding=1),
        project=nn.Linear(16, 48),
        last=nn.Linear(16, 4),
    )
    graph = lm.load((module, torch.randn(1, 3, 24, 24)))
    _, groups, forms = parts_of(graph)
    divides = {
        group.main.kind for group, form in zip(groups, forms, strict=True) if form is not None
    }
    expected = "convolution max_pool2d_with_indices avg_pool2d cat upsample_nearest2d addmm bmm"
    assert divides >= {*expected.split(), "_softmax"}
    generator = np.random.default_rng(0)
    for _ in range(4):
        cuts = cuts_by(graph, lambda form: form.grid({int(generator.choice(form.axes)): 3}))
        workload = lm.lower([graph], npu(), cuts=[cuts])
        assert sum(bool(job.ranges) for job in workload.jobs) > 10
        assert sum(job.macs for job in workload.jobs) == graph.macs
    plan = verified([graph], npu(2, 8_000))
    assert any(job.ranges for job in plan.jobs)


@pytest.mark.parametrize(
    "options",
    [
        {"stride": 2, "padding": 1, "output_padding": 1},
        {"stride": 3, "dilation": 2},
        {"padding": 2, "groups": 2},
    ],
)
def test_a_transposed_convolution_needs_the_rows_whose_taps_reach_a_range(options):
    layer, x = nn.ConvTranspose2d(4, 6, 3, bias=False, **options), torch.zeros(1, 4, 7, 5)
    graph = lm.load((layer, x))
    verified([graph], npu(2, 1_000))
    (op,) = graph.ops
    reach = []
    for row in range(7):
        one = torch.zeros_like(x)
        one[:, :, row] = 1
        reach.append(layer(one).abs().sum((0, 1, 3)).nonzero().flatten().tolist())
    shape = tuple(layer(x).shape)
    assert op.axes
    for first in range(shape[2]):
        for last in range(first + 1, shape[2] + 1):
            box = ((0, 1), (0, 6), (first, last), (0, shape[3]))
            needed = [at for at, rows in enumerate(reach) if set(rows) & set(range(first, last))]
            low, high = operand_box(op.reads[0].windows, box, tuple(x.shape))[2]
            assert all(low <= at < high for at in needed)
            assert high - low <= max(needed, default=low) - min(needed, default=low) + 2


def joined(own, x):
    """Concatenations that convolutions read."""
    y = torch.cat((own.one(x), torch.relu(own.two(x))), 1)
    return own.four(torch.cat((y, torch.relu(own.three(y))), 1))


def test_concatenations_are_read_through_as_those_of_onnx_are():
    module = Parts(
        joined,
        one=nn.Conv2d(8, 4, 1),
        two=nn.Conv2d(8, 6, 3, padding=1),
        three=nn.Conv2d(10, 8, 3, padding=1),
        four=nn.Conv2d(18, 4, 3),
    )
    plan = verified([lm.load((module, torch.zeros(1, 8, 12, 12)))], npu(2, 9_000))
    assert {job.kind for job in plan.jobs} == {"convolution"}
