"""Measure the questions, print the results and write them to RESULTS.md."""

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
    """Every module of this folder that has a `measure` function, by name."""
    modules: dict[str, ModuleType] = {}
    for module in pkgutil.iter_modules(benchmarks.__path__):
        if module.name != "__main__":
            loaded = importlib.import_module(f"benchmarks.{module.name}")
            if hasattr(loaded, "measure"):
                modules[module.name] = loaded
    return modules


def main() -> int:
    """Run the command line. Targets that are missed do not change the exit code."""
    known = questions()
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"of: {', '.join(known)}")
    parser.add_argument("--quick", action="store_true", help="fewer points and rounds, under 4 min")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in known]
    if unknown:
        parser.error(f"no question named {unknown[0]!r}; there are: {', '.join(known)}")
    names = options.names or list(known)
    console = Console(stderr=options.json)
    results: list[report.Result] = []
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("measuring this machine")
        machine = measure_machine()
        for number, name in enumerate(names, start=1):
            prefix = f"[{number}/{len(names)}] {name}"
            result = _measure(
                name, known[name], machine, options.quick,
                lambda text, prefix=prefix: progress.update(task, description=f"{prefix}: {text}"),
            )  # fmt: skip
            results.append(result)
            report.show(result, console)
            report.save([result])
    if options.json:
        print(report.as_json({result.name: result for result in results}))
    return 0


def _measure(
    name: str, module: ModuleType, machine: Machine, quick: bool, say: Callable[[str], None]
) -> report.Result:
    bench = Bench(machine, quick=quick, say=say)
    targets = module.measure(bench)
    return report.Result(name, module.TITLE, module.TARGET, bench.rows, targets, machine, quick)


if __name__ == "__main__":
    sys.exit(main())
