"""What every command prints with ``--json`` is what its schema says, and no more; schemas and the
page of the documents are made from the types.

`calibrate`, `run` and `export iree` are held where they are tested.
"""

import json
import re
import runpy
from pathlib import Path

import numpy as np
import pytest
from tests.support.command_line import run
from tests.support.edits import job
from tests.support.efforts import SEPARATE
from tests.support.json_schema import KEYWORDS, SCHEMAS, conforms, errors, parts
from tests.support.needs import FIXTURES
from tests.support.networks import npu, residual_chain
from tests.support.onnx_builder import constant, model, save
from tests.support.tables import column

import loadmaster as lm
import loadmaster.planning
from loadmaster.planning.plan import plan_to_text

ROOT = Path(__file__).parents[2]
BUFFERS, DUMP, JOBS, MODEL = (
    FIXTURES / name
    for name in ("buffers.csv", "planners/branches.json", "jobs.csv", "wake-words.tflite")
)
NETWORK = "onnx:squeezenet --target edge-npu --precision int8"
MAP = ("map", JOBS, "--target m3e-s2 --samples 100")
PLACE = "place onnx:squeezenet --target optane-server --strategy"
LANGUAGE = """
def llama(batch=1):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
    config = LlamaConfig(vocab_size=64, **sizes)
    return LlamaForCausalLM(config), {"input_ids": torch.arange(8).reshape(1, 8)}
"""
COMMANDS = {
    "allocate": [
        ("allocate", BUFFERS),
        ("allocate", BUFFERS, "--capacity 1000"),
        ("allocate", BUFFERS, "--capacity 64KiB"),
        ("allocate", MODEL),
    ],
    "allocate-memories": [
        ("allocate", BUFFERS, "--memory sram=32KiB --memory dram"),
        ("allocate", BUFFERS, "--memory sram=1000"),
    ],
    "allocate-from": [("allocate --from onnxruntime", DUMP)],
    "export-tflite": [("export tflite", MODEL, "--out planned.tflite --scratch none")],
    "inspect": ["inspect onnx:squeezenet"],
    "map": [MAP, "map onnx:squeezenet --target m3e-s2 --samples 20 --deadline squeezenet=1us"],
    "map-front": [(MAP, "--objective makespan,energy")],
    "place": [
        f"{PLACE} all-slow",
        f"{PLACE} lru --fast 60% --explain data_0 --curve",
        f"{PLACE} lru --max-slowdown 1.1",
    ],
    "sweep": [f"plan {NETWORK} --cut none --sweep scratchpad=256B,1MiB --workers 1 --fps 100"],
    "size": [
        f"size {NETWORK} --vary bandwidth=1GB/s,16GB/s --makespan 400us",
        f"size {NETWORK} --vary bandwidth=1GB/s,2GB/s --energy 1nJ",
    ],
    "targets": ["targets", "targets edge-npu"],
}
PLAN_FILE = json.loads((Path(loadmaster.planning.__file__).parent / "plan.schema.json").read_text())
ELSEWHERE = {"calibrate", "export-iree", "run"}
EVERYWHERE = column("""
    seconds
    cpu_seconds
    seed
    strategy
    interrupted
    counters
    costs
    violations
    network
    notes
    files
""")
"""What means the same in every object that has it."""


def printed(*arguments, cwd=None):
    done = run(*arguments, "--json", cwd=cwd)
    # On a busy machine commands tell their progress.
    said = [line for line in done.stderr.splitlines() if not line.endswith(" s so far")]
    assert not said or done.returncode
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "command"), [(name, each) for name, all_ in COMMANDS.items() for each in all_]
)
def test_an_object_is_what_its_schema_says(name, command, tmp_path):
    conforms(name, printed(command, cwd=tmp_path))


@pytest.mark.slow
def test_plans_and_what_becomes_of_them_are_what_their_schemas_say(tmp_path):
    made = ("plan", NETWORK, "--no-report --mini-batches 2 --deadline squeezenet=1us --out")
    conforms("plan", printed(made, tmp_path))
    file = tmp_path / "plan.json"
    broken = job("net/fc@0", operators=()).save(tmp_path / "broken.json")
    assert list(errors(PLAN_FILE, json.loads(file.read_text()))) == []
    conforms("verify", printed("verify", file))
    found = printed("verify", broken)
    conforms("verify", found)
    assert found["violations"]
    conforms("report", printed("report", file, file))


def test_a_plan_that_is_run_is_what_its_schema_says(tmp_path):
    weight = constant("w", np.ones((8, 6)), np.float32)
    path = save(tmp_path, model("[product] y = MatMul(x, w)", "float[4,8] x", "y", [weight]))
    plan = lm.plan([lm.load(path)], npu(2, 4096), effort=SEPARATE).save(tmp_path / "plan.json")
    shown = printed("verify", plan, "--run", path)
    conforms("verify", shown)
    assert shown["run"]["outputs"]


def test_a_profile_is_what_its_schema_says(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setenv("LOADMASTER_CACHE", str(tmp_path / "cache.sqlite"))
    monkeypatch.setattr("loadmaster.cost.kernels.profile.measure", lambda *_: 1.0)
    command = "profile torch:tests.support.factories:layers --training --batch 64 --threads 1"
    conforms("profile", printed(command, "--slow", tmp_path))


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_generation_is_what_its_schema_says(tmp_path):
    pytest.importorskip("transformers")
    (tmp_path / "tiny_language.py").write_text(LANGUAGE)
    command = "run torch:tiny_language:llama --generate 3 --fast 16MiB"
    conforms("generate", printed(command, cwd=tmp_path))


def test_every_schema_is_held_to_something():
    others = {"plan", "verify", "report", "generate", "profile"}
    assert COMMANDS.keys() | others | ELSEWHERE == SCHEMAS.keys()


@pytest.mark.parametrize("name", [*SCHEMAS, "plan.json"])
def test_a_schema_describes_everything_and_leaves_nothing_open(name):
    whole = SCHEMAS.get(name, PLAN_FILE)
    assert whole["properties"]["version"]["const"] >= 1
    assert {"version", *(["files"] if name in SCHEMAS else [])} <= set(whole["required"])
    for where, part in parts(
        {key: value for key, value in whole.items() if key not in ("$schema", "title")}, name
    ):
        assert part.keys() <= KEYWORDS, where
        if "properties" in part:
            assert part["additionalProperties"] is False, where
            assert set(part["required"]) <= part["properties"].keys(), where
            assert all(each["description"].endswith(".") for each in part["properties"].values()), (
                where
            )


@pytest.mark.parametrize("cut", ["auto", "none"])
def test_plans_are_what_the_schema_of_plan_files_says(cut):
    """Pieces with ranges, copies and private buffers, and a machine that copies every operand."""
    timed = {"periods": {"chain": 1e-3}, "deadlines": {"chain": 1e-9}, "mini_batches": 2}
    for machine, options in ((npu(2, 4096), timed), (lm.target("gpu-pcie"), {})):
        plan = lm.plan([residual_chain(2)], machine, effort=SEPARATE, cut=cut, **options)
        assert list(errors(PLAN_FILE, json.loads(plan_to_text(plan)))) == []


@pytest.mark.parametrize("field", EVERYWHERE)
def test_a_name_means_the_same_in_every_object(field):
    every = [schema["properties"] for schema in SCHEMAS.values()]
    assert len({json.dumps(each[field]) for each in every if field in each}) == 1


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"valid": 1}, "$.valid: 1 is no boolean"),
        ({"version": 0}, "$.version: 0 is not 1"),
        ({"more": 1}, "$: more is not documented"),
        ({"violations": [{"rule": "overlap"}]}, "$.violations[0]: message is missing"),
    ],
)
def test_what_is_not_in_a_schema_is_noticed(change, why):
    right = {"version": 1, "valid": True, "violations": [], "files": []}
    conforms("verify", right)
    assert list(errors(SCHEMAS["verify"], right | change)) == [why]


UNITS = (
    r"second|byte|joule|square mill|share|ratio|number|count|how many|index|operation|in elements"
    r"|seed|version|percent|per |address|unit|instant|difference|slowdown|relative|over its"
    r"|times|of them"
)


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_figure_says_its_unit(name):
    for where, part in parts(SCHEMAS[name], "$"):
        kinds = {each.get("type") for each in (part, *part.get("anyOf", ()))}
        if kinds & {"number", "integer"}:
            said = part.get("description", "seconds")
            assert re.search(UNITS, said, flags=re.IGNORECASE), f"{where}: {said}"


@pytest.mark.slow
def test_schemas_and_the_page_of_the_documents_are_up_to_date():
    made = runpy.run_path(str(ROOT / "docs" / "json_page.py"))
    schemas = made["schemas"]()
    texts = {file: made["text"](schema) for file, schema in schemas.items()}
    texts[ROOT / "docs" / "reference" / "json.md"] = made["page"](schemas.values())
    written = {*made["SCHEMAS"].iterdir()} | texts.keys()
    old = [file.name for file in written if texts.get(file) != file.read_text()]
    assert not old, "run: python docs/json_page.py"
