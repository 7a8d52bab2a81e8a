"""Layers of PyTorch in inference and in training: each operator that they launch is understood, and
fused ones count what their parts do."""

import contextlib
import warnings
from functools import partial

import pytest

import loadmaster as lm

torch = pytest.importorskip("torch")
from tests.support.modules import Parts  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.utils import parametrizations  # noqa: E402


def captured(module, *inputs, training=False):
    return lm.load((module.train(training), inputs), training=training)


def encoder(**options):
    return nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, **options)


@contextlib.contextmanager
def unfused():
    """Recurrent layers as many small operators."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.backends.mkldnn.flags(enabled=False):
            yield


STEPS, TEXT = torch.zeros(20, 4, 64), torch.zeros(2, 50, 64)
FUSED = {
    "lstm": (lambda: nn.LSTM(64, 128), (STEPS,), 7_864_320),
    "lstm by batch": (lambda: nn.LSTM(64, 128, batch_first=True), (STEPS,), 7_864_320),
    "lstm both ways": (lambda: nn.LSTM(64, 128, bidirectional=True), (STEPS,), 2 * 7_864_320),
    "lstm of two layers": (lambda: nn.LSTM(64, 128, 2), (STEPS,), 7_864_320 + 20 * 4 * 512 * 256),
    "encoder": (encoder, (TEXT,), 3_916_800),
    "encoder, normalised first": (
        lambda: encoder(norm_first=True, activation="gelu"),
        (TEXT,),
        3_916_800,
    ),
    "attention": (
        lambda: nn.MultiheadAttention(64, 4, batch_first=True),
        (TEXT, TEXT, TEXT),
        100 * 4 * 64 * 64 + 2 * 2 * 50 * 50 * 64,
    ),
    "bilinear": (lambda: nn.Bilinear(8, 6, 5), (torch.zeros(3, 8), torch.zeros(3, 6)), 720),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FUSED)
def test_fused_layers_count_what_their_parts_do(name):
    make, inputs, macs = FUSED[name]
    fused = captured(make(), *inputs)
    assert (fused.macs, fused.unknown_ops) == (macs, {})
    if name.startswith("lstm"):
        with unfused():
            assert captured(make(), *inputs).macs == macs


@pytest.mark.parametrize("enabled", [True, False])
def test_attention_is_recorded_as_the_operators_that_it_consists_of(enabled):
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(enabled)
    try:
        kinds = {op.kind for op in captured(encoder(), TEXT).ops}
        assert torch.backends.mha.get_fastpath_enabled() is enabled
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
    assert {"addmm", "native_layer_norm"} <= kinds
    assert not any("encoder_layer" in kind or "multi_head" in kind for kind in kinds)


@pytest.mark.slow
def test_a_recurrent_training_step_takes_three_times_the_forward_pass():
    step = captured(nn.LSTM(64, 128), STEPS, training=True)
    assert any("rnn_layer_backward" in op.kind for op in step.ops)
    assert step.macs == 3 * 7_864_320
    with unfused():
        parts = captured(nn.LSTM(64, 128), STEPS, training=True)
    # The parts need no gradient of the input, and none of the first state.
    first = 20 * 4 * 512 * 64
    assert parts.macs == step.macs - first - 4 * 512 * 128


UPDATES = {
    "index_copy": (lambda cache, at, new: cache.index_copy_(2, at, new), 0, 32),
    "index_put": (
        lambda cache, at, new: cache.__setitem__((slice(None), slice(None), at), new),
        0,
        32,
    ),
    "mask": (lambda cache, at, new: cache.__setitem__(cache > 0, 1.0), 0, 32768),
    "index_fill": (lambda cache, at, new: cache.index_fill_(2, at, 1.0), 0, 32),
    "index_add": (lambda cache, at, new: cache.index_add_(2, at, new), 32, 32),
    "accumulate": (lambda cache, at, new: cache.index_put_((at, at, at), new[0, 0], True), 16, 16),
    "scatter": (
        lambda cache, at, new: cache.scatter_(2, at.view(1, 1, 1, 1).expand(1, 2, 1, 4), new),
        0,
        32,
    ),
}


@pytest.mark.parametrize("name", UPDATES)
def test_updates_in_place_touch_what_they_index(name):
    """Caches of keys and values are updated so."""
    update, read, written = UPDATES[name]

    def run(own, at, new):
        update(own.cache, at, new)
        return own.cache + 1.0

    module = Parts(run)
    module.register_buffer("cache", torch.zeros(1, 2, 1024, 4))
    graph = captured(module, torch.tensor([0]), torch.zeros(1, 2, 1, 4))

    def of_cache(accesses):
        return [each.bytes for each in accesses if graph.tensors[each.tensor].storage == "cache"]

    (op,) = [op for op in graph.ops if of_cache(op.writes)]
    assert (sum(of_cache(op.reads)), of_cache(op.writes)) == (read, [written])


def test_bags_touch_the_rows_that_they_sum():
    graph = captured(nn.EmbeddingBag(100, 16), torch.zeros(3, 5, dtype=torch.long))
    (op,) = (op for op in graph.ops if "embedding_bag" in op.kind)
    assert op.elements == 15 * 16
    table = next(access for access in op.reads if graph.tensors[access.tensor].shape == (100, 16))
    assert table.bytes == 15 * 16 * 4


def of_layer(function, layer):
    """A function of a layer's results, as a module; it may be a module itself."""
    return Parts(lambda own, x: own.function(own.layer(x)), function=function, layer=layer)


def unpooled(x):
    return nn.MaxUnpool2d(2)(*nn.MaxPool2d(2, return_indices=True)(x))


def layers():
    """Makers and inputs, by name."""
    found = {}

    def add(name, make, *inputs):
        found[name] = make, inputs

    def applied(name, function, x, d=2):
        add(name, lambda: of_layer(function(), getattr(nn, f"Conv{d}d")(4, 4, 1)), x)

    short = torch.zeros(5, 3, 16)
    for name in ("RNN", "GRU", "LSTM"):
        add(name, partial(getattr(nn, name), 16, 32, 2, bidirectional=True), short)
        add(f"{name}Cell", partial(getattr(nn, f"{name}Cell"), 16, 32), short[0])
    add("LSTM, projected", lambda: nn.LSTM(16, 32, proj_size=8), short)
    add("encoder", encoder, TEXT)
    decoder = partial(nn.TransformerDecoderLayer, 64, 4, 128, batch_first=True)
    add("decoder", decoder, TEXT, TEXT[:, :20])
    found["Bilinear"] = FUSED["bilinear"][:2]
    image = torch.zeros(2, 4, 8, 8)
    activations = """
        CELU ELU GELU GLU Hardshrink Hardsigmoid Hardswish Hardtanh LeakyReLU LogSigmoid Mish PReLU
        ReLU ReLU6 RReLU SELU SiLU Sigmoid Softplus Softshrink Softsign Tanh Tanhshrink Softmax2d
        AlphaDropout Dropout2d"""
    for name in activations.split():
        applied(name, getattr(nn, name), image)
    for d in (1, 2, 3):
        x = torch.zeros(2, 4, *[8] * d)
        for given, names in (
            ((1,), "ReflectionPad ReplicationPad CircularPad"),
            ((1, 0.0), "ConstantPad"),
            ((2,), "AdaptiveAvgPool AdaptiveMaxPool MaxPool AvgPool"),
            ((2, 2), "LPPool"),
            ((4,), "InstanceNorm BatchNorm"),
            ((4, 6, 3), "Conv ConvTranspose"),
        ):
            for name in names.split():
                applied(f"{name}{d}d", partial(getattr(nn, f"{name}{d}d"), *given), x, d)
        modes = ["nearest", "nearest-exact", "area", ("linear", "bilinear", "trilinear")[d - 1]]
        for mode in modes + ["bicubic"] * (d == 2):
            applied(f"{mode}{d}d", partial(nn.Upsample, scale_factor=2, mode=mode), x, d)
        if d > 1:
            name = f"FractionalMaxPool{d}d"
            applied(name, partial(getattr(nn, name), 2, output_size=4), x, d)
    indices = torch.zeros(3, 5, dtype=torch.long)
    for mode in ("sum", "mean", "max"):
        add(f"EmbeddingBag, {mode}", partial(nn.EmbeddingBag, 100, 16, mode=mode), indices)
    add("Embedding, renormalised", lambda: nn.Embedding(100, 16, max_norm=1.0), indices)
    rows = torch.zeros(4, 8)
    add("weight_norm", lambda: parametrizations.weight_norm(nn.Linear(8, 8)), rows)
    add("spectral_norm", lambda: parametrizations.spectral_norm(nn.Linear(8, 8)), rows)
    for target, names in (
        (
            rows,
            "MSE L1 SmoothL1 Huber BCEWithLogits KLDiv PoissonNLL SoftMargin HingeEmbedding"
            " MultiLabelSoftMargin",
        ),
        (torch.zeros(4, dtype=torch.long), "CrossEntropy NLL MultiMargin"),
        (rows.long(), "MultiLabelMargin"),
    ):
        for name in names.split():
            loss = getattr(nn, f"{name}Loss")
            judged = partial(loss(), target=target)
            add(loss.__name__, partial(of_layer, judged, nn.Linear(8, 8)), rows)
    functions = {
        "fft": lambda x: torch.fft.fft(x).abs(),
        "fft2": lambda x: torch.fft.fft2(x).abs(),
        "rfft and back": lambda x: torch.fft.irfft(torch.fft.rfft(x)),
        "bucketize": lambda x: x + torch.bucketize(x, torch.arange(5.0)),
        "searchsorted": lambda x: x + torch.searchsorted(torch.arange(5.0), x),
        "MaxUnpool2d": unpooled,
        "cdist": lambda x: torch.cdist(x, x),
        "pdist": lambda x: torch.pdist(x.flatten(1)),
        "cummax": lambda x: x.cummax(1)[0],
        "antialiased": lambda x: nn.functional.interpolate(
            x, scale_factor=0.5, mode="bilinear", antialias=True
        ),
        "grid": lambda x: nn.functional.grid_sample(
            x, nn.functional.affine_grid(torch.zeros(x.shape[0], 2, 3), x.shape)
        ),
        "diagonal": lambda x: torch.diag_embed(x[0]),
        "foreach": lambda x: torch.stack(torch._foreach_mul([x, x], 2.0)),
        "fake quantised": lambda x: torch.fake_quantize_per_channel_affine(
            x, torch.ones(4), torch.zeros(4), 1, 0, 255
        ),
        "rotary": lambda x: torch.view_as_real(
            torch.view_as_complex(x.reshape(*x.shape[:-1], 4, 2))
            * torch.polar(torch.ones(4), torch.arange(4.0))
        ),
    }
    for name, function in functions.items():
        applied(name, lambda function=function: function, image)
    return found


LAYERS = layers()


@pytest.mark.slow
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_every_operator_of_a_layer_is_understood(training):
    unknown = {}
    for name, (make, inputs) in LAYERS.items():
        graph = captured(make(), *inputs, training=training)
        assert graph.ops, name
        if graph.unknown_ops:
            unknown[name] = graph.unknown_ops
    assert unknown == {}


def test_fourier_transforms_take_the_steps_of_fast_ones():
    def transformed(_, x):
        return torch.fft.fft(torch.complex(x, x)), torch.fft.rfft(x), torch.fft.fft2(x)

    graph = captured(Parts(transformed), torch.zeros(3, 16, 64))
    steps = [op.elements for op in graph.ops if "fft" in op.kind]
    assert steps[:2] == [48 * 5 * 64 * 6, 48 * 5 * 64 * 6 // 2]
    assert steps[2] in (3 * 5 * 1024 * 10, 3 * 5 * 1024 * 10 // 2)
