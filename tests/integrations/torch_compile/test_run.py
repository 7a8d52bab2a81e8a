"""`loadmaster run`: budgets that hold, figures that are there, nothing that grows."""

import json
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from math import inf, nan
from random import Random
from types import SimpleNamespace

import pytest
import torch
from tests.support.command_line import refused, run
from tests.support.compiled import with_plan
from tests.support.json_schema import conforms
from tests.support.modules import Parts, linears
from tests.support.nightly import by_night
from tests.support.tables import cases
from torch import nn
from torch.profiler import profile

from loadmaster.core.errors import ModelError, SlowMemoryError
from loadmaster.core.json_object import ABSENT, json_of
from loadmaster.integrations.torch_compile import backend, running
from loadmaster.integrations.torch_compile.compare import comparison, generation, rivals
from loadmaster.integrations.torch_compile.compare.comparison import Variant
from loadmaster.integrations.torch_compile.compare.measurement import STATED
from loadmaster.integrations.torch_compile.compare.run_json import RivalJson, RunJson
from loadmaster.integrations.torch_compile.cpu_memory import PAGE, SlowFile
from loadmaster.report.run import ways


def test_a_step_is_predicted_by_its_own_graphs_and_not_by_those_of_steps_before():
    """Models of transformers are compiled anew in their second step, and the graph of the first
    runs no more."""
    call = with_plan(nn.Linear(64, 64), dynamic=False)
    for rows in (4096, 1024):
        for _ in range(2):
            call(torch.randn(rows, 64)).sum().backward()
    model = backend.model_of(call)
    first, second = model.plans
    assert model.last_step_graphs == [second]
    variant = Variant("loadmaster", call, model=model)
    assert variant.figures()["predicted_step_seconds"] == second.predicted_seconds
    call(torch.randn(4096, 64)).sum().backward()
    variant.predict()
    assert variant.predicted == [first.predicted_seconds]


@pytest.mark.parametrize(("release", "runs"), [("2.11.0+cu130", True), ("2.10.1", False)])
def test_releases_of_torch_that_the_runtime_knows(release, runs, monkeypatch):
    monkeypatch.setattr(torch, "__version__", release)
    wanted = "there is no module" if runs else r"torch 2\.10\.1 .* needs torch 2\.11 to 2\.13;"
    with pytest.raises(ModelError, match=wanted):
        running.made_module("nowhere:at_all", None, False, "cpu")


@pytest.mark.parametrize(
    ("name", "training", "module", "kind"),
    [
        (None, True, nn.Linear(4, 4), torch.optim.Adam),
        ("sgd", True, nn.Linear(4, 4), torch.optim.SGD),
        (None, False, nn.Linear(4, 4), type(None)),
        (None, True, nn.Tanh(), type(None)),
    ],
)
def test_a_step_has_the_optimizer_of_the_option_or_else_of_the_factory(
    name, training, module, kind, monkeypatch
):
    made = module, torch.ones(4), torch.optim.Adam
    monkeypatch.setattr(running, "factory_of", lambda *_: lambda: made)
    work = running.made_module("spot", None, training, "cpu", name)
    assert type(work.make_optimizer()) is kind


def test_the_budget_holds_and_the_figures_are_there(tmp_path):
    words = (
        "run torch:tests.support.factories:layers --training --batch 20000 --fast 60% --steps 1"
        " --json --compare --out"
    )
    # A process of its own: the peak is that of the process, and this one's heap has holes.
    done = subprocess.run(
        [sys.executable, "-m", "loadmaster", *words.split(), tmp_path],
        capture_output=True,
        text=True,
        check=False,
    )
    result = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    conforms("run", result)
    written = json.loads((tmp_path / "run.json").read_text())
    assert written | {"files": result["files"]} == result
    assert result["gradients_equal"]
    assert result["moved_bytes"] > 0
    assert result["planned_peak"] <= result["budget"]
    # The plan counts whole buffers of the matrix library, which touches a part of some.
    planned = result["planned_peak"]
    assert planned // 2 <= result["measured_peak"] <= planned + max(planned // 20, STATED)
    assert {"eager", "save_on_cpu", "activation_memory_budget"} <= result["rivals"].keys()
    assert all(
        variant["measured_peak"] > 0
        for variant in result["rivals"].values()
        if "failed" not in variant
    )
    kernels = json.loads((tmp_path / "kernels.json").read_text())
    assert all(row["predicted_seconds"] > 0 and row["measured_seconds"] > 0 for row in kernels)


def test_the_budget_of_generated_tokens_is_what_was_asked_for(monkeypatch, tmp_path):
    times = {
        "moved_bytes": 1,
        "tokens_per_second": 1.0,
        "waiting_seconds": 0.0,
        "copy_seconds": 0.0,
    }
    way = SimpleNamespace(
        name="loadmaster", failed="", rows=[{"token": 1}], next=lambda: None, watch=lambda: None
    )
    way.figures = lambda: times | {"measured_peak": 1000 + STATED}
    monkeypatch.setattr(generation, "_write_weights", lambda spot, path: 2000)
    monkeypatch.setattr(generation, "_start_way", lambda *_: way)
    monkeypatch.setattr(generation, "_bandwidth", lambda path: 1.0)
    result = running.generated("made:up", 2, "50%", tmp_path, with_rivals=False)
    assert (result["budget"], result["budget_kept"]) == (1000, True)
    way.figures = lambda: times | {"measured_peak": 1001 + STATED}
    assert not running.generated("made:up", 2, "50%", tmp_path, with_rivals=False)["budget_kept"]


def inference(module, x):
    return comparison.MeasuredModule(module, (x,), False, torch.device("cpu"))


def test_a_returned_loss_is_the_loss_and_other_results_need_no_gradient():
    """A gradient of logits would be memory that no plan counts."""
    layer = nn.Linear(4, 3)

    def gradient(results):
        module = Parts(lambda own, x: results(own.layer(x)), layer=layer)
        work = comparison.MeasuredModule(module, (torch.ones(2, 4),), True, torch.device("cpu"))
        work.step(Variant("eager", module))
        return layer.weight.grad.clone()

    loss = gradient(lambda y: y.sum())
    assert torch.equal(gradient(lambda y: {"loss": y.sum(), "logits": y}), loss)
    squares = gradient(lambda y: y.square().mean())
    torch.testing.assert_close(gradient(lambda y: [y]), squares)
    assert not gradient(lambda y: [0 * y]).any()


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float32, torch.complex64])
def test_results_without_a_loss_need_no_memory_but_their_gradient(kind):
    """A copy in another type would be memory that no plan counts."""
    result = torch.randn(256, 256, dtype=kind).requires_grad_()
    with profile(profile_memory=True) as taken:
        loss = comparison._loss_of({"result": result})
        loss.backward()
    made = [event.self_cpu_memory_usage for event in taken.key_averages()]
    assert sum(bytes for bytes in made if bytes > 0) < result.nbytes + 1024
    exact = result.detach().to(torch.complex128).abs().square().mean()
    torch.testing.assert_close(loss.detach(), exact, rtol=1e-2, atol=0)
    torch.testing.assert_close(result.grad, 2 * result.detach() / result.numel())


@pytest.fixture
def without_compiler(monkeypatch):
    """Of the rivals in inference, the one that needs no compiler."""
    monkeypatch.setattr(
        comparison,
        "_inference_rivals",
        lambda work: [Variant("torch.export", rivals.exported(work.module))],
    )


@pytest.mark.usefixtures("without_compiler")
def test_inference_has_rivals_and_every_rival_a_plan_at_its_peak():
    work = inference(linears(64, 3, nn.GELU).eval(), torch.randn(40_000, 64))
    result = comparison.compare(work, {"fast_memory": 1.0}, 1, True)
    assert result["gradients_equal"]
    assert result["planned_peak"] == result["unmoved_peak"] > result["resident"]
    assert result["executor_step_seconds"] > 0
    for variant in result["rivals"].values():
        mine = variant["loadmaster_at_its_peak"]
        assert "failed" in mine or mine["measured_peak"] <= variant["measured_peak"] + STATED
        assert (
            "failed" in mine or variant["difference"]["verdict"] == "no difference"
        )  # one step proves nothing
        assert not variant["beaten"]
    assert result["rivals"].keys() == {"eager", "torch.export"}


MIB = 2**20


def variant(seconds, peak=100 * MIB, failed=ABSENT):
    return Variant("", None, seconds=seconds, measured_peak=peak, failed=failed)


def compared(rival, plan=ABSENT):
    rival.loadmaster_at_its_peak = plan
    rival.compare_at_its_peak()
    return json_of(rival, RivalJson)


@pytest.mark.parametrize(
    ("mine", "theirs", "verdict"),
    cases("""
        0.96 0.96 0.96 0.96 0.96 | 1 1 1 1 1 | faster
        1.04 1.04 1.04 1.04 1.04 | 1 1 1 1 1 | slower
        0.9 0.9 0.9 0.9 1.01 | 1 1 1 1 1 | no difference
        0.5 0.5 0.5 0.5 | 1 1 1 1 | no difference
        1 1 1 1 1 | 1 1 1 1 1 | no difference
        # One of nine may be an outlier either way; what slows both of a pair down says nothing.
        0.9 0.9 0.9 0.9 0.9 0.9 0.9 0.9 5 | 1 1 1 1 1 1 1 1 1 | faster
        0.9 9 0.9 0.9 0.9 | 1 10 1 1 1 | faster
    """),
)
def test_a_rival_is_judged_by_pairs_of_steps_and_an_interval(mine, theirs, verdict):
    found = compared(*(variant([*map(float, each.split())]) for each in (theirs, mine)))
    difference = found["difference"]
    assert difference["verdict"] == verdict
    assert found["beaten"] == (verdict == "faster")
    if difference["low"] is not None:
        assert difference["low"] <= difference["ratio"] <= difference["high"]


def test_more_memory_than_the_rival_beats_nobody():
    more = compared(variant([1.0] * 5), variant([0.5] * 5, 109 * MIB))
    assert (more["beaten"], more["peak_kept"]) == (False, False)
    none = compared(variant([1.0] * 5), variant([], None, "refused"))
    assert (none["beaten"], none["difference"]) == (False, None)
    assert none["loadmaster_at_its_peak"]["failed"] == "refused"
    without = compared(variant([], None, "needs CUDA"))
    assert without == {
        "step_seconds": None,
        "step_cpu_seconds": None,
        "measured_peak": None,
        "failed": "needs CUDA",
    }


def test_intervals_hold_the_median_as_often_as_they_say():
    """Noise without a difference is taken for one in at most a tenth of all comparisons, whatever
    its distribution."""
    random = Random(0)
    for steps in (5, 8, 15):
        draws = [[random.lognormvariate(0, 1) for _ in range(2 * steps)] for _ in range(2000)]
        wrong = sum(
            comparison.difference(d[:steps], d[steps:]).verdict != "no difference" for d in draws
        )
        assert wrong <= 0.11 * 2000
        assert wrong > 0
    many = [1.0] * 1500
    assert comparison.difference(many, many).verdict == "no difference"


@pytest.mark.parametrize(
    ("words", "said"),
    cases("""
        model.onnx | write torch:module.path:factory
        torch:tests.support.factories:none | no function
        torch:tests.support.factories:shapeless --batch 2 | no shape yet: call the module once
        torch:tests.support.factories:failing | \
            torch:tests.support.factories:failing: the factory failed: ValueError: why
        torch:tests.support.factories:exiting | \
            torch:tests.support.factories:exiting: the factory failed: SystemExit: 0
        torch:tests.support.factories:without_inputs | \
            the module fails with its inputs: TypeError: Linear.forward() missing
    """),
)
def test_mistakes_are_named(words, said):
    refused(run(f"run {words} --fast 50%"), said)


def test_regions_of_the_slow_file_are_used_again(tmp_path):
    file = SlowFile(tmp_path)
    regions = [file.reserve(4 * PAGE) for _ in range(3)]
    for region in (regions[0], regions[1]):
        file.release(region, 4 * PAGE)
    assert file.reserve(8 * PAGE) == regions[0]
    assert file.bytes == 12 * PAGE
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("used", [1, 2])
def test_what_a_rival_saves_is_in_the_slow_file_as_long_as_it_may_be_asked_for(used, tmp_path):
    """Passes backward may leave tensors unread, and read others twice."""
    file, x = SlowFile(tmp_path), torch.randn(64, 512, requires_grad=True)
    with rivals.saved_to_file(file, lambda tensor: tensor is x):
        results = [x.exp(), x.sin().exp()][:used]
    assert file.used > 0
    loss = results[-1].sum()
    gradients = [torch.autograd.grad(loss, x, retain_graph=True)[0] for _ in range(2)]
    assert torch.equal(*gradients)
    assert file.used > 0
    del results, loss
    assert file.used == 0


@pytest.mark.parametrize(
    "form",
    [
        lambda x: x.expand(8, *x.shape),
        lambda x: x.t(),
        lambda x: x[:, 100:300],
        lambda x: x.view(4, 16, 16, 32).to(memory_format=torch.channels_last),
        lambda x: torch.view_as_complex(x.view(64, 256, 2)).conj(),
    ],
)
def test_what_a_rival_saves_may_be_any_view(form, tmp_path):
    file, x = SlowFile(tmp_path), torch.randn(64, 512, requires_grad=True)
    shown, found = form(x), []
    for hooks in (nullcontext(), rivals.saved_to_file(file, lambda tensor: False)):
        with hooks:
            loss = (shown * shown.exp()).abs().sum()
        found += torch.autograd.grad(loss, x, retain_graph=True)
    assert torch.equal(*found)


@pytest.mark.parametrize(("allowed", "kept"), [(5, 2), (2, 1), (1, 0)])
def test_an_interrupt_while_steps_are_timed_keeps_what_is_known(allowed, kept, monkeypatch):
    """Every variant has as many timed steps as the one with fewest."""
    work = inference(nn.Linear(4, 4), torch.randn(2, 4))
    variants = [Variant("a", work.module), Variant("b", work.module)]
    told, calls = [], iter(range(allowed))

    def step(turns, variant):
        if next(calls, None) is None:
            raise KeyboardInterrupt
        variant.seconds.append(1.0)
        variant.cpu_seconds.append(1.0)

    monkeypatch.setattr(comparison.AlternatingRuns, "time_step", step)
    turns = comparison.AlternatingRuns(work, variants, lambda *each: told.append(each))
    assert turns.timed((), 9) == kept
    told = told[2:]  # of the steps before
    assert [len(variant.seconds) for variant in variants] == [kept, kept]
    assert {stage for stage, _ in told[:2]} == {"4 of 4: timing step 1 of 9"}
    assert [share for _, share in told] == sorted(share for _, share in told)


@pytest.mark.parametrize(
    "stage",
    ["1 of 4: compiling torch.export", "4 of 4: timing, beginning", *by_night("2 of 4", "3 of 4")],
)
@pytest.mark.usefixtures("without_compiler")
def test_an_interrupt_at_any_stage_of_a_comparison_gives_what_is_known(stage):
    """The plan itself has been checked by then; what has not been measured is None, and what will
    take long was said."""
    work = inference(linears(64, 1, nn.GELU).eval(), torch.randn(4_000, 64))
    said = []

    def stop(told, share):
        if told.startswith(stage):
            raise KeyboardInterrupt

    result = comparison.compare(
        work, {"fast_memory": 1.0}, 2, True, progress=stop, tell=said.append
    )
    assert (result["interrupted"], result["steps"], result["gradients_equal"]) == (True, 0, True)
    assert result["measured_peak"] > 0
    assert result["step_seconds"] is None
    assert ways(json_of(result, RunJson)).rows[0][""] == "loadmaster"
    assert ("failed" in result["rivals"]["torch.export"]) == stage.startswith("1")
    assert "of processor time more; Ctrl-C prints what is known" in said[0]


def counted(own, x):
    """A step's result depends on what steps before it have changed: a buffer in place, one that
    is replaced, and an input."""
    y = own.layer(x.clone())
    own.seen.add_(y.detach().mean(0))
    own.count = own.count + 1
    x.detach().mul_(0.9)
    return (y * own.seen * own.count).sum()


@pytest.mark.parametrize("training", [False, True])
def test_every_way_begins_with_the_same_state(training):
    parts = {"seen": nn.Buffer(torch.zeros(64)), "count": nn.Buffer(torch.zeros(()))}
    module = Parts(counted, layer=nn.Linear(64, 64), **parts).train(training)
    work = replace(inference(module, torch.randn(16, 64)), training=training)
    result = comparison.compare(work, {"fast_memory": 1 << 30}, 4, False)
    assert result["gradients_equal"]
    assert result["max_difference_eager"] < 1e-4


def test_an_expanded_input_is_restored():
    base = torch.arange(8.0)
    begun = comparison.Snapshot(nn.Identity(), {"x": base.expand(4, 8), "none": base[:0]})
    base.mul_(2)
    begun.restore(None)
    assert torch.equal(base, torch.arange(8.0))


def test_a_block_in_two_containers_is_recomputed_once_and_is_as_before_afterwards():
    shared, *others = (nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(3))
    others[0].forward = own = others[1].__call__
    module = nn.ModuleDict({"encoder": nn.ModuleList([shared, *others]), "decoder": shared})
    assert len(rivals.blocks_of(module)) == 3
    with rivals.checkpointed(module):
        shared(torch.rand(2, 4, requires_grad=True)).sum().backward()
    assert "forward" not in vars(shared) | vars(others[1])
    assert others[0].forward is own


def refused_to_compare(work, said):
    with pytest.raises(ModelError, match=said):
        comparison.compare(work, {"fast_memory": 1 << 30}, 1, False)


@pytest.mark.parametrize("layer", [nn.RNN, nn.GRU, nn.LSTM])
def test_a_module_of_which_no_graph_is_captured_is_refused(layer):
    module = Parts(lambda own, x: own.layer(x)[0].square().sum(), layer=layer(8, 8))
    refused_to_compare(inference(module, torch.randn(5, 2, 8)), r"no graph of it.*allow_rnn")


@torch._dynamo.config.patch(allow_rnn=True)
def test_the_backward_pass_of_an_lstm_is_not_tried_on_stand_ins():
    """Its library reads what only it can write: the process would end."""
    module = Parts(lambda own, x: own.layer(x)[0].square().sum(), layer=nn.LSTM(8, 8)).train()
    compiled = with_plan(module, 1 << 30)
    with pytest.raises(AssertionError, match="to be Tensors"):  # of PyTorch, as with aot_eager
        compiled(torch.randn(5, 2, 8))
    assert any(
        "mkldnn_rnn_layer_backward" in str(each) for each in backend.model_of(compiled).fallbacks
    )


@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
def test_a_module_whose_only_graph_falls_back_is_refused():
    work = inference(Parts(lambda own, x: torch.nonzero(x).sum()), torch.randn(8, 8))
    refused_to_compare(work, "no part of the module runs by a plan: ")


@pytest.mark.parametrize(
    ("mine", "right", "error"),
    [
        ([1.0, nan], [1.0, nan], 0.0),
        ([1.0, inf], [1.0, inf], 0.0),
        ([1.5, nan], [1.0, nan], 0.5),
        ([1.0, nan], [1.0, 2.0], 1e300),
        ([1.0, 2.0], [1.0, nan], 1e300),
        ([1.0, -inf], [1.0, inf], 1e300),
        ([1, 3], [1, 2], 1 / 5**0.5),
        ([True], [False], 1e2 / 2**0.5),
        ([1e-9], [2e-9], 1e-7 / 2**0.5),
        ([2 + 1j], [2 + 0j], 0.5),
        ([], [], 0.0),
    ],
)
def test_what_is_no_number_equals_itself_and_nothing_else(mine, right, error):
    """Wherever it is among the results, whatever their type."""
    pair = [torch.ones(2), torch.tensor(mine)], [torch.ones(2), torch.tensor(right)]
    assert comparison._distance(*pair, 2) == pytest.approx(error)
    assert (comparison._distance(*pair, inf) == 0) == (error == 0)


def test_results_that_are_whole_numbers_are_compared():
    work = inference(Parts(lambda own, x: x.argmax(1)), torch.randn(16, 64))
    (found,) = work.results(Variant("eager", work.module), comparison.Snapshot(work.module, ()))
    assert found.shape == (16,)


def test_a_training_step_that_trains_nothing_is_refused():
    work = replace(inference(nn.ReLU(), torch.randn(16, 64)), training=True)
    refused_to_compare(work, "the loss depends on no parameter that is trained")


def test_more_tokens_than_a_model_has_positions_are_refused():
    pytest.importorskip("transformers")
    module = SimpleNamespace(config=SimpleNamespace(max_position_embeddings=16))
    with pytest.raises(ModelError, match=r"6 tokens of the prompt .* 16 positions; generate 10 or"):
        generation.Decoder(module, torch.zeros(1, 6), 11)


def test_a_factory_that_fails_is_named_before_tokens_are_generated(tmp_path):
    spot = "tests.support.factories:failing"
    with pytest.raises(ModelError, match=f"^torch:{spot}: the factory failed: ValueError: why$"):
        generation._write_weights(spot, tmp_path / "weights")


def test_a_slow_memory_is_refused_before_tokens_are_generated(tmp_path):
    with pytest.raises(SlowMemoryError, match="missing: no file can be made there"):
        generation.generate("made:up", 2, "50%", tmp_path / "missing", with_rivals=False)


def test_the_token_in_which_a_plan_is_refined_is_not_timed():
    way = generation.Way("loadmaster", None)
    way.rows = [{"token": 0, "seconds": seconds} for seconds in (9.0, 1.0, 1.0, 1.0, 7.0, 0.5)]
    assert way.figures()["tokens_per_second"] == 2
