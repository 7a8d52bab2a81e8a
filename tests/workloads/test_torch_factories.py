"""Factories without bytes: what works on real tensors works there, and gives the same network."""

import copy
import sys
from types import ModuleType

import pytest

import loadmaster as lm
from loadmaster.workloads.graph import TensorKind

torch = pytest.importorskip("torch")
from tests.support.modules import Parts  # noqa: E402
from torch import nn  # noqa: E402


def half():
    return nn.Linear(8, 8).half(), torch.randn(4, 8).half()


def bfloat16():
    module = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU())
    return module.to(torch.bfloat16), torch.randn(1, 3, 32, 32, dtype=torch.bfloat16)


def double():
    return nn.LSTM(8, 8).double(), torch.randn(2, 5, 8).double()


def channels_last():
    return nn.Conv2d(3, 16, 3).to(memory_format=torch.channels_last), torch.randn(1, 3, 32, 32)


def cast_by_data():
    module = nn.Linear(8, 8, bias=False)
    module.weight.data = module.weight.data.half()
    return module, torch.randn(4, 8).half()


def tied():
    module = nn.Sequential(nn.Embedding(8, 8), nn.Linear(8, 8, bias=False))
    module[1].weight = module[0].weight
    return module.half(), torch.zeros(4, dtype=torch.long)


def moved():
    return nn.Linear(8, 8, device="meta").to_empty(device="cpu").cpu(), torch.randn(4, 8)


def copied():
    return copy.deepcopy(nn.Linear(8, 8)).half(), torch.randn(4, 8).half()


def stacked():
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    return nn.TransformerEncoder(layer, 2).half(), torch.randn(2, 5, 64).half()


def assigned():
    module = nn.Linear(8, 8)
    module.load_state_dict(nn.Linear(8, 8).half().state_dict(), assign=True)
    return module, torch.randn(4, 8).half()


def normalised():
    weight_norm = nn.utils.parametrizations.weight_norm
    return weight_norm(nn.Linear(8, 8)).half(), torch.randn(4, 8).half()


def lazy():
    module = nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.Flatten())
    return module.append(nn.LazyLinear(5)), torch.randn(2, 3, 8, 8)


def lazy_and_cast():
    return nn.Sequential(nn.LazyLinear(8)).half(), torch.randn(4, 6).half()


def lazy_and_called():
    module, x = nn.Sequential(nn.LazyLinear(8), nn.ReLU()), torch.randn(4, 6)
    module(x)
    return module.double(), x.double()


CASTING = [
    half,
    bfloat16,
    double,
    channels_last,
    cast_by_data,
    tied,
    moved,
    copied,
    stacked,
    assigned,
    normalised,
    lazy,
    lazy_and_cast,
    lazy_and_called,
]


def of_factory(factory, monkeypatch, **options):
    module = ModuleType("made_here")
    module.make = factory
    monkeypatch.setitem(sys.modules, "made_here", module)
    return lm.load("torch:made_here:make", **options)


def figures(graph):
    weights = sorted(
        (t.dtype, t.shape, t.bytes)
        for t in graph.tensors.values()
        if t.kind is TensorKind.WEIGHT and t.alias_of is None
    )
    return graph.precision, graph.macs, [op.kind for op in graph.ops], weights, graph.unknown_ops


@pytest.mark.slow
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("factory", CASTING, ids=lambda factory: factory.__name__)
def test_a_factory_makes_what_real_tensors_make(factory, training, monkeypatch):
    module, x = factory()
    if factory in (lazy, lazy_and_cast):
        with torch.no_grad():
            module(x)
    if next(module.parameters()).is_meta:
        module = module.to_empty(device="cpu")
    right = lm.load((module.train(training), x), training=training)
    assert figures(of_factory(factory, monkeypatch, training=training)) == figures(right)


def test_what_factories_change_is_as_before_afterwards(monkeypatch):
    before = nn.Module._apply, nn.UninitializedParameter.__new__
    of_factory(lazy, monkeypatch)
    assert (nn.Module._apply, nn.UninitializedParameter.__new__) == before
    assert half()[0].weight.dtype is torch.float16


def test_a_lazy_module_of_the_caller_is_left_as_it_is():
    module = nn.LazyLinear(8)
    with pytest.raises(lm.ModelError, match="call the module once before"):
        lm.load((module, torch.zeros(4, 6)))
    assert isinstance(module, nn.LazyLinear)
    module(torch.zeros(4, 6))
    assert lm.load((module, torch.zeros(4, 6))).macs == 4 * 6 * 8


def keeping(own, x):
    own.kept = own.layer(x)
    return own.kept * 2


@pytest.mark.filterwarnings("ignore:`torch.jit")
@pytest.mark.parametrize(
    "made",
    [
        lambda: Parts(keeping, layer=nn.Linear(4, 4)),
        lambda: torch.jit.script(nn.Linear(4, 4)),
        lambda: torch.export.export(nn.Linear(4, 4), (torch.zeros(2, 4),)).module(),
    ],
)
def test_a_module_of_the_caller_is_as_before_afterwards(made):
    module, x = made(), torch.zeros(2, 4)
    attributes, weights = dict(vars(module)), dict(module.named_parameters())
    assert lm.load((module, x)).macs == 32
    assert vars(module) == attributes
    assert all(own is weights[name] for name, own in module.named_parameters())
    assert type(module(x)) is torch.Tensor


def branching(own, x):
    return torch.cond(x.sum() > 0, lambda x: own.layer(x), lambda x: x * 2, (x,))


@pytest.mark.parametrize("training", [False, True])
def test_control_flow_that_depends_on_values_is_named(training, monkeypatch, tmp_path):
    module = Parts(branching, layer=nn.Linear(8, 8))
    with pytest.raises(
        lm.ModelError, match="it calls cond, whose functions run as values decide"
    ) as raised:
        of_factory(lambda: (module, torch.zeros(4, 8)), monkeypatch, training=training)
    assert "0x" not in str(raised.value)
