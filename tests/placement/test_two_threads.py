"""Programs are solved from several threads at once."""

import threading

import numpy as np

from loadmaster.placement.autotm.linear_model import LinearModel


def test_two_threads_solve_at_once() -> None:
    values: list[float] = []
    started = threading.Barrier(4)

    def work() -> None:
        started.wait()
        for _ in range(30):
            model = LinearModel()
            model.columns(np.array([1.0, 2.0]), 0.0, 1.0)
            model.rows(np.array([1.0]), np.array([np.inf]))
            model.entries(np.array([0, 0]), np.array([0, 1]), np.array([1.0, 1.0]))
            values.append(model.solve().objective)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert values == [1.0] * 120
