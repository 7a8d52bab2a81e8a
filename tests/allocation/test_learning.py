"""Learned backtrack targets: what the oracle records, how trees are fitted, kept and used."""

import importlib.util
import sys
from dataclasses import replace

import numpy as np
import pytest

import loadmaster as lm
from loadmaster.allocation.backtracking import learning
from loadmaster.allocation.backtracking.learning import (
    FEATURES,
    at_limits,
    bundled,
    fit,
    generated,
    record,
)
from loadmaster.allocation.backtracking.trees import Trees, read_trees, write_trees

learns = pytest.mark.skipif(
    importlib.util.find_spec("sklearn") is None, reason="scikit-learn is not installed"
)


@pytest.fixture(scope="module")
def samples():
    return record(at_limits(generated(4, 1)))


def stump(threshold, left, right):
    """One tree that asks for the rank from the latest only."""
    nodes = [np.array(column) for column in ([0], [0, -1, -1], [1, 0, 0], [2, 0, 0])]
    return Trees(*nodes, np.array([threshold, 0, 0]), np.array([0, left, right]))


@pytest.mark.slow
def test_the_oracle_tries_every_target_of_a_choice(samples):
    groups = [
        samples.regret[samples.group == group] for group in range(int(samples.group.max()) + 1)
    ]
    assert len(groups) > 10
    assert all(len(regret) > 1 and regret.min() == 0 for regret in groups)
    assert samples.features.shape == (len(samples.cost), len(FEATURES))
    assert np.isfinite(samples.features).all()
    assert (samples.cost > 0).all()


def test_generated_sets_differ_by_seed_and_have_what_they_need():
    one, same, other = (list(generated(3, seed)) for seed in (5, 5, 6))
    assert (
        [p.size.tolist() for p in one]
        == [p.size.tolist() for p in same]
        != [p.size.tolist() for p in other]
    )
    assert all(p.solid.all() for p in one)


@learns
@pytest.mark.slow
def test_trees_learn_what_costs(samples):
    """Where the cost is the rank from the latest, the fitted trees say so, with the values of
    scikit-learn itself."""
    known = replace(samples, cost=samples.features[:, 0] * 300)
    trees = fit(known, trees=20)
    assert fit(known, trees=20).value.tolist() == trees.value.tolist()
    guess = np.array([predict(trees, row) for row in known.features])
    assert np.corrcoef(guess, known.regret)[0, 1] > 0.9
    with pytest.raises(lm.AllocationError, match="harder to pack"):
        fit(record([]))


def predict(trees, row):
    total = 0.0
    for node in trees.root:
        while trees.feature[node] >= 0:
            node = (
                trees.left[node]
                if row[trees.feature[node]] <= trees.threshold[node]
                else trees.right[node]
            )
        total += trees.value[node]
    return total


def test_trees_choose_the_target():
    problem = next(generated(1, 2))
    results = {}
    for name, trees in {
        "none": None,
        "latest": stump(0.5, 0, 1),
        "earlier": stump(0.5, 1, 0),
        "bundled": bundled(),
    }.items():
        run = lm.TelaMalloc(problem, 2**20, lm.TelaMallocOptions(trees=trees, steps=2000))
        offsets = run.run()
        results[name] = run.counts
        assert offsets is None or lm.verify_buffers(problem, offsets, 2**20) == ()
    assert results["none"] == results["latest"]
    assert results["none"] != results["earlier"]


def test_files_keep_trees(tmp_path):
    file = tmp_path / "trees.json"
    write_trees(file, bundled())
    assert all((a == b).all() for a, b in zip(read_trees(file), bundled(), strict=True))
    for text in (
        "",
        "[]",
        "{}",
        '{"format": "another"}',
        '{"format": "loadmaster trees 1", "root": ["x"]}',
    ):
        file.write_text(text)
        with pytest.raises(
            lm.AllocationError, match=r"trees.json: is no model of backtrack targets"
        ):
            read_trees(file)
    with pytest.raises(lm.AllocationError, match="cannot be read"):
        read_trees(tmp_path / "nothing.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"left": np.array([0, 0, 0])}, "after its parent"),
        ({"right": np.array([9, 0, 0])}, "after its parent"),
        ({"feature": np.array([99, -1, -1])}, "unknown feature"),
        ({"root": np.array([3])}, "root is no node"),
        ({"value": np.empty(0)}, "different lengths"),
    ],
)
def test_trees_that_would_run_in_circles_are_refused(change, message):
    problem = next(generated(1, 0))
    with pytest.raises(ValueError, match=message):
        lm.TelaMalloc(
            problem, 2**20, lm.TelaMallocOptions(trees=stump(0.5, 0, 1)._replace(**change))
        ).run()


def test_a_missing_package_is_named_before_the_work(tmp_path, monkeypatch, capsys):
    def work(*arguments):
        raise AssertionError("searches were recorded before the package was found missing")

    monkeypatch.setitem(sys.modules, "sklearn.ensemble", None)
    monkeypatch.setattr(learning, "record", work)
    monkeypatch.setattr(sys, "argv", ["learning", "--output", str(tmp_path / "model.json")])
    with pytest.raises(SystemExit) as ended:
        learning.main()
    assert ended.value.code == 2
    assert "learning needs sklearn, which is not installed: pip install" in capsys.readouterr().err
