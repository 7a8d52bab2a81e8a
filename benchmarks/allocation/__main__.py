"""How fast and how tight offsets are: ``python -m benchmarks.allocation [DIR] [--only SECTION]
[--full] [--json FILE]``.

paper    the TelaMalloc paper's evaluation on real networks, and on the instances of DIR
(MiniMalloc's CSV: id,lower,upper,size) whose
         names end in a capacity, if it is given
micro    its micro-benchmarks
learned  TelaMalloc with and without learned backtrack targets
search   the exact search on DIR and on tilings: CPU seconds until a packing fits the capacity in
the name, over several seeds; then the
         smallest peak, its proven bound and CPU seconds; then small calls

`benchmarks.packing_at_scale` has the large sets. Rivals that can be imported run in the same
process on the same data. The default is a subset that takes a few minutes: TelaMalloc's features
are switched off on fewer networks, and only instances with a capacity in their name are minimised;
``--full`` is everything.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rich.console import Console

from benchmarks.allocation.instances import Plain, networks, read, tiling
from benchmarks.allocation.learned import print_learned
from benchmarks.allocation.micro import print_micro
from benchmarks.allocation.paper import (
    LIMITS,
    TIGHT,
    ablate,
    cases,
    evaluate,
    print_ablation,
    print_capacities,
    print_evaluation,
    records,
)
from benchmarks.allocation.rivals import rival_lines
from benchmarks.allocation.search import fit, minimise, small
from loadmaster.allocation.rules import problem_of

SECTIONS = ("paper", "micro", "learned", "search")
LARGE = 5_000
"""Buffers beyond which a file is left to `benchmarks.packing_at_scale`."""


def instances(folder: Path | None) -> list[tuple[str, Plain]]:
    """Those of a folder, by name."""
    found = [(path.stem, read(path)) for path in sorted(folder.glob("*.csv"))] if folder else []
    return [(name, plain) for name, plain in found if plain is not None]


def capacity_of(name: str) -> int | None:
    """What a name like ``A.1048576`` says."""
    last = name.rpartition(".")[2]
    return int(last) if last.isdigit() and int(last) > 1000 else None


def paper_section(arguments: argparse.Namespace, console: Console) -> dict[str, object]:
    found: dict[str, object] = {}
    challenging = [
        (name, plain) for name, plain in instances(arguments.folder) if capacity_of(name)
    ]
    of_networks = list(networks())
    for title, group in (("Real networks", of_networks), ("MiniMalloc's instances", challenging)):
        if group:
            rows = evaluate(cases(group, LIMITS, arguments.seconds), console)
            print_evaluation(title, rows, console)
            found[title] = records(rows)
    named = [
        (name, plain, capacity) for name, plain in challenging if (capacity := capacity_of(name))
    ]
    if named:
        found["published capacity"] = records(print_capacities(named, arguments.seconds, console))
    ablated = [*(of_networks if arguments.full else of_networks[:4]), *challenging]
    rows = ablate(cases(ablated, TIGHT, arguments.seconds))
    print_ablation(rows, console)
    return found | {"ablation": records(rows)}


def search_section(arguments: argparse.Namespace) -> None:
    for name, plain in instances(arguments.folder):
        capacity = capacity_of(name)
        if len(plain[0]) > LARGE:
            continue
        if capacity:
            took = fit(name, plain, capacity, arguments.repeat, arguments.seconds)
            if arguments.rivals:
                rival_lines(plain, capacity, arguments.seconds, took)
        if capacity or arguments.full:
            took = minimise(name, plain, arguments.seconds)
            if arguments.rivals:
                rival_lines(plain, None, arguments.seconds, took)
    for count in (100, 200, 400):
        fit(f"tiling of {count}", tiling(count, 1), 1 << 20, arguments.repeat, arguments.seconds)
    for count in (10, 50, 100):
        small(count)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path, metavar="DIR")
    parser.add_argument(
        "--only", choices=SECTIONS, action="append", help="a section; may be given more than once"
    )
    parser.add_argument(
        "--full", action="store_true", help="everything, not the subset that takes a few minutes"
    )
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument(
        "--seconds", type=float, default=2.0, help="time limit of every search, rivals' too"
    )
    parser.add_argument(
        "--rivals", action="store_true", help="run rivals in the section 'search', too"
    )
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="where the rows of 'paper', 'micro' and 'learned' go as well",
    )
    arguments = parser.parse_args()
    console = Console(width=160)
    chosen = arguments.only or SECTIONS
    found: dict[str, object] = {}
    if "paper" in chosen:
        found |= paper_section(arguments, console)
    if "micro" in chosen:
        found["micro"] = print_micro(arguments.repeat, console)
    if "learned" in chosen:
        challenging = [
            problem_of(plain) for name, plain in instances(arguments.folder) if capacity_of(name)
        ]
        found["learned"] = print_learned(challenging, console)
    if "search" in chosen:
        search_section(arguments)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
