"""Stream's own answer for its own example, as JSON: cycles and picojoules. Runs where
``stream-dse`` is installed.

``python rival.py PARTS INDIVIDUALS GENERATIONS``: operators in single rows (``rows``), in so many
parts along their rows, or ``whole``.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile


def main() -> None:
    """Search, and write the best of what was found."""
    from stream.classes.stages import (
        GenerateCNWorkloadHybridStage,
        InterCoreMappingStage,
        IntraCoreMappingStage,
    )
    from stream.classes.stages import UserDefinedModelParserStage as Workload
    from zigzag.classes.stages import AcceleratorParserStage, MainStage

    parts, individuals, generations = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    examples = "stream.inputs.examples"
    hints = (
        {"rows": [("OY", "all")], "whole": []}.get(parts)
        if not parts.isdigit()
        else [("OY", int(parts))]
    )
    # It prints its generations.
    sys.stdout = sys.stderr
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        stages = [
            AcceleratorParserStage,
            Workload,
            GenerateCNWorkloadHybridStage,
            IntraCoreMappingStage,
            InterCoreMappingStage,
        ]
        search = MainStage(
            stages,
            accelerator=f"{examples}.hardware.TPU_like_quad_core",
            workload_path=f"{examples}.workload.resnet18",
            mapping_path=f"{examples}.mapping.tpu_like_quad_core",
            loma_lpf_limit=6,
            nb_ga_individuals=individuals,
            nb_ga_generations=generations,
            node_hw_performances_path="found/costs.pickle",
            plot_hof=True,
            plot_file_name=False,
            plot_full_schedule=False,
            plot_data_transfer=False,
            cn_define_mode=1,
            hint_loops=hints,
            operands_to_prefetch=[],
            scheduler_candidate_selection="memory",
        )
        best, _ = search.run()
    sys.stdout = sys.__stdout__
    json.dump({"cycles": float(best[0].latency), "picojoules": float(best[0].energy)}, sys.stdout)


if __name__ == "__main__":
    main()
