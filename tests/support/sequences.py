"""Small random kernel sequences and placements, for tests that compare with slow references."""

import math
import random
from dataclasses import replace

import numpy as np

from loadmaster.placement.decisions import Mode, Move, Stay, TensorPlacement, fast_bytes
from loadmaster.placement.sequence import (
    Algorithm,
    CopyLink,
    Kernel,
    KernelOperand,
    KernelSequence,
    StoredKind,
    StoredTensor,
)
from loadmaster.placement.sequence_json import object_in, sequence_from_object
from loadmaster.placement.timing import time_moves
from loadmaster.placement.verify import broken_placement_rules


def holds(sequence, placement, mode=Mode.ASYNC):
    """Whether the verifier accepts a placement, whatever it takes of the fast memory."""
    return not any(broken_placement_rules(sequence, placement, 2**62, mode))


def replayed(sequence, placement, mode, limits):
    """When kernels and copies of a placement run, which must hold and keep the limits."""
    assert holds(sequence, placement, mode)
    assert (fast_bytes(sequence, placement) <= limits).all()
    return time_moves(sequence, placement)


def sequence_from_text(text, name):
    return sequence_from_object(object_in(text, name), name)


def random_sequence(seed, *, kernels=6, tensors=5, in_place=True, choices=True, hard=False):
    """Tensors of every kind, kernels that read, write and update them; `choices` adds algorithms
    and measured tables, and `hard` what has no bytes, no operands, or no time in some places."""
    rng = random.Random(seed)
    sizes = [rng.randint(0 if hard else 1, 6 if hard else 9) for _ in range(tensors)]
    kinds = [rng.choice(list(StoredKind)) for _ in range(tensors)]
    written = {t for t in range(tensors) if kinds[t] in (StoredKind.WEIGHT, StoredKind.INPUT)}
    rows, used = [], set()
    for k in range(kernels):
        operands = []
        for t in sorted(rng.sample(range(tensors), rng.randint(0 if hard else 1, min(3, tensors)))):
            fresh = kinds[t] is StoredKind.WEIGHT and t not in used
            read = t in written and (fresh or rng.random() < 0.7)
            used.add(t)
            write = not read or rng.random() < 0.2
            fast = sizes[t] * 0.1
            slow = fast * rng.choice((1, 2, 4)) if in_place or rng.random() < 0.3 else math.inf
            operands.append(KernelOperand(t, read, write, fast, slow))
        written.update(o.tensor for o in operands if o.write)
        algorithms = [Algorithm("plain", rng.choice((0.2, 0.5, 1.0, 2.0)))]
        if choices and rng.random() < 0.3:
            algorithms.append(Algorithm("quick", algorithms[0].seconds / 2, rng.randint(1, 5)))
        kernel = Kernel(f"k{k}", "op", tuple(operands), tuple(algorithms))
        if choices and rng.random() < 0.2:
            kernel = replace(kernel, measured=_table(kernel, rng, hard))
        rows.append(kernel)
    link = CopyLink(
        rng.choice((5.0, 20.0)),
        rng.choice((5.0, 20.0)),
        rng.choice((2.0, 8.0)),
        rng.choice((2.0, 8.0)),
        rng.random() < 0.5,
    )
    stored = tuple(StoredTensor(f"t{t}", sizes[t], kinds[t]) for t in range(tensors))
    return KernelSequence(
        f"random {seed}", stored, tuple(rows), link, rng.choice((1, 1, 2 if hard else 4))
    )


def _table(kernel, rng, hard):
    count = len(kernel.operands)
    rows = []
    for algorithm in range(len(kernel.algorithms)):
        places = [[bool(i >> o & 1) for o in range(count)] for i in range(2**count)]
        row = [kernel.seconds(place, algorithm) * rng.uniform(0.8, 1.5) for place in places]
        # Everything fast always runs.
        never = [at and hard and rng.random() < 0.3 for at in range(len(row))]
        pairs = zip(never, row, strict=True)
        rows.append(tuple(math.inf if out else seconds for out, seconds in pairs))
    return tuple(rows)


def random_placement(sequence, seed):
    """Stays and copies that often make sense and often do not."""
    rng = random.Random(seed)
    kernels = len(sequence.kernels)
    stays, moves = [], []
    for t, (start, end) in enumerate(sequence.lifetimes.tolist()):
        if end - start < 1 or rng.random() < 0.4:
            continue
        if rng.random() < 0.5:
            stays.append(Stay(t, start, end))
            if rng.random() < 0.5:
                begin = rng.randint(start, end)
                moves.append(Move(t, False, begin, rng.randint(begin, end)))
            continue
        leave = rng.randint(start, end)
        back = rng.randint(leave, end)
        if leave > start:
            stays.append(Stay(t, start, leave))
            if rng.random() < 0.9:
                begin = rng.randint(start, leave)
                done = leave if rng.random() < 0.8 else rng.randint(begin, leave)
                moves.append(Move(t, False, begin, done))
        if end > back and rng.random() < 0.8:
            stays.append(Stay(t, back, end))
            if rng.random() < 0.95:
                moves.append(Move(t, True, back, rng.randint(back, min(end, kernels))))
    if rng.random() < 0.8:
        moves.sort(key=lambda move: (move.start, move.end))
    else:
        rng.shuffle(moves)
    algorithms = tuple(rng.randrange(len(kernel.algorithms)) for kernel in sequence.kernels)
    return TensorPlacement(tuple(stays), tuple(moves), algorithms)


def training(layers, *, in_place, bandwidth):
    """Forward writes 8 bytes a layer and reads the layer before; backward reads them in reverse. A
    second a kernel if all is fast."""
    slow = 2.0 if in_place else math.inf
    kernels = [
        Kernel(
            f"f{i}",
            "f",
            tuple(KernelOperand(t, t < i, t == i, 0.5, slow) for t in range(max(0, i - 1), i + 1)),
            (Algorithm("a", 1.0),),
        )
        for i in range(layers)
    ]
    kernels += [
        Kernel(f"b{i}", "b", (KernelOperand(i, True, False, 0.5, slow),), (Algorithm("a", 1.0),))
        for i in reversed(range(layers))
    ]
    tensors = tuple(StoredTensor(f"x{i}", 8) for i in range(layers))
    return KernelSequence("training", tensors, tuple(kernels), CopyLink(*[bandwidth] * 4))


def even(sequence, room):
    """So many bytes of the fast memory for every kernel."""
    return np.full(len(sequence.kernels), room)
