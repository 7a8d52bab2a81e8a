"""Plans of models that exporters and quantisers wrote, and what is refused."""

import itertools
import json
from dataclasses import replace

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.support.command_line import run
from tests.support.efforts import SEPARATE
from tests.support.lowered import parts_of
from tests.support.lowered import planned as planned_jobs
from tests.support.needs import FIXTURES
from tests.support.networks import npu, residual_chain
from tests.support.onnx_builder import body, constant, constants, either, info, model, node, save
from tests.support.summed_networks import copying, in_chains

import loadmaster as lm
from loadmaster.core.errors import ModelError, PlanError
from loadmaster.integrations.execute.run import run_plan
from loadmaster.workloads.lowering.pieces import Cuts

pytestmark = pytest.mark.slow


def executed(source, machine="edge-npu", changes=(), **options):
    plan = lm.plan([lm.load(source, **options)], lm.target(machine, list(changes)), effort=SEPARATE)
    found = run_plan(plan, [source], **options)
    assert found.violations == ()
    return found


def planned(path, **options):
    return lm.plan([lm.load(path, **options)], npu(2, 4096), effort=SEPARATE)


def ran(path):
    """What comes of running a plan of a file."""
    return run_plan(planned(path), [str(path)])


def made(tmp_path, *parts):
    """The plan of a model of these parts, and what comes of running it."""
    path = save(tmp_path, model(*parts))
    plan = planned(path)
    return plan, run_plan(plan, [str(path)])


def weight(name, *shape):
    return constant(name, np.random.default_rng(1).uniform(-1, 1, shape), np.float32)


def small(tmp_path, name="net.onnx", kind="Relu"):
    """A product, and something that is done to its result."""
    nodes = ["[product] y = MatMul(x, w)", node(kind, ["y"], "z", "then")]
    return save(tmp_path, model(nodes, "float[4,8] x", "z", [weight("w", 8, 6)]), name)


@pytest.mark.parametrize("precision", ["int8", "fp32"])
def test_mobilenet_in_pieces_on_several_cores(precision):
    found = executed(str(FIXTURES / "mobilenetv2.onnx.gz"), precision=precision)
    assert found.width == {"int8": 4, "fp32": 1}[precision]
    assert found.drawn > 100


@pytest.mark.parametrize("opset", [11, 15])
def test_a_small_bert_as_exporters_trace_it(opset):
    """Layer normalisation and Gelu in their parts, shapes that are computed, and masks."""
    source = str(FIXTURES / f"traced-bert-opset{opset}.onnx.gz")
    changes = ("scratchpad.capacity=32KiB",)
    found = executed(source, changes=changes, precision="fp32", dims={"batch": 2, "steps": 16})
    assert found.jobs > 60


@pytest.mark.parametrize("machine", ["edge-npu", "gpu-pcie"])
@pytest.mark.parametrize("name", ["quantised", "quantised-optimised", "blocks"])
@pytest.mark.parametrize("precision", [None, "int8"])
def test_what_the_quantiser_of_onnx_runtime_writes(name, machine, precision):
    """Tensors that are quantised lie in their bytes, around operators that compute in float."""
    found = executed(str(FIXTURES / f"onnxruntime-{name}.onnx.gz"), machine, precision=precision)
    assert found.width == (4 if precision else 1)


def test_another_batch_than_the_files(tmp_path):
    nodes = "c = Conv(x, w); r = Relu(c); p = GlobalAveragePool(r); y = Flatten(p)"
    parts = model(nodes, "float[1,4,16,16] x", "y", [weight("w", 8, 4, 3, 3)])
    found = executed(str(save(tmp_path, parts)), batch=2)
    assert [each.elements for each in found.outputs] == [16]


def test_integers_are_compared_exactly(tmp_path):
    generator = np.random.default_rng(2)
    weights = [
        constant("w", generator.integers(-99, 99, (64, 48)), np.int8),
        constant("b", generator.integers(-99, 99, 48), np.int32),
    ]
    nodes = "[product] y = MatMulInteger(x, w); [bias] z = Add(y, b)"
    _, found = made(tmp_path, nodes, "int8[32,64] x", "z", weights)
    assert found.violations == ()
    assert [(each.type, each.tolerance) for each in found.outputs] == [("int32", 0)]


def test_a_weight_in_parts_that_two_operators_read_in_two_ways(tmp_path):
    """Embeddings and the last layer of a language model share their weights."""
    nodes = """
        [embedding] rows = Gather(table, ids)
        [inner] x = Relu(rows)
        [turn] turned = Transpose<perm=[1, 0]>(table)
        [head] y = MatMul(x, turned)
    """
    plan, found = made(tmp_path, nodes, "int64[8] ids", "y", [weight("table", 512, 64)])
    assert sum(tensor.storage == "table" for tensor in plan.tensors) > 1
    assert found.violations == ()


def narrow_weight(kind):
    return constant("w", np.random.default_rng(1).integers(0, 8, (8, 6)), getattr(ml_dtypes, kind))


NARROW = (TensorProto.BFLOAT16, TensorProto.FLOAT8E4M3FN, TensorProto.INT4)
RUN = {
    # More elements than planning keeps, and some that a reader transposes.
    "weights that are constants among the operators": (
        [
            node("Constant", [], "w", value=weight("w", 80, 80)),
            "t = Transpose(w); y = MatMul(x, t); z = MatMul(y, w)",
        ],
        "float[4,80] x",
        "z",
    ),
    # Of the network's input the type alone is needed, or nothing where a part of it is empty.
    "a constant of the type of what is no constant": (
        """
        h = Constant<value_float = 0.5>()
        half = CastLike(h, x)
        root = Sqrt(half)
        table = CastLike(w, y)
        all, none = Split<axis=1>(x, sizes)
        both = Concat<axis=1>(all, none)
        y = Mul(both, root)
        z = MatMul(y, table)
        """,
        "float[4,8] x",
        "z",
        [weight("w", 8, 6), constant("sizes", [8, 0])],
    ),
    "outputs that nobody needs and none may leave out": (
        """
        most, first = TopK(x, two)
        more, second = TopK(x, two)
        all, mask = Dropout(x)
        , last = LSTM<hidden_size=2>(s, w, r)
        s = Unsqueeze(x, zero)
        y = Cast<to=1>(first)
        z = Add(more, y)
        m = Where(mask, x, zeros)
        """,
        "float[4,6] x",
        "z, m, last",
        [
            *constants(two=[2], zero=[0], zeros=np.zeros(6)),
            weight("w", 1, 8, 6),
            weight("r", 1, 8, 2),
        ],
    ),
    "results that nobody needs and of which no shape is known": (
        "n = NonZero(x); y = Relu(x)",
        "float[4,8] x",
        "y",
    ),
    **{
        f"an operand whose elements {view} does not use": (
            f"s = Abs(r); v = {view}; y = Relu(v)",
            "float[4,8] x, float r",
            "y",
            constants(none=[0] * 4),
        )
        for view in ("Pad(x, none, s)", "Dropout(x, s)")
    },
    **{
        f"a scan that goes {way} and gives {other}": (
            [
                node(
                    "Scan",
                    ["s", "x"],
                    ["y", "z"],
                    body=body(
                        "p = MatMul(e, v); o = Add(a, p); r = Tanh(o)",
                        "float[1,8] a, float[1,8] e",
                        "r, o",
                    ),
                    num_scan_inputs=1,
                    scan_input_directions=[way],
                    scan_output_directions=[other],
                )
            ],
            "float[1,8] s, float[5,1,8] x",
            "y, z",
            [weight("v", 8, 8)],
        )
        for way, other in ((1, 0), (0, 1), (1, 1))
    },
    "a loop that never runs": (
        [
            node(
                "Loop",
                ["n", "no", "x"],
                ["y", "rows"],
                body=body(
                    "b = MatMul(a, v); on = Identity(go); row = Identity(b)",
                    "int64 i, bool go, float[4,8] a",
                    "on, b, row",
                ),
            ),
            "z = Relu(y)",
        ],
        "float[4,8] x",
        "z",
        [weight("v", 8, 8), *constants(n=3, no=False)],
    ),
    # ONNX Runtime takes weights of types that NumPy lacks from a file alone.
    **{
        f"weights of {kind}": (
            "f = DequantizeLinear(w, s); y = MatMul(x, f)",
            "float[4,8] x",
            "y",
            [narrow_weight(kind), *constants(s=0.5)],
        )
        for kind in ("int4", "uint4", "float8_e4m3fn", "float8_e5m2")
    },
    "a weight whose numbers are a result too": (
        "f = DequantizeLinear(w, s); y = MatMul(x, f)",
        "float[4,8] x",
        "y, f",
        [constant("w", np.arange(48).reshape(8, 6), np.int8), *constants(s=0.5)],
    ),
    # ONNX Runtime returns elements of one kind as their bytes, and none of the others.
    **{
        f"elements of type {to}, then {then}": (
            f"h = Cast<to={to}>(x); t = Transpose(h); y = {then}",
            "float[4,8] x",
            "y",
        )
        for to, then in itertools.product(NARROW, ("Cast<to=1>(t)", "Identity(t)"))
    },
}


@pytest.mark.parametrize("parts", RUN.values(), ids=RUN)
def test_what_a_plan_makes_of_a_model_is_what_the_model_makes(tmp_path, parts):
    plan, found = made(tmp_path, *parts)
    assert lm.verify(plan) == ()
    assert found.violations == ()


def test_whoever_reads_what_is_quantised_at_run_time_reads_its_scale(tmp_path):
    nodes = """
        q, scale, zero = DynamicQuantizeLinear(x)
        d = DequantizeLinear(q, scale, zero)
        t = Transpose(d)
        y = MatMul(t, x)
    """
    plan, found = made(tmp_path, nodes, "float[8,6] x", "y")
    assert found.violations == ()
    assert {"net/q", "net/scale", "net/zero"} <= {
        operand.tensor for job in plan.jobs[1:] for operand in job.reads
    }


def test_an_output_that_is_constant_is_stored_once_for_all_mini_batches(tmp_path):
    nodes = "z = Add(w, w); y = Add(x, z)"
    path = save(tmp_path, model(nodes, "float[4,8] x", "y, z", [weight("w", 4, 8)]))
    plan = lm.plan([lm.load(path)], npu(), effort=SEPARATE, mini_batches=2)
    found = run_plan(plan, [str(path)])
    assert found.violations == ()
    assert len(found.outputs) == 4


@pytest.mark.parametrize(
    ("nodes", "outputs"),
    [
        ("h = Cast<to=10>(x); a = Abs(h); y = Cast<to=1>(a); z = Expand(y, s)", "z"),
        ("h = Cast<to=10>(x); y = Cast<to=1>(h); z = Relu(y)", "z, y"),
        ("h = Cast<to=10>(x); m = MatMul(h, w); y = Cast<to=1>(m); z = Relu(y)", "z"),
    ],
)
def test_rounding_to_narrow_floats_that_a_precision_replaces_is_no_fault(tmp_path, nodes, outputs):
    """ONNX Runtime leaves out two casts that nobody looks between; a plan stores what was cast as
    it was."""
    weights = [constant("w", np.eye(15), np.float16), *constants(s=[2, 9, 15])]
    path = save(tmp_path, model(nodes, "float[9,15] x", outputs, weights))
    plan = planned(path, precision="int8")
    for seed in range(8):
        assert run_plan(plan, [str(path)], precision="int8", seed=seed).violations == ()


@pytest.mark.parametrize(
    ("parts", "grid"),
    [
        # ONNX Runtime adds up neighbouring channels in running sums, also those that a piece does
        # not have.
        (("y = LRN<size=3, alpha=0.5>(x); z = Abs(y)", "float[2,9,4,4] x", "z"), {1: 3}),
        # The told size says how its result is padded, not VALID.
        (
            (
                'y = ConvTranspose<strides=[3], auto_pad="VALID", output_shape=[4]>(x, w)',
                "float[1,2,4] x",
                "y",
                [weight("w", 2, 2, 3)],
            ),
            {2: 2},
        ),
    ],
    ids=["a normalisation across channels", "a transposed convolution of a told size"],
)
def test_an_operator_in_parts_along_a_dimension(tmp_path, parts, grid):
    path = save(tmp_path, model(*parts))
    (form,) = parts_of(graph := lm.load(path)).forms
    plan = planned_jobs(lm.lower([graph], npu(), cuts=[Cuts([form.grid(grid)])]), npu())
    assert run_plan(plan, [str(path)]).violations == ()


def test_a_product_that_quantises_all_of_an_operand_is_not_cut_along_its_rows(tmp_path):
    """The scale is that of the largest element of all rows."""
    product = "y = com.microsoft.DynamicQuantizeMatMul(x, w, s)"
    values = np.random.default_rng(1).integers(-100, 100, (64, 16))
    weights = [constant("w", values, "int8"), constant("s", 0.01, "float32")]
    path = save(tmp_path, model([product, "z = Abs(y)"], "float[8,64] x", "z", weights))
    product, _ = lm.load(path).ops
    assert product.axes == (1,)
    assert ran(path).violations == ()


def test_narrow_floats_are_compared_as_floats(tmp_path, monkeypatch):
    """They have a tolerance, and are not numbers in the same places."""
    monkeypatch.setattr("loadmaster.integrations.execute.model.runtime", lambda: "onnx.reference")
    nodes = "l = Log(x); y = Cast<to=16>(l); z = Cast<to=19>(l)"
    _, found = made(tmp_path, nodes, "float[8,16] x", "y, z")
    assert found.violations == ()
    assert all(each.tolerance > 0 for each in found.outputs)


@pytest.mark.parametrize(
    ("then", "result"),
    [("QuantizeLinear(y, s, n)", "int8"), ("Greater(y, s)", "bool"), ("Cast<to=1>(y)", "float32")],
)
def test_rounding_of_narrow_sums_is_no_fault_whatever_follows(tmp_path, then, result):
    """Float16 elements whose sum is rounded in another order are quantised, compared or widened."""
    generator = np.random.default_rng(0)
    weights = [
        constant("w", generator.normal(0, 0.05, (512, 64)), np.float16),
        constant("s", 0.02, np.float16),
        constant("n", 0, np.int8),
    ]
    nodes = f"y = MatMul(x, w); z = {then}"
    path = save(tmp_path, model(nodes, "float16[64,512] x", "z", weights))
    graph, machine = lm.load(path), copying(2, 2**20)
    cuts = [in_chains(graph, np.random.default_rng(1))]
    plan = planned_jobs(lm.lower([graph], machine, cuts=cuts), machine)
    assert any(tensor.summed for tensor in plan.tensors)
    found = run_plan(plan, [str(path)])
    assert found.violations == run_plan(plan, [str(path)], seed=1).violations == ()
    assert [each.type for each in found.outputs] == [result]


def test_the_evaluator_of_the_onnx_package_keeps_the_types_of_results(tmp_path, monkeypatch):
    """It computes Adam in float64."""
    monkeypatch.setattr("loadmaster.integrations.execute.model.runtime", lambda: "onnx.reference")
    adam = "[step] x2, v2, h2 = ai.onnx.preview.training.Adam(r, t, x, g, v, h)"
    inputs = "float r, int64 t, float[2] x, float[2] g, float[2] v, float[2] h"
    proto = model(adam, inputs, "x2, v2, h2")
    proto.opset_import.append(helper.make_opsetid("ai.onnx.preview.training", 1))
    path = save(tmp_path, proto)
    assert ran(path).violations == ()


def sparse(name):
    """Two ones on the diagonal of a matrix."""
    ones = numpy_helper.from_array(np.ones(2, dtype=np.float32), name)
    return helper.make_sparse_tensor(ones, numpy_helper.from_array(np.array([0, 9]), "at"), [8, 8])


@pytest.mark.parametrize(
    ("nodes", "inputs", "said"),
    [
        (
            "y = StringConcat(x, x)",
            "string[4] x",
            "tensor 'x' holds strings: only numbers can be run",
        ),
        (
            [node("Constant", [], "w", sparse_value=sparse("w")), "y = MatMul(x, w)"],
            "float[4,8] x",
            "net.onnx: 'w' is sparse: make it dense to run it",
        ),
        (
            "[noise] r = RandomUniformLike(x); y = Add(x, r)",
            "float[4,8] x",
            "net.onnx: operator 'noise' (RandomUniformLike) is random: take it out",
        ),
        (
            [
                either(
                    "c", "y", body("t = Relu(x)", "", "t"), body("t = Neg(x)", "", "t"), name="if"
                )
            ],
            "float[4,8] x, bool c",
            "net.onnx: operator 'if' (If) depends on operands: make them constants",
        ),
    ],
    ids=["strings", "a sparse constant", "a random operator", "a branch that an input chooses"],
)
def test_what_cannot_be_run_is_named(tmp_path, nodes, inputs, said):
    path = save(tmp_path, model(nodes, inputs, "y"))
    assert said in refused(ModelError, planned(path), path)


def test_sparse_initialisers_are_refused(tmp_path):
    proto = model("y = MatMul(x, w)", "float[4,8] x, float[8,8] w", "y")
    proto.graph.sparse_initializer.append(sparse("w"))
    del proto.graph.input[1:]
    path = save(tmp_path, proto)
    with pytest.raises(ModelError, match="sparse initialisers cannot be run: make them dense"):
        ran(path)


def test_a_result_whose_size_is_not_the_planned_one_is_named(tmp_path):
    """How many elements there are depends on values, and the file notes a number."""
    nodes = "i = NonZero(x); y = Neg(i)"
    path = save(tmp_path, model(nodes, "float[4,8] x", "y", value_info="int64[2,9] i"))
    found = ran(path)
    assert "'y' has 64 elements, and is planned as [2, 9]" in found.violations[0].message


def test_the_evaluator_of_the_onnx_package_does_where_onnx_runtime_is_not(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "loadmaster.integrations.execute.model.importlib.util.find_spec", lambda _: None
    )
    path = small(tmp_path, kind="Softmax")
    found = ran(path)
    assert (found.runtime, found.violations) == ("onnx.reference", ())


def test_the_same_seed_gives_the_same_answer(tmp_path):
    path = small(tmp_path)
    broken = planned(path)
    broken = replace(broken, jobs=tuple(replace(job, reads=job.reads[:1]) for job in broken.jobs))
    one, same, other = (run_plan(broken, [str(path)], seed=seed) for seed in (1, 1, 2))
    assert one == same
    assert one.violations
    assert one.violations != other.violations


def refused(kind, plan, *sources, **options):
    with pytest.raises(kind) as caught:
        run_plan(plan, [str(source) for source in sources], **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_an_operator_that_nothing_runs_is_named(tmp_path):
    nodes = "[product] y = MatMul(x, w); [then] z = acme.Mystery(y)"
    proto = model(nodes, "float[4,8] x", "z", [weight("w", 8, 6)])
    proto.graph.output[0].CopyFrom(info("z", (4, 6)))
    path = save(tmp_path, proto)
    text = refused(ModelError, planned(path), path)
    assert "net.onnx: onnxruntime cannot run the model (" in text
    assert "Mystery" in text


def test_what_is_dropped_at_random_is_so_in_training_alone(tmp_path):
    for training, refusal in (True, "operator 'drop' (Dropout) is random"), (False, None):
        weights = constants(half=0.5, training=training)
        nodes = "[drop] y = Dropout(x, half, training); z = Add(x, y)"
        path = save(tmp_path, model(nodes, "float[4,8] x", "z", weights))
        if refusal:
            assert refusal in refused(ModelError, planned(path), path)
        else:
            assert ran(path).violations == ()


def test_a_model_that_is_not_the_plans_is_refused(tmp_path):
    path, other = small(tmp_path), small(tmp_path, "other.onnx", "Tanh")
    plan = planned(path)
    nodes = "[product] y = MatMul(x, w); [afterwards] z = Relu(y)"
    (tmp_path / "changed").mkdir()
    renamed = save(
        tmp_path / "changed", model(nodes, "float[4,8] x", "z", [weight("w", 8, 6)]), "net.onnx"
    )
    assert "not one of these models" in refused(PlanError, plan, renamed)
    assert "give --precision as for the plan" in refused(PlanError, plan, path, precision="int8")
    assert "give one for each" in refused(PlanError, plan, path, other)
    assert "only ONNX models can be run" in refused(ModelError, plan, "torch:net:small")
    by_hand = lm.plan([residual_chain(1)], npu(), effort=SEPARATE)
    assert "not one of these models" in refused(PlanError, by_hand, path)


def test_random_values_stand_for_weights_that_are_not_there(tmp_path):
    _, found = made(tmp_path, "y = MatMul(x, w)", "float[4,8] x", "y", "float[8,6] w")
    assert (found.drawn, found.violations) == (1, ())


def test_a_file_of_weights_may_go_on_behind_them(tmp_path):
    path = save(tmp_path, model("y = MatMul(x, w)", "float[4,8] x", "y", [weight("w", 8, 6)]))
    whole = onnx.load(path)
    onnx.save(whole, path, save_as_external_data=True, location="weights", size_threshold=0)
    (held,) = whole.graph.initializer
    del held.external_data[:]
    held.external_data.add(key="location", value="weights")
    path.write_bytes(whole.SerializeToString())
    with (tmp_path / "weights").open("ab") as file:
        file.write(bytes(5000))
    found = ran(path)
    assert (found.drawn, found.violations) == (0, ())


def invoke(*words):
    done = run("verify", *words)
    return done.returncode, done.stdout, done.stderr


def test_the_command_shows_outputs_and_says_what_differs(tmp_path):
    path = small(tmp_path)
    plan = lm.plan([lm.load(path)], npu(2, 4096), effort=SEPARATE, mini_batches=2)
    file = plan.save(tmp_path / "plan.json")
    code, shown, _ = invoke(file, "--run", path, "--orders 2 --seed 5")
    assert code == 0
    assert "in 2 orders (seed 5)" in shown
    assert [line.split()[:4] for line in shown.splitlines() if line.startswith("net ")] == [
        ["net", "0", "z", "float32"],
        ["net", "1", "z", "float32"],
    ]
    code, shown, _ = invoke(file, "--run", path, "--quiet")
    assert (code, shown) == (0, "")
    printed = json.loads(invoke(file, "--run", path, "--json")[1])
    assert printed["valid"]
    assert [each["difference"] for each in printed["run"]["outputs"]] == [0, 0]


def test_the_command_says_what_differs(tmp_path):
    """Which rows of its operand a piece needs is nothing that the file alone can prove."""
    product = "[product] y = MatMul(x, w)"
    path = save(tmp_path, model(product, "float[4,64] x", "y", [weight("w", 64, 64)]))
    plan = lm.plan([lm.load(path)], npu(2, 4096), effort=SEPARATE, cut="none")
    parts = [tensor for tensor in plan.tensors if tensor.storage == "w"]
    assert len(parts) > 1
    turned = dict(zip(parts, (part.ranges for part in reversed(parts)), strict=True))
    swapped = replace(
        plan, tensors=tuple(replace(t, ranges=turned.get(t, t.ranges)) for t in plan.tensors)
    )
    assert lm.verify(swapped) == ()
    code, _, said = invoke(swapped.save(tmp_path / "plan.json"), "--run", path)
    assert code == 1
    assert "run: order 1 of seed 0: " in said
    printed = json.loads(invoke(tmp_path / "plan.json", "--run", path, "--json")[1])
    assert not printed["valid"]
    assert printed["violations"][0]["rule"] == "run"


def test_the_command_refuses_what_does_not_go_together(tmp_path):
    path = small(tmp_path)
    file = planned(path).save(tmp_path / "plan.json")
    for words in (
        ("--buffers", file, "--run", path),
        (file, "--precision fp32"),
        (file, "--run", path, "--target edge-npu"),
        (file, "--run", path, "--training"),
    ):
        assert invoke(*words)[0] == 2, words


def test_a_build_of_a_plan_that_does_not_hold_is_not_run(tmp_path):
    path = small(tmp_path)
    plan = planned(path)
    broken = replace(plan, jobs=plan.jobs[:-1])
    code, shown, said = invoke(broken.save(tmp_path / "plan.json"), "--run", path)
    assert (code, shown) == (1, "")
    assert "run:" not in said
