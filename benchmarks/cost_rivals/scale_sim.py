"""One layer on one array in SCALE-Sim: reads a description on standard input, and writes cycles and
bytes of main memory.

Its buffers are three, each double-buffered: half of the bytes are given to inputs, a quarter to
weights and a quarter to results. Stalls for main memory are left out of its cycles. It has no
energy, and no row-stationary array; a weight-stationary one sums down its rows.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

DATAFLOWS = {"weight-stationary": "ws", "output-stationary": "os"}


def configuration(layer: dict[str, Any]) -> str:
    kibi = layer["buffer"] // 1024
    # Filters stand along its width: output channels across the array of either kind.
    height, width = (
        (layer["columns"], layer["rows"])
        if layer["style"] == "weight-stationary"
        else (layer["rows"], layer["columns"])
    )
    sections = {
        "general": {"run_name": "run"},
        "architecture_presets": {
            "ArrayHeight": height,
            "ArrayWidth": width,
            "IfmapSramSzkB": kibi // 2,
            "FilterSramSzkB": kibi // 4,
            "OfmapSramSzkB": kibi // 4,
            "IfmapOffset": 0,
            "FilterOffset": 10**8,
            "OfmapOffset": 2 * 10**8,
            "Dataflow": DATAFLOWS[layer["style"]],
            "ReadRequestBuffer": 64,
            "WriteRequestBuffer": 64,
        },
        "layout": {
            f"{name}{field}": value
            for name in ("Ifmap", "Filter")
            for field, value in (
                ("CustomLayout", False),
                ("SRAMBankBandwidth", 10),
                ("SRAMBankNum", 10),
                ("SRAMBankPort", 2),
            )
        },
        "sparsity": {"SparsitySupport": "false"},
        "run_presets": {"InterfaceBandwidth": "CALC", "UseRamulatorTrace": False},
    }
    return "\n".join(
        f"[{name}]\n" + "\n".join(f"{field}: {value}" for field, value in fields.items())
        for name, fields in sections.items()
    )


def is_hit(buffer: Any, address: float) -> bool:
    """SCALE-Sim's ``check_hit`` by one look-up: it searches up to fifty sets for every address of
    every cycle, with the same answer."""
    if not hasattr(buffer, "last_set_of"):
        buffer.last_set_of, buffer.known = {}, 0
    for number in range(buffer.known, len(buffer.list_of_sets)):
        buffer.last_set_of.update(dict.fromkeys(buffer.list_of_sets[number] or (), number))
    buffer.known = len(buffer.list_of_sets)
    return bool(buffer.last_set_of.get(address, -1) >= buffer.read_buffer_set_start_id)


def estimate(layer: dict[str, Any]) -> dict[str, float]:
    """Run SCALE-Sim on one layer."""
    import numpy as np
    import scalesim.memory.double_buffered_scratchpad_mem as buffers
    from scalesim.memory.read_buffer_estimate_bw import ReadBufferEstimateBw
    from scalesim.scale_sim import scalesim
    from scalesim.single_layer_sim import single_layer_sim

    # Version 3.0 takes an array of one number for a number where it asks for the largest, which
    # numpy no longer does.
    buffers.max = lambda *values: np.concatenate([np.ravel(value) for value in values]).max()
    ReadBufferEstimateBw.check_hit = is_hit
    rows, columns = (
        (layer[out] - 1) * layer["stride"] + layer[taps] for out, taps in (("y", "r"), ("x", "s"))
    )
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "array.cfg").write_text(configuration(layer))
        extents = (rows, columns, layer["r"], layer["s"], layer["c"], layer["k"], layer["stride"])
        (place / "layers.csv").write_text(
            f"Layer,H,W,R,S,C,K,Stride,Sparsity\nlayer,{','.join(map(str, extents))},1:1,\n"
        )
        (place / "layouts.csv").write_text("Layer\n")
        program = scalesim(
            save_disk_space=True,
            verbose=False,
            config=str(place / "array.cfg"),
            topology=str(place / "layers.csv"),
            layout=str(place / "layouts.csv"),
        )
        one = single_layer_sim()
        one.set_params(0, program.config, program.topo, program.layout, False)
        one.run()
    compute, details = one.get_compute_report_items(), one.get_detail_report_items()
    # Bytes of inputs, of weights and of results; after each operand's first and last cycle.
    return {"cycles": float(compute[1]), "bytes": float(details[11] + details[14] + details[17])}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    answer = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        result = estimate(json.load(sys.stdin))
    json.dump(result, answer)
