"""Runs models in TFLM's interpreter."""

import faulthandler
import io
import os
import sys
import tempfile
import traceback
import warnings
from subprocess import CompletedProcess

import numpy as np

from loadmaster.integrations.tflite import interpreter
from loadmaster.integrations.tflite.arena import TensorArena, arena_problem, plan_arena
from loadmaster.integrations.tflite.export import check_file
from loadmaster.integrations.tflite.in_place import in_place_pairs
from loadmaster.integrations.tflite.lifetimes import lifetimes, plan_entries
from loadmaster.integrations.tflite.planned_file import with_plan
from loadmaster.workloads.frontends.tflite.model import parse_model

ROOM = 2**16
"""Bytes of the arena in which models are measured."""


def forked(command, *, input, **_):
    """What the interpreter's process answers, from a fork of this one, which has loaded Python."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            child = os.fork()
        if child == 0:
            code = 1
            faulthandler.disable()
            try:
                os.dup2(err.fileno(), 2)
                sys.stdin = io.TextIOWrapper(io.BytesIO(input))
                sys.stdout, sys.stderr = out, err
                interpreter.main()
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                out.flush()
                err.flush()
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        for stream in (out, err):
            stream.seek(0)
        return CompletedProcess(command, code, out.read().encode(), err.read().encode())


def heads(files):
    """Bytes of the arena's head, as TFLM's interpreter reports them."""
    return [each.head for each in interpreter.measure_each(b"", files, ROOM)]


def planned(data, scratch, kernels=frozenset()):
    """A plan of a model whose operators of some kinds work in place, and the file with it."""
    model = parse_model(data)
    found = lifetimes(model)
    arena = TensorArena(found, scratch)
    plan = plan_arena(arena, arena_problem(arena, pairs=in_place_pairs(model, found, kernels)))
    file = with_plan(model, plan_entries(found, plan.offsets))
    check_file(file, model, found, plan)
    return plan, file


def inputs_for(data, seed):
    """Random inputs of a model's shapes and types."""
    rng = np.random.default_rng(seed)
    main = parse_model(data).subgraphs[0]
    tensors = [main.tensors[index] for index in main.inputs]
    return [_random(rng, tensor.shape, np.dtype(tensor.dtype)) for tensor in tensors]


def _random(rng, shape, dtype):
    if dtype.kind == "f":
        return rng.normal(0, 1.5, shape).astype(dtype)
    low, high = (0, 2) if dtype.kind == "b" else (-100, 100)
    return rng.integers(low, high, shape).astype(dtype)


def outputs_of(data, runs, arena=2**22):
    """Outputs of several inferences, one after another."""
    from tflite_micro.python.tflite_micro import runtime

    interpreter = runtime.Interpreter.from_bytes(data, arena_size=arena)
    count = len(parse_model(data).subgraphs[0].outputs)
    found = []
    for inputs in runs:
        for index, value in enumerate(inputs):
            interpreter.set_input(value, index)
        interpreter.invoke()
        found.append([np.array(interpreter.get_output(index)) for index in range(count)])
    return found


def same_outputs(one, other, seeds=(1, 2, 3)):
    """Whether two models give the same bits for the same inputs, in several inferences."""
    runs = [inputs_for(one, seed) for seed in seeds]
    first, second = outputs_of(one, runs), outputs_of(other, runs)
    return all(
        a.tobytes() == b.tobytes()
        for mine, theirs in zip(first, second, strict=True)
        for a, b in zip(mine, theirs, strict=True)
    )
