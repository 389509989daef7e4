"""The table of results: on the terminal, in RESULTS.md and in results.json."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter
from rich.console import Console
from rich.table import Table

from benchmarks.harness import Row, Target, Timing
from benchmarks.machine import Machine

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Result:
    """The rows and targets of one question, with the machine and date of the measurement."""

    name: str
    title: str
    target: str
    rows: list[Row]
    targets: list[Target]
    machine: Machine
    quick: bool


_RESULTS = TypeAdapter(dict[str, Result])


def show(result: Result, console: Console) -> None:
    """Print the result of one question."""
    console.print(f"\n[bold]{result.title}[/bold]   target: {result.target}")
    if result.rows:
        table = Table(box=None, header_style="dim")
        header, lines = _cells(result.rows)
        for column, name in enumerate(header):
            table.add_column(name, justify="left" if column == 0 else "right")
        for line in lines:
            table.add_row(*line)
        console.print(table)
    for peer, reason in _left_out(result.rows).items():
        console.print(f"  left out: {peer}: {reason}", style="dim", highlight=False)
    for target in result.targets:
        verdict = "[green]met[/green]" if target.met else "[red]not met[/red]"
        console.print(f"  {target.text}: {target.found}  {verdict}", highlight=False)


def save(results: list[Result], folder: Path = HERE) -> None:
    """Merge results into results.json and RESULTS.md; a quick one never replaces a full one."""
    path = folder / "results.json"
    merged = _RESULTS.validate_json(path.read_bytes()) if path.exists() else {}
    for result in results:
        if result.quick and result.name in merged and not merged[result.name].quick:
            continue
        merged[result.name] = result
    merged = dict(sorted(merged.items()))
    _write(path, as_json(merged) + "\n")
    _write(folder / "RESULTS.md", _markdown(list(merged.values())))


def as_json(results: dict[str, Result]) -> str:
    """The results of all questions, by name."""
    return _RESULTS.dump_json(results, indent=1).decode()


def _markdown(results: list[Result]) -> str:
    lines = [
        "# Measured",
        "",
        "Made by `make bench` (`python -m benchmarks [names…]`). Times are medians of interleaved",
        "rounds in one process; a ratio is the best peer's median over ours, with the quartiles of",
        "the rounds' own ratios in brackets. `LIMITS.md` says what stands in the way of a target",
        "that was not met.",
        "",
        "| question | target | found | |",
        "|---|---|---|---|",
    ]
    for result in results:
        for target in result.targets:
            mark = "met" if target.met else "**not met**"
            lines.append(f"| {result.title} | {target.text} | {target.found} | {mark} |")
    for result in results:
        lines += ["", f"## {result.title}", "", f"Target: {result.target}.", ""]
        if result.rows:
            header, cells = _cells(result.rows)
            lines += [_line(header), "|---|" + "---:|" * (len(header) - 1)]
            lines += [_line(cell) for cell in cells]
            lines.append("")
        lines += [f"Left out: {peer}: {why}.  " for peer, why in _left_out(result.rows).items()]
        lines += ["", _machine_text(result.machine, result.quick)]
    return "\n".join(lines) + "\n"


def _machine_text(machine: Machine, quick: bool) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    return (
        f"{machine.date}, commit {machine.commit}{', quick run' if quick else ''}: {machine.name}, "
        f"{machine.isa}, {machine.threads} threads; FMA peak {machine.peak_gflops:.0f} GF/s, "
        f"read bandwidth {machine.read_gbytes:.1f} GB/s; {versions}."
    )


def _cells(rows: list[Row]) -> tuple[list[str], list[list[str]]]:
    names = list(dict.fromkeys(name for row in rows for name in (*row.peers, *row.beside)))
    flops, data = any(row.gflops for row in rows), any(row.gbytes for row in rows)
    header = ["case", "ours", *names, "best peer / ours"]
    header += ["GF/s", "of peak"] if flops else []
    header += ["GB/s", "of bandwidth"] if data else []
    lines: list[list[str]] = []
    for row in rows:
        others = {**row.peers, **row.beside}
        line = [row.case, _time(row.ours)]
        line += [_time(others[name]) if name in others else "–" for name in names]
        line.append(_ratio(row.ratio))
        line += [f"{row.gflops:.0f}", f"{row.peak_share:.0%}"] if flops else []
        line += [f"{row.gbytes:.1f}", f"{row.bandwidth_share:.0%}"] if data else []
        lines.append(line)
    return header, lines


def _time(timing: Timing) -> str:
    seconds = timing.median
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} µs"
    return f"{seconds * 1e3:.{2 if seconds < 0.1 else 0}f} ms"


def _ratio(ratio: Timing | None) -> str:
    if ratio is None:
        return "–"
    return f"{ratio.median:.2f} ({ratio.low:.2f}–{ratio.high:.2f})"


def _left_out(rows: list[Row]) -> dict[str, str]:
    return {peer: why for row in rows for peer, why in row.left_out.items()}


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _write(path: Path, text: str) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
