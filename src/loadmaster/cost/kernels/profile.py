"""Times kernels on this machine: each one alone, with torch, for every combination of places of its
largest operands.

The fast memory is the machine's own; the slow one is a folder, in which every operand is a mapped
file. Its pages are written back and dropped from the system's cache before each run, so that a
kernel reads from the folder's device, and what it writes is flushed before the clock stops.
"""

from __future__ import annotations

import json
import mmap
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any

from loadmaster.core.errors import PlacementError
from loadmaster.core.progress import Deadline, Progress, no_progress
from loadmaster.cost.kernels.kernel_times import (
    Case,
    KernelTimes,
    case_of,
    conditions,
    default_threads,
)
from loadmaster.workloads.graph import FREE, Graph

_FILL = 0.5
"""The value of floating-point operands; integers are 0, which is a valid index everywhere."""


@dataclass
class Profile:
    """The result of a profile with so many threads: measurements made, found from before, and left
    for the next time.

    ``too_large`` names kernels whose operands do not fit into half of the memory that is free,
    ``failed`` those that could not be run by themselves, with the reason.
    """

    threads: int
    measured: int = 0
    reused: int = 0
    left: int = 0
    interrupted: bool = False
    too_large: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


def profile(
    graph: Graph,
    times: KernelTimes,
    *,
    slow: Path,
    threads: int | None = None,
    repeats: int = 3,
    time_limit: float | None = None,
    progress: Progress | None = None,
) -> Profile:
    """Measure every kernel of a graph that is not in ``times`` yet; equal ones once.

    Parameters
    ----------
    graph
        Captured from a torch module.
    times
        Where measurements are kept, each as soon as it is made.
    slow
        Folder of the slow memory.
    threads
        Threads that torch uses; its default if not given.
    repeats
        Runs of each measurement after one that does not count; the median is kept.
    time_limit
        Seconds after which no measurement begins. Ctrl-C ends a profile too; both leave what was
        measured.

    Raises
    ------
    PlacementError
        No operator of the graph can be run, or the folder cannot be written.
    """
    ops = [op for op in graph.ops if op.op_class not in FREE]
    if not any(op.invocation for op in ops):
        raise PlacementError(
            f"{graph.source}: its operators cannot be run here: profile a torch module,"
            " torch:module.path:factory"
        )
    import torch

    done = Profile(threads or default_threads())
    label = _device(slow)
    report = progress or no_progress
    todo = _todo(graph, ops, times, label, done)
    deadline, before = Deadline.within(time_limit), torch.get_num_threads()
    torch.set_num_threads(done.threads)
    try:
        for number, (name, case, places, key) in enumerate(todo):
            if deadline.passed():
                done.interrupted = True
                break
            report("measuring", number / len(todo))
            if name in done.failed:
                continue
            try:
                seconds = measure(case, places, slow, repeats)
            except (RuntimeError, TypeError, ValueError, IndexError, AttributeError) as error:
                done.failed[name] = " ".join(str(error).split())[:200]
                continue
            times.put(key, label, seconds)
            done.measured += 1
    except KeyboardInterrupt:
        done.interrupted = True
    finally:
        torch.set_num_threads(before)
    done.left = len(todo) - done.measured - sum(name in done.failed for name, *_ in todo)
    return done


def _todo(
    graph: Graph,
    ops: Sequence[Any],
    times: KernelTimes,
    label: str,
    done: Profile,
) -> list[tuple[str, Case, tuple[int, ...], str]]:
    """List the measurements to make, each once: the kernel's name, its case, the storages that are
    slow, and the key."""
    known, room, todo, seen = times.all(), _free_bytes() // 2, [], set()
    setting = conditions(done.threads)
    for op in ops:
        case = case_of(graph, op)
        if case is None:
            done.failed[op.name] = "it has arguments that cannot be written down"
        elif sum(case.bytes) > room:
            done.too_large.append(op.name)
        else:
            for places in case.combinations:
                key = case.key(places, setting)
                if key not in seen and known.get(key, (0.0, ""))[1] == label:
                    done.reused += 1
                elif key not in seen:
                    todo.append((op.name, case, places, key))
                seen.add(key)
    return todo


def _device(folder: Path) -> str:
    """Name the device of the slow memory; measurements on another device are made again."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
        return f"device {os.stat(folder).st_dev}"
    except OSError as error:
        raise PlacementError(
            f"--slow {folder}: cannot be written: {error.strerror or error}"
        ) from None


def _free_bytes() -> int:
    """Return the bytes of memory that programs can still allocate."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(
            1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable")
        )
    except (OSError, StopIteration, ValueError):
        return 2**32


def measure(case: Case, slow: Sequence[int], folder: Path, repeats: int) -> float:
    """Measure the median seconds of a call with the storages ``slow`` in mapped files of ``folder``
    and the others in memory."""
    import torch

    name, args, kwargs = json.loads(case.invocation.text)
    with (
        tempfile.TemporaryDirectory(dir=folder) as place,
        ExitStack() as files,
        torch.no_grad(),
    ):
        room = _Room(Path(place), files)
        owners = iter(case.storage_of)
        made: list[Any] = []

        def tensor(spec: Any) -> Any:
            """Return an operand, in a mapped file if the combination says so."""
            made.append(room.tensor(*spec, in_file=next(owners) in slow))
            return made[-1]

        args, kwargs = _decode(args, tensor), _decode(kwargs, tensor)
        run = reduce(getattr, name.split("."), torch.ops)
        fresh = [owner in slow for owner in owners]
        call = (
            _writing(run, args, kwargs, fresh, made, room)
            if any(fresh)
            else lambda: run(*args, **kwargs)
        )
        room.timed(call)
        return statistics.median(room.timed(call) for _ in range(repeats))


def _writing(
    run: Any, args: Any, kwargs: Any, fresh: list[bool], made: list[Any], room: _Room
) -> Callable[[], Any]:
    """Make a call whose results end in files where they should: written there if the operator can,
    else copied."""
    import torch
    from torch.utils import _pytree as pytree

    given = {tensor.data_ptr() for tensor in made}

    def results() -> list[Any]:
        """Run the operator and return its new tensors."""
        return [
            each
            for each in pytree.tree_leaves(run(*args, **kwargs))
            if isinstance(each, torch.Tensor) and each.data_ptr() not in given
        ]

    targets = [
        room.tensor(str(each.dtype).removeprefix("torch."), each.shape, each.stride(), in_file=True)
        if in_file
        else None
        for each, in_file in zip(results(), fresh, strict=True)
    ]
    direct = _out_variant(run) if len(targets) == 1 else None
    if direct is not None:
        return lambda: direct(*args, **kwargs, out=targets[0])

    def copying() -> None:
        """Run the operator and copy its results to their places."""
        for each, target in zip(results(), targets, strict=True):
            if target is not None:
                target.copy_(each)

    return copying


def _out_variant(run: Any) -> Any:
    """Return the overload that writes its only result into an argument ``out`` and has the same
    other arguments; None without one."""
    packet = run.overloadpacket
    wanted = [(each.name, str(each.type)) for each in run._schema.arguments]
    for overload in packet.overloads():
        found = getattr(packet, overload)
        arguments = found._schema.arguments
        out = [each.name for each in arguments if each.is_out]
        rest = [(each.name, str(each.type)) for each in arguments if not each.is_out]
        if out == ["out"] and rest == wanted:
            return found
    return None


def _decode(value: Any, tensor: Callable[[Any], Any]) -> Any:
    """Return arguments from their JSON, in the order in which they were written."""
    import torch

    if isinstance(value, list):
        return [_decode(item, tensor) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        (key, said), *_ = value.items()
        if key == "tensor":
            return tensor(said)
        if key in ("dtype", "layout", "format") and isinstance(said, str):
            return getattr(torch, said)
        if key == "device" and isinstance(said, str):
            return torch.device(said)
    return {key: _decode(item, tensor) for key, item in value.items()}


class _Room:
    """Tensors for one measurement, in memory or in mapped files of a folder.

    Files are closed by the stack. Maps go when the last tensor in them does: closing one that is in
    use is an error.
    """

    def __init__(self, folder: Path, files: ExitStack) -> None:
        self._folder, self._files = folder, files
        self._maps: list[tuple[int, mmap.mmap]] = []

    def tensor(
        self, dtype: str, shape: Sequence[int], strides: Sequence[int], *, in_file: bool
    ) -> Any:
        """A tensor of that layout, filled."""
        import torch

        kind = getattr(torch, dtype)
        last = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        count = 0 if 0 in shape else 1 + last
        flat = (
            self._map_file(count * kind.itemsize).view(kind)
            if in_file and count
            else torch.empty(count, dtype=kind)
        )
        flat.fill_(_FILL if kind.is_floating_point else 0)
        return flat.as_strided(tuple(shape), tuple(strides))

    def _map_file(self, size: int) -> Any:
        """Return ``size`` bytes of slow memory as a tensor over a new mapped file."""
        import torch

        descriptor, _ = tempfile.mkstemp(dir=self._folder)
        self._files.callback(os.close, descriptor)
        os.posix_fallocate(descriptor, 0, size)
        mapped = mmap.mmap(descriptor, size)
        self._maps.append((descriptor, mapped))
        return torch.frombuffer(mapped, dtype=torch.uint8)

    def timed(self, call: Callable[[], Any]) -> float:
        """Return the seconds of one call that begins without the files' pages in memory, and ends
        with all of them written."""
        for descriptor, mapped in self._maps:
            mapped.flush()
            mapped.madvise(mmap.MADV_DONTNEED)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        started = time.perf_counter()
        call()
        for _, mapped in self._maps:
            mapped.flush()
        return time.perf_counter() - started
