"""Ask the questions, print the answers and keep them in RESULTS.md."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
from collections.abc import Callable
from types import ModuleType

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

import benchmarks
from benchmarks import report
from benchmarks.harness import Bench
from benchmarks.machine import Machine, measure_machine


def questions() -> dict[str, ModuleType]:
    """Every module of this folder that has an `ask`."""
    modules: dict[str, ModuleType] = {}
    for module in pkgutil.iter_modules(benchmarks.__path__):
        if module.name != "__main__":
            loaded = importlib.import_module(f"benchmarks.{module.name}")
            if hasattr(loaded, "ask"):
                modules[module.name] = loaded
    return modules


def main() -> int:
    """Ask, print, keep. Targets are found, not tested: they do not change the exit code."""
    known = questions()
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"of: {', '.join(known)}")
    parser.add_argument("--quick", action="store_true", help="fewer points and rounds, under 4 min")
    parser.add_argument("--json", action="store_true", help="print the answers as JSON")
    chosen = parser.parse_args()
    unknown = [name for name in chosen.names if name not in known]
    if unknown:
        parser.error(f"no question named {unknown[0]!r}; there are: {', '.join(known)}")
    names = chosen.names or list(known)
    console = Console(stderr=chosen.json)
    answers: list[report.Answer] = []
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("measuring this machine")
        machine = measure_machine()
        for place, name in enumerate(names):
            lead = f"[{place + 1}/{len(names)}] {name}"
            answer = _ask(
                name, known[name], machine, chosen.quick,
                lambda text, lead=lead: progress.update(task, description=f"{lead}: {text}"),
            )  # fmt: skip
            answers.append(answer)
            report.show(answer, console)
            report.keep([answer])
    if chosen.json:
        print(report.as_json({answer.name: answer for answer in answers}))
    return 0


def _ask(
    name: str, module: ModuleType, machine: Machine, quick: bool, say: Callable[[str], None]
) -> report.Answer:
    bench = Bench(machine, quick=quick, say=say)
    targets = module.ask(bench)
    return report.Answer(name, module.TITLE, module.TARGET, bench.rows, targets, machine, quick)


if __name__ == "__main__":
    sys.exit(main())
