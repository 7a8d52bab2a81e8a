"""Dumps that planners write today, of small programs: read, found to hold, and compared."""

import pytest
from benchmarks.planners.dumps import PLANNERS, is_installed
from fixtures.make_planner_dumps import STEP, branches
from tests.support.needs import TOOLCHAIN
from tests.support.planner_dumps import FIXTURES

from loadmaster.integrations.dumps.compare import compare
from loadmaster.integrations.dumps.readers.registry import READERS


def program(kind, folder):
    if kind == ".tflite":
        return FIXTURES / "wake-words.tflite"
    path = folder / f"program{kind}"
    path.write_bytes(STEP.encode() if kind == ".py" else branches().SerializeToString())
    return path


@pytest.mark.parametrize("planner", PLANNERS)
def test_what_a_planner_writes_today_is_read_and_holds(planner, tmp_path):
    dump, kind, module, _ = PLANNERS[planner]
    if not is_installed(module):
        pytest.skip(TOOLCHAIN)
    (tmp_path / "dumps").mkdir()
    arenas = READERS.find(planner)(dump(program(kind, tmp_path), tmp_path / "dumps"))
    for arena in arenas:
        found = compare(arena)
        assert found.violations == ()
        assert arena.taken is not None
        assert found.answer.lower_bound <= arena.taken
        assert found.answer.status == "optimal"
    assert max(len(arena.problem) for arena in arenas) > 3
