"""One layer on one array in ZigZag: reads a description on standard input, and writes cycles, bytes
of main memory and picojoules.

Loop orders and where loops are kept are those that ZigZag finds for the least product of energy and
latency.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import tempfile
from pathlib import Path
from typing import Any


def memory(
    size: int,
    picojoules_a_byte: float,
    width: int,
    ports: list[tuple[str, str, list[str]]],
    served: list[str],
) -> dict[str, Any]:
    """A memory of so many bytes; an access is of ``width`` bytes or a part of them."""
    operands = sorted({use.split(",")[0] for _, _, uses in ports for use in uses})
    return {
        "size": size * 8,
        # Of an access of the full width; of a narrower one ZigZag counts a part.
        "r_cost": picojoules_a_byte * width,
        "w_cost": picojoules_a_byte * width,
        "area": 0,
        "latency": 1,
        "operands": operands,
        "ports": [
            {
                "name": n,
                "type": kind,
                "bandwidth_min": 8,
                "bandwidth_max": width * 8,
                "allocation": uses,
            }
            for n, kind, uses in ports
        ],
        "served_dimensions": served,
    }


def accelerator(layer: dict[str, Any]) -> dict[str, Any]:
    """Registers in the array, one buffer for all operands with ports that never stall it, and a
    main memory."""
    energy, local, dimensions = layer["picojoules"], layer["local"], ["D1", "D2"]
    one = [("r_port_1", "read", ["I2, tl"]), ("w_port_1", "write", ["I2, fh"])]
    sums = [
        ("r_port_1", "read", ["O, tl"]),
        ("r_port_2", "read", ["O, th"]),
        ("w_port_1", "write", ["O, fh"]),
        ("w_port_2", "write", ["O, fl"]),
    ]
    registers = {
        "weight-stationary": {"w": memory(local, energy["local"], 1, one, [])},
        "output-stationary": {"o": memory(local, energy["local"], 4, sums, [])},
        "row-stationary": {
            "w": memory(local, energy["local"], 1, one, []),
            "o": memory(4, energy["local"], 4, sums, []),
        },
    }[layer["style"]]
    ports = [
        *(
            (f"r_port_{i}", "read", [use])
            for i, use in enumerate(("I1, tl", "I2, tl", "O, tl", "O, th"))
        ),
        *(
            (f"w_port_{i}", "write", [use])
            for i, use in enumerate(("I1, fh", "I2, fh", "O, fh", "O, fl"))
        ),
    ]
    reads, writes = ["I1, tl", "I2, tl", "O, tl", "O, th"], ["I1, fh", "I2, fh", "O, fh", "O, fl"]
    width = layer["rows"] * layer["columns"] * 4
    return {
        "name": "array",
        "memories": {
            **registers,
            "buffer": memory(layer["buffer"], energy["buffer"], width, ports, dimensions),
            "dram": memory(
                10**11,
                energy["dram"],
                layer["bandwidth"],
                [("rw_port_1", "read_write", reads + writes)],
                dimensions,
            ),
        },
        "operational_array": {
            "unit_energy": energy["mac"],
            "unit_area": 1,
            "dimensions": dimensions,
            "sizes": [layer["rows"], layer["columns"]],
        },
    }


def side_by_side(layer: dict[str, Any], rows: int) -> tuple[int, int]:
    """Columns and rows of positions that stand in the array at once, in the rectangle that covers a
    map in the fewest turns."""
    sizes = ((x, min(layer["y"], rows // x)) for x in range(1, min(layer["x"], rows) + 1))
    return min(sizes, key=lambda size: -(-layer["x"] // size[0]) * -(-layer["y"] // size[1]))


def spatial(layer: dict[str, Any]) -> dict[str, list[str]]:
    """Loops across the array, as Loadmaster has them."""
    rows, columns = layer["rows"], layer["columns"]
    if layer["style"] == "weight-stationary":
        return {"D1": [f"K, {min(rows, layer['k'])}"], "D2": [f"C, {min(columns, layer['c'])}"]}
    if layer["style"] == "output-stationary":
        loops = [
            f"{name}, {size}"
            for name, size in zip(("OX", "OY"), side_by_side(layer, rows), strict=True)
            if size > 1
        ]
        return {"D1": loops or ["OX, 1"], "D2": [f"K, {min(columns, layer['k'])}"]}
    taps = min(layer["r"], rows)
    filters = [f"K, {min(rows // taps, layer['k'])}"]
    return {
        "D1": ([f"FY, {taps}"] if taps > 1 else []) + filters,
        "D2": [f"OY, {min(columns, layer['y'])}"],
    }


def in_a_row(layer: dict[str, Any]) -> dict[str, Any]:
    """A convolution of one tap on an output-stationary array as a matrix product: its positions are
    as good side by side as in rows."""
    if layer["style"] != "output-stationary" or layer["r"] * layer["s"] > 1:
        return layer
    return {**layer, "y": 1, "x": layer["y"] * layer["x"], "stride": 1}


def workload(layer: dict[str, Any]) -> list[dict[str, Any]]:
    stride = layer["stride"]
    names = ("B", "K", "C", "OY", "OX", "FY", "FX")
    rows, columns = (
        (layer[out] - 1) * stride + layer[taps] for out, taps in (("y", "r"), ("x", "s"))
    )
    padding = [
        [(layer[taps] - 1) // 2] * 2 if layer[out] > 1 else [0, 0]
        for out, taps in (("y", "r"), ("x", "s"))
    ]
    return [
        {
            "id": 0,
            "name": "layer",
            "operator_type": "Conv",
            "equation": "O[b][k][oy][ox]+=W[k][c][fy][fx]*I[b][c][iy][ix]",
            "dimension_relations": [f"ix={stride}*ox+1*fx", f"iy={stride}*oy+1*fy"],
            "loop_dims": list(names),
            "loop_sizes": [
                1,
                layer["k"],
                layer["c"],
                layer["y"],
                layer["x"],
                layer["r"],
                layer["s"],
            ],
            "pr_loop_dims": ["IY", "IX"],
            "pr_loop_sizes": [rows - sum(padding[0]), columns - sum(padding[1])],
            "padding": padding,
            "operand_precision": {"W": 8, "I": 8, "O": 32, "O_final": 8},
            "operand_source": {"I": 0, "W": 0},
        }
    ]


def estimate(layer: dict[str, Any]) -> dict[str, float]:
    """Run ZigZag on one layer."""
    import yaml
    from zigzag.api import get_hardware_performance_zigzag

    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        links = {"O": "O", "W": "I2", "I": "I1"}
        mapping = [
            {"name": "default", "spatial_mapping": spatial(layer), "memory_operand_links": links}
        ]
        files = {"accelerator": accelerator(layer), "mapping": mapping, "workload": workload(layer)}
        for name, content in files.items():
            (place / f"{name}.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
        *_, answers = get_hardware_performance_zigzag(
            **{name: str(place / f"{name}.yaml") for name in files},
            opt="EDP",
            dump_folder=str(place / "out"),
            pickle_filename=str(place / "out.pickle"),
            lpf_limit=layer["loops"],
            loma_show_progress_bar=False,
        )
    found = answers[0][1][0][0]
    main = sum(levels[-1] for levels in found.mem_energy_breakdown.values())
    return {
        # Cycles of the array with its stalls for the buffer, and the bytes of main memory that its
        # energy was counted for.
        "ideal": found.ideal_temporal_cycle,
        "cycles": found.latency_total2,
        "bytes": main / layer["picojoules"]["dram"],
        "picojoules": found.energy_total,
    }


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    answer = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        result = estimate(in_a_row(json.load(sys.stdin)))
    json.dump(result, answer)
