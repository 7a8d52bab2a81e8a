"""Weights that are mapped from a file of safetensors: the file is their slow memory, until somebody
changes them."""

import gc

import pytest
import torch
from tests.support.compiled import fit, same, stack, with_plan
from tests.support.processes import open_files

from loadmaster.integrations.torch_compile.backend import model_of
from loadmaster.integrations.torch_compile.placing import GraphSearch

safetensors = pytest.importorskip("safetensors.torch")
WIDTH, LAYERS = 256, 6


def network(seed=0):
    return stack(WIDTH, LAYERS, seed).eval()


def mapped_in(folder):
    """A network whose weights are in a file, which maps them, and a plan for half of its memory."""
    path = folder / "weights.safetensors"
    safetensors.save_file(
        network().state_dict(), path, metadata={"odd": "x" * 77}
    )  # so that tensors begin anywhere
    module = network(1)
    module.load_state_dict(safetensors.load_file(path), assign=True)
    return module, with_plan(module, 0.5, slow_memory=str(folder))


@pytest.fixture
def mapped(tmp_path):
    return mapped_in(tmp_path)


def places(call):
    return [
        one.in_file
        for one in model_of(call).persistent._entries.values()
        if one.in_file is not None
    ]


def test_weights_are_read_from_the_file_that_they_are_in(mapped):
    module, call = mapped
    x = torch.randn(4, WIDTH)
    with torch.no_grad():
        right = network()(x)
        for _ in range(6):  # the plan is refined in between
            assert torch.equal(call(x), right)
    model = model_of(call)
    assert model.plans[0].moved_bytes > WIDTH * WIDTH * 4
    assert len(places(call)) == LAYERS
    assert any(place.shift for place in places(call))
    assert model.memory(torch.device("cpu")).file.used == 0
    assert same(module.state_dict().values(), network().state_dict().values())


def test_a_file_is_closed_once_no_weights_are_in_it(tmp_path):
    file = tmp_path / "weights.safetensors"
    module, call = mapped_in(tmp_path)
    with torch.no_grad():
        call(torch.randn(4, WIDTH))
    assert len(places(call)) == LAYERS
    assert len(open_files("self", file)) == 1
    del module, call
    torch._dynamo.reset()
    gc.collect()
    assert not open_files("self", file)


def test_weights_rest_in_their_file_while_the_plan_is_refined(mapped, monkeypatch, tmp_path):
    # In this mode some stay, whatever is measured.
    call = with_plan(mapped[0], 0.5, slow_memory=str(tmp_path), mode="sync")
    x, there, attempt = torch.randn(4, WIDTH), [], GraphSearch.attempt

    def seen(search, budget):
        there.append(
            sum(
                one.bytes
                for one in model_of(call).persistent._entries.values()
                if one.movable and not one.offloaded
            )
        )
        return attempt(search, budget)

    with torch.no_grad():
        right = network()(x)
        for _ in range(3):
            assert torch.equal(call(x), right)
        monkeypatch.setattr(GraphSearch, "attempt", seen)
        staying = model_of(call).persistent.fast_bytes([])
        assert torch.equal(call(x), right)
    assert there == [0]
    assert staying >= WIDTH * WIDTH * 4
    assert model_of(call).persistent.fast_bytes([]) >= WIDTH * WIDTH * 4


@pytest.mark.parametrize(
    "change",
    [lambda p: p.data.mul_(2), lambda p: p.mul_(2)],
    ids=["behind autograd's back", "in place"],
)
def test_a_weight_that_is_changed_leaves_the_file(mapped, change):
    module, call = mapped
    x, other = torch.randn(4, WIDTH), network()
    with torch.no_grad():
        assert torch.equal(call(x), other(x))
        for layer in (0, 4, 10):
            change(module[layer].weight)
            change(other[layer].weight)
            for _ in range(2):
                assert torch.equal(call(x), other(x))
    assert (
        0 < len(places(call)) <= LAYERS - 3
    )  # neighbours that share a page with a changed one leave, too
    again = network(1)
    again.load_state_dict(safetensors.load_file(places(call)[0].file.name))
    assert torch.equal(again[0].weight, network()[0].weight)  # the file itself is as it was


def test_a_weight_that_is_changed_before_a_new_graph_is_kept(mapped):
    module, call = mapped
    other = network()
    with torch.no_grad():
        for count in (4, 6):  # each compiled for itself
            x = torch.randn(count, WIDTH)
            for _ in range(2):
                assert torch.equal(call(x), other(x))
            for one in (module, other):
                for parameter in one.parameters():
                    parameter.mul_(1.5)
    assert same(module.parameters(), other.parameters())


def test_training_leaves_the_file_as_it_is(mapped):
    module, call = mapped
    x, other = torch.randn(4, WIDTH), network()
    optimizers = [torch.optim.AdamW(one.parameters(), lr=1e-2) for one in (module, other)]
    for optimizer, run in zip(optimizers, (call, other), strict=True):
        fit(optimizer, run, x, steps=5)
    assert same(module.parameters(), other.parameters())
