"""Which tensors move, under limits at every kernel: the engine that the runtime asks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadmaster.kernel_sequence import KernelSequence
from loadmaster.tensor_placement import Mode, Move, Stay, TensorPlacement


def place_for_runtime(sequence: KernelSequence, limits: NDArray[np.int64], mode: Mode) -> tuple[TensorPlacement, float]:
    """Stays and moves that keep ``limits`` (bytes of tensors and workspace while each kernel runs), and the seconds they are said to take.

    Evicts, where the limit is most exceeded, the tensor whose absence frees most bytes for longest; then lets copies overlap kernels as far as
    there is room.
    """
    kernels = len(sequence.kernels)
    sizes = sequence.sizes
    live = sequence.live_bytes()
    gaps: list[tuple[int, int, int]] = []
    for t, uses in enumerate(sequence.uses):
        gaps += [(t, a + 1, b) for (a, _), (b, _) in zip(uses, uses[1:], strict=False) if b > a + 1]
    chosen: set[int] = set()
    starts, ends = np.array([g[1] for g in gaps], dtype=np.int64), np.array([g[2] for g in gaps], dtype=np.int64)
    worth = np.array([int(sizes[g[0]]) * (g[2] - g[1]) for g in gaps], dtype=np.float64)
    while kernels and (live - limits).max() > 0:
        k = int((live - limits).argmax())
        able = np.flatnonzero((starts <= k) & (k < ends) & (worth > 0))
        if not len(able):
            break
        g = int(able[worth[able].argmax()])
        chosen.add(g)
        worth[g] = 0
        live[starts[g] : ends[g]] -= sizes[gaps[g][0]]
    return _decided(sequence, limits, live, sorted(gaps[g] for g in chosen), mode)


def _decided(
    sequence: KernelSequence, limits: NDArray[np.int64], live: NDArray[np.int64], gaps: list[tuple[int, int, int]], mode: Mode
) -> tuple[TensorPlacement, float]:
    seconds = np.array([k.algorithms[0].seconds for k in sequence.kernels])
    link, sizes = sequence.link, sequence.sizes
    moves: list[Move] = []
    absent: dict[int, list[tuple[int, int]]] = {}
    written: set[int] = set()
    total = float(seconds.sum())
    for t, start, end in gaps:
        out, back = start, end
        if mode is Mode.ASYNC:
            need = sequence.tensors[t].bytes / link.asynchronous_to_slow
            while t not in written and out < end - 1 and need > 0 and live[out] + sizes[t] <= limits[out]:
                need -= seconds[out]
                live[out] += sizes[t]
                out += 1
            need = sequence.tensors[t].bytes / link.asynchronous_to_fast
            while back > out + 1 and need > 0 and live[back - 1] + sizes[t] <= limits[back - 1]:
                back -= 1
                need -= seconds[back]
                live[back] += sizes[t]
        if t not in written:
            moves.append(Move(t, False, start, out))
            total += sequence.tensors[t].bytes / link.to_slow if out == start else 0
        if not any(o.write for k, o in sequence.uses[t] if k >= start):
            written.add(t)
        moves.append(Move(t, True, back, end))
        total += sequence.tensors[t].bytes / link.to_fast if back == end else 0
        absent.setdefault(t, []).append((out, back))
    stays: list[Stay] = []
    for t, (start, end) in enumerate(sequence.lifetimes.tolist()):
        for low, high in absent.get(t, []):
            stays.append(Stay(t, start, low))
            start = high
        if end > start:
            stays.append(Stay(t, start, end))
    moves.sort(key=lambda move: (move.start, move.to_fast, move.end))
    return TensorPlacement(tuple(stays), tuple(moves), (0,) * len(sequence.kernels)), total
