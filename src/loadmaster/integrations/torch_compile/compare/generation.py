"""Generates tokens with weights that exceed fast memory, by a plan and by other methods, for
``loadmaster run --generate``.

Every method runs in its own process, which generates one token for each line on its standard input.
Methods take turns, token by token, so that other load on the machine and the disk favours none.
Peaks are high-water marks of anonymous memory, read from outside of the process. Methods that read
files through the page cache run in a control group, which counts the page cache; its limit is the
budget plus the bytes of libraries.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from loadmaster.core.errors import (
    LoadmasterError,
    ModelError,
    RuntimeUnavailable,
    error_text,
    package,
)
from loadmaster.core.provenance import Label
from loadmaster.core.units import parse_bytes_of
from loadmaster.integrations.torch_compile.compare.measurement import (
    STATED,
    HighWater,
    return_freed_memory,
    status_bytes,
)
from loadmaster.integrations.torch_compile.cpu_memory import (
    SlowFile,
    WeightFile,
    large_pages,
    return_freed_blocks,
)

if TYPE_CHECKING:
    from loadmaster.integrations.torch_compile.compiled_model import CompiledModel

_MAPPED, _PARTLY, _ON_DISK, _IN_MEMORY = (
    "mmap",
    "accelerate, part on disk",
    "accelerate disk_offload",
    "accelerate cpu_offload",
)
WAYS = ("loadmaster", "eager", _MAPPED, _PARTLY, _ON_DISK, _IN_MEMORY)
_LIMITED = (_MAPPED, _PARTLY, _ON_DISK)
_WEIGHTS, _PROMPT = "weights.safetensors", "prompt.pt"
_GROUPS = Path("/sys/fs/cgroup/memory")
_LIBRARY_BYTES = 64 << 20
"""Bytes of a control group's limit for Python and libraries."""
_SHOWN_SECONDS = ("token_cpu_seconds", "kernel_seconds", "copy_seconds", "waiting_seconds")
"""Names of seconds of a token whose medians are printed."""
_FULL_SPEED = 0.8
"""Share of its bandwidth from which on a disk counts as busy."""
_WARM_UP = 4
"""Number of tokens after the first that are not timed, while caches are filled and, in the last of
them, the plan is refined."""


class Decoder:
    """Greedy decoding of one sequence with a static key-value cache."""

    def __init__(self, module: Any, prompt: torch.Tensor, tokens: int) -> None:
        from transformers import StaticCache

        self.call, self.given = module, prompt
        length = prompt.shape[1] + tokens
        most = getattr(module.config, "max_position_embeddings", None) or length
        if length > most:
            raise ModelError(
                f"--generate {tokens}: with the {prompt.shape[1]} tokens of the prompt these exceed"
                f" the model's {most} positions; generate {most - prompt.shape[1]} or fewer"
            )
        self.cache = StaticCache(config=module.config, max_cache_len=length)
        self.position = 0

    def next(self) -> int:
        """Generate and return the next token."""
        count = self.given.shape[1]
        positions = torch.arange(self.position, self.position + count)
        with torch.no_grad():
            out = self.call(
                input_ids=self.given,
                past_key_values=self.cache,
                cache_position=positions,
                use_cache=True,
                logits_to_keep=1,
                return_dict=True,
            )
        self.given, self.position = out.logits[:, -1:].argmax(-1), self.position + count
        return int(self.given[0, 0])


def _make_module(spot: str) -> tuple[nn.Module, torch.Tensor]:
    """Return the module of a factory, and its prompt. Raises `ModelError`."""
    from loadmaster.workloads.frontends.torch.factory import factory_of

    torch.manual_seed(0)
    made = factory_of(spot)()
    module, prompt = made[:2] if isinstance(made, tuple) and len(made) > 1 else (None, None)
    if isinstance(prompt, dict):
        prompt = prompt.get("input_ids")
    elif isinstance(prompt, tuple):
        prompt = prompt[0]
    if (
        not isinstance(module, nn.Module)
        or not hasattr(module, "generate")
        or not isinstance(prompt, torch.Tensor)
        or prompt.dim() != 2
        or len(prompt) != 1
        or not prompt.numel()
    ):
        raise ModelError(
            f"torch:{spot}: --generate needs a language model of transformers and a batch of one"
            " prompt (input_ids)"
        )
    return module.eval(), prompt


def _with_weights_of(module: nn.Module, path: Path, mapped_from_file: bool = True) -> nn.Module:
    """Replace a module's parameters and buffers by tensors mapped from a file, or else their
    values, and return the module."""
    from safetensors.torch import load_file

    state, mapped = module.state_dict(keep_vars=True), load_file(path)
    same = {
        id(state[name]): tensor for name, tensor in mapped.items()
    }  # of tied weights the file has one
    values = {name: same[id(tensor)] for name, tensor in state.items()}
    module.load_state_dict(values, assign=mapped_from_file)
    module.tie_weights()
    return module


def worker(task: str, *arguments: str) -> None:
    """Save or generate in a process of its own, whose errors are answers."""
    import warnings

    warnings.simplefilter("ignore")
    try:
        (_save if task == "save" else _generate)(*arguments)
    except LoadmasterError as error:
        _answer(failed=str(error))
    except Exception as error:
        _answer(failed=error_text(error))


def _save(spot: str, folder: str) -> None:
    """Write a module's weights and its prompt to a folder, which all methods read."""
    from safetensors.torch import save_model

    module, prompt = _make_module(spot)
    save_model(module, f"{folder}/{_WEIGHTS}")
    torch.save(prompt, f"{folder}/{_PROMPT}")
    _answer()


def _generate(spot: str, way: str, tokens: str, fast: str, folder: str) -> None:
    """Generate a token for each line on the standard input, by method ``way``; see `WAYS`."""
    return_freed_memory()
    _warm_up(spot, way)
    path = Path(folder) / _WEIGHTS
    _answer()
    sys.stdin.readline()
    module, prompt = _make_module(spot)[0], torch.load(Path(folder) / _PROMPT)
    call: Any
    model = None
    if way == "loadmaster":
        from loadmaster.integrations.torch_compile.backend import loadmaster, model_of

        call = torch.compile(
            _with_weights_of(module, path),
            backend=loadmaster,
            options={"fast_memory": fast, "slow_memory": folder},
            dynamic=False,
        )
        model = model_of(call)
        model.summary_logged = True
    else:
        call = _rival(way, module, path, fast, folder)
    decoder = Decoder(call, prompt, int(tokens))
    return_freed_blocks()
    _answer()
    for _ in sys.stdin:
        start, busy = time.perf_counter(), time.process_time()
        _answer(
            token=decoder.next(),
            seconds=time.perf_counter() - start,
            token_cpu_seconds=time.process_time() - busy,
            **({} if model is None else _last_token_figures(model)),
        )


def _last_token_figures(model: CompiledModel) -> dict[str, Any]:
    """Return the figures of the graphs of the last step, which generate a token."""
    plans, found = model.last_step_graphs, model.summary()
    return {
        "planned_peak": found.planned_peak,
        "moved_bytes": found.moved_bytes,
        "kernel_seconds": sum(float(plan.times.kernels.sum()) for plan in plans),
        "copy_seconds": sum(float(plan.times.copies.sum()) for plan in plans),
        "waiting_seconds": sum(plan.times.waiting for plan in plans),
        "fallbacks": [*map(str, found.fallbacks)],
    }


def _warm_up(spot: str, way: str) -> None:
    """Make imports and the compiler allocate the memory that they keep, before peaks are
    measured."""
    with torch.device("meta"):
        module, prompt = _make_module(spot)
    if way == WAYS[0]:
        # The compiler keeps memory for each kind of module. Tokens have no values here.
        call = torch.compile(module, backend="aot_eager", dynamic=False)
        with torch.device("meta"), contextlib.suppress(RuntimeError):
            Decoder(call, prompt.to("meta"), 2).next()

        from transformers import LlamaConfig, LlamaForCausalLM

        sizes = LlamaConfig(
            vocab_size=64,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=1,
            num_attention_heads=2,
        )
        small: nn.Module = LlamaForCausalLM(sizes)
        small.eval()
        call = torch.compile(small, backend="loadmaster", dynamic=False)
        decoder = Decoder(call, torch.zeros(1, 4, dtype=torch.int64), 2)
        for _ in range(2):
            decoder.next()


def _rival(way: str, module: nn.Module, path: Path, fast: str, folder: str) -> nn.Module:
    """Return the module as method ``way`` runs it."""
    if way == _MAPPED:
        own = path.with_stem(
            "mapped"
        )  # the page cache of the other belongs to whoever has read it first
        shutil.copyfile(path, own)
        return _with_weights_of(module, own)
    _with_weights_of(module, path, mapped_from_file=False)
    if way == "eager":
        return module
    accelerate = package("accelerate", "this rival")

    cpu, offloaded = torch.device("cpu"), f"{folder}/{way.replace(' ', '_')}"
    Path(offloaded).mkdir()
    if way == _IN_MEMORY:
        return accelerate.cpu_offload(module, cpu)
    if way == _ON_DISK:
        return accelerate.disk_offload(module, offloaded, cpu)
    largest = list(getattr(module, "_no_split_modules", None) or [])
    places = accelerate.infer_auto_device_map(
        module, max_memory={"cpu": int(fast)}, no_split_module_classes=largest
    )
    return accelerate.dispatch_model(module, places, main_device="cpu", offload_dir=offloaded)


def _answer(**row: Any) -> None:
    """Print a row of JSON on the original standard output."""
    print(json.dumps(row), file=sys.__stdout__, flush=True)


def _answer_of(line: str) -> dict[str, Any]:
    """Return a worker's answer; without a line, that the process has failed."""
    return dict(json.loads(line)) if line else {"failed": "its process was ended"}


@dataclass
class Way:
    """One method of generating tokens, its process and its measurements."""

    name: str
    process: subprocess.Popen[str]
    empty: int = 0
    rows: list[dict[str, Any]] = field(default_factory=list)
    failed: str = ""
    mark: HighWater | None = None

    def told(self, go: bool = True) -> dict[str, Any]:
        """Read and return the worker's next answer, after a request for it if ``go``. Sets
        ``failed`` if there is none."""
        with contextlib.suppress(BrokenPipeError):
            if go:
                self.process.stdin.write("\n")  # type: ignore[union-attr]
                self.process.stdin.flush()  # type: ignore[union-attr]
        row: dict[str, Any] = _answer_of(self.process.stdout.readline())  # type: ignore[union-attr]
        self.failed = row.get("failed", "")
        return row

    def next(self) -> None:
        """Generate a token, and record its time."""
        row = self.told()
        if not self.failed:
            self.rows.append(row)

    def watch(self) -> None:
        """Start measuring the peak."""
        with contextlib.suppress(OSError):
            self.mark = HighWater(self.process.pid)

    def peak(self) -> int | None:
        """Return the most bytes of anonymous memory since `watch`, above those after loading
        libraries."""
        with contextlib.suppress(OSError):
            if self.mark is not None:
                return max(self.mark.bytes() - self.empty, 0)
        return None

    def figures(self) -> dict[str, Any]:
        """Return the seconds to the first token, tokens per second by the median of later tokens,
        medians of `_SHOWN_SECONDS`, and the last row of the worker."""
        if self.failed:
            return {"failed": self.failed}
        later = self.rows[1 + _WARM_UP :] or self.rows[1:] or self.rows
        typical = {
            name: statistics.median(row[name] for row in later)
            for name in ("seconds", *_SHOWN_SECONDS)
            if name in later[0]
        }
        last = self.rows[-1] | typical
        seconds = last.pop("seconds")
        del last["token"]
        return last | {
            "first_token_seconds": self.rows[0]["seconds"],
            "tokens_per_second": 1 / seconds if len(self.rows) > 1 else None,
            "measured_peak": self.peak(),
        }


def generate(
    spot: str,
    tokens: int,
    fast: str,
    slow_memory: Path | None,
    with_rivals: bool,
) -> dict[str, Any]:
    """Generate tokens under a budget ``fast``, and by other methods; return the object that
    ``loadmaster run --generate --json`` prints.

    A percentage is a share of the weights' bytes on disk. Raises `ModelError` and
    `RuntimeUnavailable`.
    """
    if tokens < 2:
        raise ModelError(
            "--generate: write at least 2 tokens, as the first includes compiling and reading the"
            " prompt"
        )
    SlowFile(slow_memory).close()  # refuse a folder before the weights are written
    with tempfile.TemporaryDirectory(prefix="loadmaster-", dir=slow_memory) as folder:
        weights = _write_weights(spot, Path(folder) / _WEIGHTS)
        budget = parse_bytes_of(fast, weights)
        with contextlib.ExitStack() as cleanup:
            started = [
                _start_way(name, spot, tokens, budget, folder, cleanup)
                for name in (WAYS if with_rivals else WAYS[:1])
            ]
            for number in range(tokens):
                for way in started:
                    if not (way.failed or started[0].failed):
                        if number == min(_WARM_UP, tokens - 1):
                            way.watch()
                        way.next()
            figures = {way.name: way.figures() for way in started}
            read = _bandwidth(Path(folder) / _WEIGHTS)
        ours = figures.pop("loadmaster")
        if "failed" in ours:
            raise RuntimeUnavailable(f"torch:{spot}: {ours['failed']}")
        own, *others = ([row["token"] for row in way.rows] for way in started if not way.failed)
    moved = ours["moved_bytes"]
    return ours | {
        "budget": budget,
        "weights": weights,
        "disk_bytes_per_second": read,
        "disk_tokens_per_second": read / moved if moved else None,
        "share_of_disk_bandwidth": ours["tokens_per_second"] * moved / read,
        "limited_by": limited_by(ours, read),
        "tokens_equal": all(tokens == own for tokens in others) if others else None,
        "rivals": figures,
        "budget_kept": ours["measured_peak"] <= budget + STATED,
        "label": Label.MEASURED,
    }


def limited_by(figures: dict[str, Any], bandwidth: float) -> str:
    """Return what takes most of a token's time: ``processor`` (kernels and Python), ``disk`` or
    ``copies``.

    The last two are waiting for copies: ``disk`` if copies use most of its ``bandwidth`` (bytes/s),
    else ``copies``, which start late, because threads wake up late or memory for prefetching is
    short.
    """
    waiting = figures["waiting_seconds"]
    if waiting <= 1 / figures["tokens_per_second"] - waiting:
        return "processor"
    return (
        "disk"
        if figures["moved_bytes"] >= _FULL_SPEED * bandwidth * figures["copy_seconds"]
        else "copies"
    )


def _write_weights(spot: str, path: Path) -> int:
    """Write a module's weights, and its prompt beside them, in a separate process, and return the
    bytes of the weights."""
    command = _command("save", spot, str(path.parent))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if failed := _answer_of(done.stdout).get("failed"):
        raise ModelError(failed)
    return path.stat().st_size


def _command(*arguments: str) -> list[str]:
    """Return the command of a `worker`."""
    return [
        sys.executable,
        "-c",
        f"import sys; from {__name__} import worker; worker(*sys.argv[1:])",
        *arguments,
    ]


def _start_way(
    name: str, spot: str, tokens: int, budget: int, folder: str, cleanup: contextlib.ExitStack
) -> Way:
    """Start a method's process, and return once it has loaded its weights."""
    process = subprocess.Popen(
        _command("generate", spot, name, str(tokens), str(budget), folder),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    cleanup.callback(process.wait)
    cleanup.callback(process.kill)
    way = Way(name, process)
    way.told(go=False)
    if not way.failed:
        way.empty = status_bytes(process.pid)["RssAnon"]
        way.told()
    if name in _LIMITED and not way.failed:
        _drop_cached(Path(folder))
        _limit(way, budget, cleanup)
    return way


def _drop_cached(folder: Path) -> None:
    """Write cached pages of the folder's files to the disk, and drop them from the page cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file)
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _limit(way: Way, budget: int, cleanup: contextlib.ExitStack) -> None:
    """Put a method's process into a control group whose limit is the budget minus the weights
    already in memory."""
    there = status_bytes(way.process.pid)["RssAnon"] - way.empty
    group = _GROUPS / f"loadmaster-{way.process.pid}"
    try:
        group.mkdir()
        cleanup.callback(_remove_group, group)
        (group / "cgroup.procs").write_text(str(way.process.pid))
        (group / "memory.limit_in_bytes").write_text(str(max(budget - there, 0) + _LIBRARY_BYTES))
    except OSError as error:
        way.failed = f"no control group with a limit can be made here ({error.strerror})"


def _remove_group(group: Path) -> None:
    """Remove a control group once its process has ended."""
    for _ in range(50):
        try:
            group.rmdir()
        except OSError:
            time.sleep(0.1)  # until its process is gone
        else:
            return


def _bandwidth(path: Path) -> float:
    """Return the bytes per second of reading a whole file with O_DIRECT into large pages, the best
    of a few trials."""
    size, best = path.stat().st_size, 0.0
    file, block = WeightFile(str(path)), large_pages(64 << 20)
    for _ in range(3):
        start = time.perf_counter()
        for offset in range(0, size, len(block)):
            file.read(memoryview(block), offset)
        best = max(best, size / (time.perf_counter() - start))
    return best
