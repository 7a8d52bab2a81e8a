"""Where the time of a plan goes: ``python -m benchmarks.planning [MODEL ...] [--target NAME]
[--repeat N] [--operators N]``.

Plans the given networks (by default ResNet-50 and BERT-base together, then a generated graph of
2,000 operators) from file to written report and prints the seconds of every stage: the median over
the repeats, each with a fresh load.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]


class Stopwatch:
    """Seconds by stage: named blocks, and the planner's own stages through its progress calls."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._stage, self._since = "", 0.0

    @contextmanager
    def block(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[name] += time.perf_counter() - started

    def progress(self, stage: str, share: float) -> None:
        now = time.perf_counter()
        if self._stage:
            self.seconds["plan: " + self._stage.partition(",")[0]] += now - self._since
        self._stage, self._since = stage, now

    def finish(self) -> None:
        self.progress("", 0.0)


def generated_network(operators: int, folder: Path) -> Path:
    """An ONNX file of residual convolution blocks with weights left out."""
    import onnx
    from onnx import TensorProto, helper

    nodes, weights, last = [], [], "x"
    for index in range(operators // 3):
        channels = 32 + 16 * (index % 4 == 0)
        for name, into, out in (("up", 32, channels), ("down", channels, 32)):
            weight = TensorProto(
                name=f"{name}{index}.w", data_type=TensorProto.FLOAT, dims=[out, into, 3, 3]
            )
            weight.data_location = TensorProto.EXTERNAL
            weight.external_data.add(key="location", value="absent.bin")
            weights.append(weight)
        nodes.append(
            helper.make_node("Conv", [last, f"up{index}.w"], [f"up{index}"], pads=[1, 1, 1, 1])
        )
        nodes.append(
            helper.make_node(
                "Conv", [f"up{index}", f"down{index}.w"], [f"down{index}"], pads=[1, 1, 1, 1]
            )
        )
        nodes.append(helper.make_node("Add", [f"down{index}", last], [f"sum{index}"]))
        last = f"sum{index}"
    shape = [1, 32, 28, 28]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", last)]
    graph = helper.make_graph(nodes, f"generated-{operators}", [values[0]], [values[1]], weights)
    path = folder / f"generated-{operators}.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def time_plan(models: list[str], target: str, out: Path) -> dict[str, float]:
    """Seconds of every stage from file to report."""
    watch = Stopwatch()
    with watch.block("import"):
        import loadmaster as lm
        from loadmaster.planning.planner import plan as make_plan
        from loadmaster.report.page import render  # noqa: F401
    with watch.block("read"):
        graphs = [lm.load(model) for model in models]
    started = time.perf_counter()
    plan = make_plan(graphs, lm.target(target), progress=watch.progress)
    watch.finish()
    watch.seconds["plan: all stages"] = time.perf_counter() - started
    with watch.block("verify"):
        violations = lm.verify(plan)
    with watch.block("write plan.json"):
        plan.save(out / "plan.json")
    with watch.block("write report and trace"):
        plan.report(out)
    if violations:
        raise SystemExit(f"the plan does not hold: {violations[0].message}")
    bound = plan.metrics.makespan.lower_bound
    print(
        f"{len(plan.jobs)} jobs, makespan {plan.metrics.makespan.value * 1e3:.3f} ms,"
        f" {plan.metrics.makespan.value / bound:.3f} x bound"
    )
    return dict(watch.seconds)


def report(title: str, runs: list[dict[str, float]]) -> None:
    """One line per stage, most time first, and the sum."""
    print(f"\n{title}: median of {len(runs)}")
    medians = {stage: statistics.median(run.get(stage, 0.0) for run in runs) for stage in runs[0]}
    medians["import"] = runs[0]["import"]  # only the first run has anything to import
    parts = {stage: seconds for stage, seconds in medians.items() if stage != "plan: all stages"}
    for stage, seconds in sorted(parts.items(), key=lambda item: -item[1]):
        print(f"  {stage:28} {seconds:8.3f} s")
    print(f"  {'in all':28} {sum(parts.values()):8.3f} s")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*")
    parser.add_argument("--target", default="edge-npu")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument(
        "--operators", type=int, default=2000, help="size of the generated graph; 0 for none"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        cases: list[tuple[str, list[str]]] = []
        if arguments.models:
            cases.append((" + ".join(arguments.models), arguments.models))
        else:
            cases.append(
                (
                    "ResNet-50 + BERT-base",
                    ["onnx:resnet50", str(ROOT / "fixtures" / "bert-base.onnx.gz")],
                )
            )
            if arguments.operators:
                cases.append(
                    (
                        f"generated, {arguments.operators} operators",
                        [str(generated_network(arguments.operators, out))],
                    )
                )
        for title, models in cases:
            report(
                f"{title} on {arguments.target}",
                [time_plan(models, arguments.target, out) for _ in range(arguments.repeat)],
            )


if __name__ == "__main__":
    main()
