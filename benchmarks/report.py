"""The table: on the terminal, and kept in RESULTS.md and results.json."""

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
class Answer:
    """One question's rows and targets, with the machine and the day it was asked."""

    name: str
    title: str
    target: str
    rows: list[Row]
    targets: list[Target]
    machine: Machine
    quick: bool


_ANSWERS = TypeAdapter(dict[str, Answer])


def show(answer: Answer, console: Console) -> None:
    """Print one answer."""
    console.print(f"\n[bold]{answer.title}[/bold]   target: {answer.target}")
    if answer.rows:
        table = Table(box=None, header_style="dim")
        header, lines = _cells(answer.rows)
        for place, name in enumerate(header):
            table.add_column(name, justify="left" if place == 0 else "right")
        for line in lines:
            table.add_row(*line)
        console.print(table)
    for peer, reason in _left_out(answer.rows).items():
        console.print(f"  left out: {peer}: {reason}", style="dim", highlight=False)
    for target in answer.targets:
        sign = "[green]met[/green]" if target.met else "[red]not met[/red]"
        console.print(f"  {target.text}: {target.found}  {sign}", highlight=False)


def keep(answers: list[Answer], folder: Path = HERE) -> None:
    """Merge into results.json and write RESULTS.md; a quick answer never replaces a full one."""
    path = folder / "results.json"
    merged = _ANSWERS.validate_json(path.read_bytes()) if path.exists() else {}
    for answer in answers:
        if answer.quick and answer.name in merged and not merged[answer.name].quick:
            continue
        merged[answer.name] = answer
    merged = dict(sorted(merged.items()))
    _write(path, as_json(merged) + "\n")
    _write(folder / "RESULTS.md", _markdown(list(merged.values())))


def as_json(answers: dict[str, Answer]) -> str:
    """The answers by name."""
    return _ANSWERS.dump_json(answers, indent=1).decode()


def _markdown(answers: list[Answer]) -> str:
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
    for answer in answers:
        for target in answer.targets:
            mark = "met" if target.met else "**not met**"
            lines.append(f"| {answer.title} | {target.text} | {target.found} | {mark} |")
    for answer in answers:
        lines += ["", f"## {answer.title}", "", f"Target: {answer.target}.", ""]
        if answer.rows:
            header, cells = _cells(answer.rows)
            lines += [_line(header), "|---|" + "---:|" * (len(header) - 1)]
            lines += [_line(cell) for cell in cells]
            lines.append("")
        lines += [f"Left out: {peer}: {why}.  " for peer, why in _left_out(answer.rows).items()]
        lines += ["", _machine_text(answer.machine, answer.quick)]
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
