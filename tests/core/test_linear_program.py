"""Programs grow, and are solved from several threads at once."""

import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from loadmaster.core.linear_program import LinearProgram


def test_threads_solve_at_once():
    started = threading.Barrier(4)

    def solved(_):
        started.wait()
        values = []
        for _ in range(30):
            model = LinearProgram("a test", interruptible=True)
            model.columns(np.array([1.0, 2.0]), 0.0, 1.0)
            model.entries(model.rows(1.0, np.inf), np.arange(2), 1.0)
            values.append(model.solve().objective)
        return values

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(solved, range(4))) == [[1.0] * 30] * 4


def test_programs_grow_between_solutions():
    program = LinearProgram("a test")
    columns = program.columns(np.array([1.0, 2.0]))
    program.entries(program.rows(1.0, np.inf), columns, 1.0)
    assert program.solve().values.tolist() == [1.0, 0.0]
    cheap = program.columns(0.5)
    # Entries of the same row and column are one.
    program.entries(0, cheap, 0.25)
    program.entries(0, cheap, 0.75)
    assert program.solve().objective == 0.5
    program.rows(-np.inf, 0.25, (cheap, 1.0))
    assert program.solve().objective == 0.875
    assert program.solve(integers=cheap).values.tolist() == [1.0, 0.0, 0.0]
    program.bound_columns(columns, 0.0, 0.0)
    solved = program.solve()
    assert solved.infeasible
    assert not len(solved.values)
    assert len(program.infeasible_ray()) == 2


def test_rows_may_have_entries_of_any_size():
    program = LinearProgram("a test")
    program.rows(1e18, np.inf, (program.columns(1.0), 1e18))
    assert program.solve().values.tolist() == [1.0]


@pytest.mark.parametrize("call", ["startSolve", "wait"])
def test_an_interrupt_inside_the_solver_package_leaves_no_lock_behind(monkeypatch, call):
    """It escaped from there, and later programs failed: the solver was said to be running."""
    program = LinearProgram("a test", interruptible=True)
    program.rows(1.0, np.inf, (program.columns(np.ones(1)), 1.0))
    original = getattr(program._solver, call)

    def interrupted(*arguments):
        signal.raise_signal(signal.SIGINT)
        return original(*arguments)

    monkeypatch.setattr(program._solver, call, interrupted)
    assert program.solve().interrupted
    monkeypatch.undo()
    again = program.solve()
    assert (again.interrupted, again.objective) == (False, 1.0)
