"""Executors that plan the points of a sweep: processes of this machine, or a Dask cluster."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from types import FrameType
from typing import Any

from loadmaster.core.errors import PlanError, package

_SCHEME = "dask://"
_CONNECT_TIMEOUT = "10s"
_GRACE = 0.2
"""Seconds to wait for an interrupt that ended the workers to reach this process."""
_INTERRUPTS: list[int] = []
_GO_ON = "finished points are kept: run the same command again"


class _Processes(ProcessPoolExecutor):
    """Processes that start with Ctrl-C blocked, which would end their imports in a traceback."""

    def __exit__(self, *_: object) -> None:
        """Begin no further call."""
        self.shutdown(cancel_futures=True)

    def submit(self, *call: Any, **named: Any) -> Future[Any]:
        """Submit a call; the first starts the processes, which inherit what is blocked."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return super().submit(*call, **named)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def local_processes(count: int | None = None) -> Iterator[Executor]:
    """An executor of ``count`` processes, by default one per available processor.

    Processes are spawned, not forked, because solvers have threads: a script that calls this needs
    ``if __name__ == "__main__":``.

    Raises
    ------
    PlanError
        If a process is ended from outside.
    """
    count = count or os.cpu_count() or 1
    _INTERRUPTS.clear()
    with (
        _interrupts_noted(),
        _Processes(
            count, multiprocessing.get_context("spawn"), initializer=_end_at_interrupt
        ) as executor,
    ):
        try:
            yield executor
        except BrokenExecutor:
            if _interrupted():
                return
            raise PlanError(
                "a process that planned was ended from outside, perhaps for want of memory, or"
                f" the script has no `if __name__ == '__main__'`: {_GO_ON}, with fewer --workers"
            ) from None


@contextmanager
def _interrupts_noted() -> Iterator[None]:
    """Record Ctrl-C within the block if Python's default handler is installed; restore the handler
    afterwards."""
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield
        return
    signal.signal(signal.SIGINT, _note_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _interrupted() -> bool:
    """Whether workers have ended because of Ctrl-C; their end may be noticed before the
    interrupt."""
    try:
        time.sleep(_GRACE)
    except KeyboardInterrupt:
        return True
    return bool(_INTERRUPTS)


def _note_interrupt(number: int, frame: FrameType | None) -> None:
    """Note a Ctrl-C and raise it."""
    _INTERRUPTS.append(number)
    signal.default_int_handler(number, frame)


def _end_at_interrupt() -> None:
    """Initialise a worker so that Ctrl-C ends it, instead of returning a plan stopped early."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


@contextmanager
def dask_cluster(address: str) -> Iterator[Executor]:
    """An executor on the Dask scheduler at ``dask://host:port``; points of a lost worker are
    planned again by another.

    Raises
    ------
    MissingPackageError
        If Dask is not installed.
    PlanError
        If the address is malformed, or the scheduler does not answer.
    """
    host, _, port = address.removeprefix(_SCHEME).rpartition(":")
    if not address.startswith(_SCHEME) or not host or not port.isdecimal():
        raise PlanError(
            f"--cluster {address!r}: write dask://host:port, the address of a Dask scheduler"
        )
    distributed = package("distributed", "--cluster")
    lost = (
        distributed.KilledWorker,
        package("distributed.comm", "--cluster").CommClosedError,
        CancelledError,
    )
    try:
        client = distributed.Client(
            f"tcp://{host}:{port}", timeout=_CONNECT_TIMEOUT, set_as_default=False
        )
    except (OSError, TimeoutError) as error:
        raise PlanError(
            f"--cluster {address!r}: no Dask scheduler answers there: {error}"
        ) from None
    with client:
        try:
            yield client.get_executor(pure=False)
        except lost as error:
            raise PlanError(
                f"--cluster {address!r}: the cluster gave up: {error}: {_GO_ON}"
            ) from None
