"""One layer on one array in AccelForge, by Timeloop's authors: reads a description on standard
input, writes cycles, bytes and picojoules.

Its mapper finds the loop order and tiles of the least product of energy and latency. It has no
padding, so that what it reads of an input with zeros around counts in proportion, and no double
buffering: a tile may take the whole buffer, and everything overlaps.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import tempfile
from pathlib import Path
from typing import Any

NO_LIMIT, BITS = "inf", 8
SUM = 32


def only(names: list[str], loops: list[str], most: int | None = None) -> list[dict[str, Any]]:
    """Rules for the loops across one side of the array: over some names, which take so many of it
    together, and over no other."""
    others = [name for name in loops if name not in names]
    rules: list[dict[str, Any]] = (
        [{"expression": " | ".join(others), "operator": "==", "value": 1}] if others else []
    )
    return rules + (
        [{"expression": " | ".join(names), "operator": "product<=", "value": most}] if most else []
    )


def memory(
    name: str,
    size: int | str,
    picojoules_a_byte: float,
    throughput: float | str,
    keep: str,
    **more: Any,
) -> dict[str, Any]:
    """A memory whose reads and writes share its bits a cycle; seconds stand for cycles, joules for
    picojoules."""
    cost = {"energy": picojoules_a_byte / BITS, "throughput": throughput}
    actions = [{"name": action, **cost} for action in ("read", "write")]
    return {
        "name": name,
        "size": size,
        "leak_power": 0,
        "area": 0,
        "actions": actions,
        "tensors": {"keep": keep, **more},
    }


def positions(layer: dict[str, Any]) -> dict[str, int]:
    """Loops over positions: one, where a layer has one tap and they may be cut anywhere, else rows
    and columns."""
    together = layer["r"] * layer["s"] == 1 and layer["style"] != "row-stationary"
    return {"p": layer["y"] * layer["x"]} if together else {"y": layer["y"], "x": layer["x"]}


def loops(layer: dict[str, Any]) -> dict[str, int]:
    """All loops of a layer and their lengths."""
    return {
        "k": layer["k"],
        "c": layer["c"],
        **positions(layer),
        **{name: layer[name] for name in taps(layer)},
    }


def taps(layer: dict[str, Any]) -> list[str]:
    """Loops over taps, none for a layer of one."""
    return ["r", "s"] if layer["r"] * layer["s"] > 1 else []


def workload(layer: dict[str, Any]) -> dict[str, Any]:
    """The layer as a sum of products."""
    bounds, stride = loops(layer), layer["stride"]
    seen = ", ".join(positions(layer))
    # What a stride steps over where there is one tap is not read.
    read = f"H: {stride} * y + r, V: {stride} * x + s" if taps(layer) else seen
    einsum = {
        "einsum": f"O[k, {seen}] = I[c, {read}] * W[{', '.join(['k', 'c', *taps(layer)])}]",
        "iteration_space_shape": [f"0 <= {name} < {size}" for name, size in bounds.items()],
        "renames": {"input": "I", "weight": "W", "output": "O"},
    }
    return {"bits_per_value": {"All": BITS}, "einsums": [einsum]}


def sides(layer: dict[str, Any]) -> list[tuple[str, int, list[str]]]:
    """What stands along the rows and the columns of the array, as Loadmaster has it."""
    rows, columns = layer["rows"], layer["columns"]
    if layer["style"] == "weight-stationary":
        return [("rows", rows, ["k"]), ("columns", columns, ["c"])]
    if layer["style"] == "output-stationary":
        return [("rows", rows, list(positions(layer))), ("columns", columns, ["k"])]
    return [("rows", rows, [*taps(layer)[:1], "k"]), ("columns", columns, ["y"])]


def architecture(layer: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Main memory, one buffer for all operands that never stalls the array, the array, and
    registers in it."""
    energy, local, names = layer["picojoules"], layer["local"] * BITS, list(loops(layer))
    array = [
        {"name": side, "fanout": size, "may_reuse": "All", "loop_bounds": only(along, names)}
        for side, size, along in sides(layer)
    ]
    registers = {
        "weight-stationary": [("weights", local, "weight")],
        "output-stationary": [("sums", local, "output")],
        "row-stationary": [("weights", local, "weight"), ("sums", SUM, "output")],
    }[layer["style"]]
    wide = {"bits_per_value": {"output": SUM}}
    multiply = {"name": "compute", "energy": energy["mac"], "throughput": 1}
    # Sums leave the chip once, when they are complete; a tile in the buffer has all taps.
    whole = [{"expression": name, "operator": "==", "value": layer[name]} for name in taps(layer)]
    once = {"no_refetch_from_above": "output", "tile_shape": whole}
    return [
        ("Memory", memory("dram", NO_LIMIT, energy["dram"], layer["bandwidth"] * BITS, "All")),
        (
            "Memory",
            {
                **memory(
                    "buffer", layer["buffer"] * BITS, energy["buffer"], NO_LIMIT, "All", **once
                ),
                **wide,
            },
        ),
        ("Container", {"name": "array", "spatial": array}),
        *(
            ("Memory", {**memory(name, size, energy["local"], NO_LIMIT, keep), **wide})
            for name, size, keep in registers
        ),
        ("Compute", {"name": "mac", "leak_power": 0, "area": 0, "actions": [multiply]}),
    ]


def written(layer: dict[str, Any], place: Path) -> list[str]:
    """Files of the layer and the array: JSON is YAML, but for the kind of each part of the
    array."""
    (place / "workload.yaml").write_text(json.dumps({"workload": workload(layer)}))
    nodes = "".join(
        f"  - !{kind}\n    {json.dumps(fields)}\n" for kind, fields in architecture(layer)
    )
    (place / "arch.yaml").write_text(f"arch:\n  nodes:\n{nodes}")
    return [str(place / name) for name in ("arch.yaml", "workload.yaml")]


def padding(layer: dict[str, Any]) -> float:
    """The input without the zeros around it, of one with them."""
    ratio = 1.0
    for out, taps in (("y", "r"), ("x", "s")):
        size = (layer[out] - 1) * layer["stride"] + layer[taps]
        ratio *= min(size, layer[out] * layer["stride"]) / size if layer[taps] > 1 else 1.0
    return ratio


def estimate(layer: dict[str, Any]) -> dict[str, float]:
    """Run AccelForge on one layer."""
    import accelforge
    from accelforge.mapper.FFM.mappings import Mappings

    # Version 1.0.467 draws the mapping that it takes, for which Graphviz would have to be
    # installed.
    Mappings.render = lambda *_, **__: ""
    accelforge.set_n_parallel_jobs(1)
    with tempfile.TemporaryDirectory() as folder:
        spec = accelforge.Spec.from_yaml(*written(layer, Path(folder)))
        spec.mapper.metrics = accelforge.mapper.Metrics.ENERGY_DELAY_PRODUCT
        spec.mapper.explore_imperfect_spatial_loops = True
        with contextlib.chdir(folder):
            found = spec.map_workload_to_arch(print_progress=False)
    energies, cycles = (
        found.energy(per_component=True, per_tensor=True),
        found.latency(per_component=True),
    )
    unpadded = energies["dram", "I"] * (1 - padding(layer))
    moved = sum(energies["dram", name] for name in "IWO") - unpadded
    return {
        "array": float(cycles["mac"]),
        "cycles": max(
            float(cycles["mac"]), float(moved) / layer["picojoules"]["dram"] / layer["bandwidth"]
        ),
        "bytes": float(moved) / layer["picojoules"]["dram"],
        "picojoules": float(found.energy() - unpadded),
    }


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    answer = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        result = estimate(json.load(sys.stdin))
    json.dump(result, answer)
