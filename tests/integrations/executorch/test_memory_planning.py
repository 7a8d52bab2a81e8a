"""Plans in ExecuTorch: its own verifier passes, its runtime gives the same outputs, and no arena is
larger than by its own algorithms."""

import logging
import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.support.needs import TOOLCHAIN

pytest.importorskip("executorch", reason=TOOLCHAIN)

import torch
from executorch.exir import ExecutorchBackendConfig, to_edge
from executorch.exir.memory_planning import Verifier
from executorch.exir.passes.memory_planning_pass import MemoryPlanningPass
from executorch.runtime import Runtime, Verification

from loadmaster.core.errors import AllocationError, CapacityError
from loadmaster.integrations.executorch import memory_planning
from loadmaster.integrations.executorch.arenas import uses_of
from loadmaster.integrations.executorch.planning_pass import MemoryBank
from loadmaster.integrations.executorch.requests import Held, requests_of

pytestmark = pytest.mark.filterwarnings("ignore")


class Attention(torch.nn.Module):
    def __init__(self, width=64, heads=4):
        super().__init__()
        self.norm, self.heads = torch.nn.LayerNorm(width), heads
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        batch, tokens, width = x.shape
        q, k, v = (
            t.view(batch, tokens, self.heads, -1).transpose(1, 2)
            for t in self.qkv(self.norm(x)).split(width, -1)
        )
        x = x + self.out(
            (torch.softmax(q @ k.transpose(-1, -2) * 0.25, -1) @ v)
            .transpose(1, 2)
            .reshape(batch, tokens, width)
        )
        return x + self.down(torch.tanh(self.up(self.norm(x))) * torch.sigmoid(self.up(x)))


class Inception(torch.nn.Module):
    """Branches of different widths: the case in which the order of placing matters."""

    def __init__(self):
        super().__init__()
        self.stem = torch.nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.branches = torch.nn.ModuleList(
            torch.nn.Conv2d(16, wide, size, padding=size // 2)
            for wide, size in ((8, 1), (24, 3), (4, 5))
        )
        self.join = torch.nn.Conv2d(36, 16, 1)

    def forward(self, x):
        x = torch.relu(self.stem(x))
        for _ in range(2):
            x = x + self.join(torch.cat([torch.relu(branch(x)) for branch in self.branches], 1))
        return x.mean((2, 3))


class Cache(torch.nn.Module):
    """State that lasts from call to call."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(16, 16)
        self.register_buffer("state", torch.zeros(4, 16))

    def forward(self, x):
        self.state.add_(torch.tanh(self.linear(x)))
        return self.linear(self.state) + x


class Chain(torch.nn.Module):
    """Element-wise kernels on the largest tensor."""

    def __init__(self):
        super().__init__()
        self.convolution = torch.nn.Conv2d(3, 32, 3, padding=1)

    def forward(self, x):
        y = torch.tanh(torch.sigmoid(self.convolution(x)))
        return (y + y.mean()).mean((2, 3))


class LastOf(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)[0]


MODELS = {
    "attention": (lambda: torch.nn.Sequential(Attention(), Attention()), (1, 32, 64)),
    "inception": (Inception, (1, 3, 32, 32)),
    "chain": (Chain, (1, 3, 16, 16)),
    "cache": (Cache, (4, 16)),
    "lstm": (lambda: LastOf(torch.nn.LSTM(16, 24, batch_first=True)), (1, 6, 16)),
}


def exported(name):
    torch.manual_seed(0)
    make, shape = MODELS[name]
    return torch.export.export(make().eval().requires_grad_(False), (torch.randn(shape),))


def planned(program, planning):
    """Bytes of each arena, the program, and its graph, which ExecuTorch's own verifier has
    checked."""
    done = to_edge(program).to_executorch(ExecutorchBackendConfig(memory_planning_pass=planning))
    finished = done.exported_program()
    Verifier(
        finished.graph_module, True, True, True, finished.graph_signature
    ).verify_storage_reuse()
    return list(finished.graph_module.meta["non_const_buffer_sizes"]), done, finished.graph_module


def outputs(done, inputs):
    method = (
        Runtime.get()
        .load_program(done.buffer, verification=Verification.Minimal)
        .load_method("forward")
    )
    return [method.execute([each])[0].clone() for each in inputs]


@pytest.mark.parametrize("in_place", [False, True], ids=["apart", "in place"])
@pytest.mark.parametrize("name", MODELS)
def test_the_same_outputs_in_an_arena_that_is_never_larger(name, in_place, caplog):
    caplog.set_level(logging.INFO, "loadmaster.executorch")
    program = exported(name)
    inputs = [torch.randn(MODELS[name][1]) - shift for shift in (0.0, 3.0, -3.0)]
    theirs, before, _ = planned(program, MemoryPlanningPass())
    ours, after, _ = planned(program, memory_planning(in_place=in_place))
    assert sum(ours) <= sum(theirs)
    assert all(map(torch.equal, outputs(before, inputs), outputs(after, inputs)))
    assert "proven to be the least" in caplog.text or "are needed" in caplog.text


def test_element_wise_kernels_in_place_need_less():
    program = exported("chain")
    apart, within = (
        planned(program, memory_planning(in_place=choice))[0] for choice in (False, True)
    )
    assert within[1] < apart[1]


def slow_bytes(graph):
    """Bytes that nodes read and write outside the first arena."""
    uses, seen = uses_of(graph), {}
    for node in graph.graph.nodes:
        spec = node.meta.get("spec")
        for each in spec if isinstance(spec, list | tuple) else [spec]:
            if each is not None and getattr(each, "mem_id", None) == 2:
                seen[id(each)] = each
    return sum(uses[key] * spec.allocated_memory for key, spec in seen.items())


@pytest.mark.parametrize("name", ["attention", "inception"])
def test_banks_move_fewer_bytes_than_filling_them_by_size(name):
    banked = pytest.importorskip(
        "executorch.exir.banked_memory_planning", reason="executorch 1.4 has no banks of its own"
    )
    program, size = exported(name), 24 * 1024
    there = banked.TargetMemoryMap([banked.Bank("sram", size, 1), banked.Bank("dram", 2**22, 2)])
    _, before, theirs = planned(program, banked.banked_memory_planning_pass(there))
    arenas, after, ours = planned(program, memory_planning(there))
    assert arenas[1] <= size
    assert slow_bytes(ours) <= slow_bytes(theirs)
    inputs = [torch.randn(MODELS[name][1]) for _ in range(2)]
    assert all(map(torch.equal, outputs(before, inputs), outputs(after, inputs)))


def test_banks_that_are_too_small_are_refused_with_their_sizes():
    with pytest.raises(
        CapacityError,
        match=(
            r"do not fit into the banks \(sram 1024, dram 2048 bytes\): no packing exists, which is"
            r" proven"
        ),
    ):
        planned(
            exported("attention"),
            memory_planning([MemoryBank("sram", 1024, 1), MemoryBank("dram", 2048, 2)]),
        )


@pytest.mark.parametrize(
    "banks",
    [
        [],
        [MemoryBank("a", 8, 1), MemoryBank("b", 8, 1)],
        [MemoryBank("a", 8, 0)],
        [MemoryBank("a", 0, 1)],
    ],
    ids=["none", "twice", "0", "size"],
)
def test_banks_that_make_no_sense_are_refused(banks):
    with pytest.raises(
        AllocationError, match="banks: give at least one, each with bytes and a mem_id of its own"
    ):
        memory_planning(banks)


def tensor(size, first, last, base=None, offset=0):
    made = SimpleNamespace(
        lifetime=[first, last],
        mem_id=None,
        shape=[size],
        storage_base=base,
        storage_base_offset=offset,
        allocated_memory=0,
    )
    made.realign = lambda alignment: setattr(
        made, "allocated_memory", -(-size // alignment) * alignment
    )
    return made


def test_tensors_in_the_storage_of_others_move_with_it():
    base = tensor(100, 2, 4)
    part = tensor(20, 3, 9, base, 48)
    deeper = tensor(4, 5, 6, part, 16)
    (request,) = requests_of([deeper, base, part], 16)
    assert request.tensors == ((base, 0), (deeper, 64), (part, 48))
    assert (request.lifetime, request.size) == ((2, 10), 112)


def test_a_storage_that_is_its_own_or_not_there_is_refused():
    one, other = tensor(8, 0, 1), tensor(8, 0, 1)
    one.storage_base, other.storage_base = other, one
    with pytest.raises(AllocationError, match="lies in its own storage"):
        requests_of([one, other], 16)
    with pytest.raises(AllocationError, match="one that is not planned with it"):
        requests_of([tensor(8, 0, 1, tensor(8, 0, 1))], 16)


def test_nodes_that_run_one_subgraph_hold_one_range():
    one, other = object(), object()
    first = Held(2, 5, Counter({1: 64, 3: 8}), (one,))
    second = Held(8, 9, Counter({1: 48, 2: 16}), (other, one))
    assert not first.is_apart(second)
    assert first.joined(second) == Held(2, 9, Counter({1: 64, 2: 16, 3: 8}), (one, other))
    assert first.is_apart(Held(3, 4, Counter({1: 8}), (other,)))


def conditional(p, x, factor):
    return torch.cond(
        p, lambda t: (t * factor).sin() + factor, lambda t: (t - factor).cos() * 2, [x]
    )


class Both(torch.nn.Module):
    """Results of two conditionals, alive together."""

    def forward(self, x):
        p = x.sum() > 0
        return conditional(p, x, 1.5), conditional(p, x, 2.5)


class Nested(torch.nn.Module):
    """Conditionals in a branch, and results of several that are used far later."""

    def forward(self, x):
        p, q = x.sum() > 0, x.mean() > 1

        def inner(t):
            return conditional(q, t, 0.5) * conditional(q, t + 1, 3.5)

        a = torch.cond(p, inner, lambda t: t.exp(), [x])
        b = conditional(q, x, 4.5)
        c = torch.cond(q, lambda t: t.tanh(), inner, [a + b])
        for _ in range(3):
            x = (x.sigmoid() * 2).cos()
        return a + b, b * c, x + c


class Mapped(torch.nn.Module):
    """A loop over rows between two conditionals."""

    def forward(self, x):
        from torch._higher_order_ops.map import map as over_rows

        p = x.sum() > 0
        a = conditional(p, x, 1.5)
        rows = over_rows(lambda row, y: (row * 2).exp() + y, x, a[0])
        return a + rows, conditional(p, rows, 2.5), a


BANKS = [MemoryBank("sram", 8192, 1), MemoryBank("dram", 2**20, 2)]


@pytest.mark.parametrize(
    "options",
    [{}, {"in_place": True}, {"banks": BANKS}, {"banks": BANKS, "in_place": True}],
    ids=["apart", "in place", "banks", "banks in place"],
)
@pytest.mark.parametrize("model", [Both, Nested, Mapped], ids=lambda model: model.__name__)
def test_results_of_subgraphs_outlive_them(model, options):
    torch.manual_seed(0)
    inputs = [torch.rand(4, 16) - shift for shift in (0.0, 0.5, 2.0, -2.0)]
    program = torch.export.export(model(), (inputs[0],))
    _, done, _ = planned(program, memory_planning(**options))
    loaded = Runtime.get().load_program(done.buffer, verification=Verification.Minimal)
    method = loaded.load_method("forward")
    for x in inputs:
        for one, other in zip(method.execute([x]), model()(x), strict=True):
            torch.testing.assert_close(one.clone(), other, atol=1e-5, rtol=1e-5)


def test_the_examples_of_the_page_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = Path(__file__).parents[3] / "docs" / "how-to" / "executorch.md"
    examples = re.findall(r"^```py\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    assert len(examples) == 2
    for example in examples:
        exec(compile(example, str(page), "exec"), {})
    assert (tmp_path / "model.pte").stat().st_size > 0
