"""A worked example as text, Markdown, LaTeX or one page of HTML."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator
from html import escape

import torch

from limelight.colours import DARK, LIGHT, shade
from limelight.insight.table import Cell, Table, latex_text
from limelight.insight.worked.example import Worked
from limelight.insight.worked.steps import WorkedStep, digits, number
from limelight.labels import visible

Render = Callable[[Worked, int], str]


def step_table(step: WorkedStep, decimals: int) -> Table:
    """The numbers of a step; of weights also the sum of each row."""
    count = digits(step.table, decimals)
    shares = step.name == "weights"
    columns = ("", *step.columns, *(("sum",) if shares else ()))
    rows: list[tuple[Cell, ...]] = []
    for name, row in zip(step.rows, step.table.tolist(), strict=True):
        cells = [number(value, count) for value in row]
        rows.append((name, *cells, *((number(sum(row), count),) if shares else ())))
    return Table(columns, rows, right_aligned=True)


def spotlight(example: Worked, steps: list[WorkedStep]) -> tuple[int, int]:
    """Query and key of the link that is followed through the steps.

    The strongest link of the first head, between two different tokens.
    """
    weights = next(step.table for step in steps if step.name == "weights").clone()
    if example.memory is None and weights.shape[0] > 1:
        weights.fill_diagonal_(-1.0)
    place = int(weights.argmax())
    return divmod(place, weights.shape[1])


def cell_of(step: WorkedStep, spot: tuple[int, int]) -> tuple[int, int]:
    """The cell of a step that the followed link passes through."""
    i, j = spot
    squares = ("scores", "scaled", "masked", "weights")
    row = j if step.name in ("key", "value", "memory") else i
    return min(row, step.table.shape[0] - 1), j if step.name in squares else 0


def story(example: Worked, steps: list[WorkedStep]) -> list[str]:
    """A sentence for each token and head: which key it attends to most."""
    lines: list[str] = []
    for step in steps:
        if step.name != "weights":
            continue
        for token, row in zip(example.tokens, step.table.tolist(), strict=True):
            best = max(range(len(row)), key=row.__getitem__)
            where = f"{step.where}: " if step.where else ""
            if row[best] == 0:
                lines.append(f'{where}"{visible(token)}" may look at nothing and takes zeros.')
                continue
            lines.append(
                f'{where}"{visible(token)}" attends most to "{visible(example.key_tokens[best])}": '
                f"it takes {row[best]:.1%} of its value."
            )
    return lines


def markdown(example: Worked, decimals: int) -> str:
    """Markdown: a heading, the formula and a table for each step."""
    steps = example.steps()
    spot = spotlight(example, steps)
    parts = [f"# {_plain_line(example.title)}"]
    for step in steps:
        parts += [f"## {_heading(step)}", f"`{step.formula}`: {step.meaning}."]
        parts.append(step_table(step, decimals).markdown())
        written = step.written(*cell_of(step, spot), decimals)
        if written:
            parts.append(f"{_plain_line(_followed(step, spot))}: `{written}`")
    parts.append("\n".join(f"- {_plain_line(line)}" for line in story(example, steps)))
    return "\n\n".join(parts)


def latex(example: Worked, decimals: int) -> str:
    """A LaTeX document: each step an equation of its matrices."""
    lines = [
        "% Compile with xelatex or lualatex where tokens are not Latin.",
        r"\documentclass{article}",
        r"\usepackage[margin=2cm]{geometry}",
        r"\usepackage{amsmath}",
        r"\begin{document}",
        rf"\section*{{{latex_text(example.title)}}}",
        "Tokens: " + ", ".join(latex_text(token) for token in example.tokens) + ".",
    ]
    for step in example.steps():
        heading = latex_text(_heading(step)).replace(
            latex_text(step.symbol), f"${_tex(step.symbol)}$"
        )
        lines.append(rf"\paragraph{{{heading}}} {latex_text(step.meaning)}.")
        lines.append(rf"\[ {_equation(step, decimals)} \]")
    return "\n".join([*lines, r"\end{document}"])


def html(example: Worked, decimals: int) -> str:
    """One self-contained page, light and dark."""
    steps = example.steps()
    spot = spotlight(example, steps)
    body = [f"<h1>{escape(visible(example.title))}</h1>"]
    for step in steps:
        body.append(f"<section><h2>{escape(_heading(step))}</h2>")
        body.append(f"<p><code>{escape(step.formula)}</code>: {escape(step.meaning)}.</p>")
        body.append(_html_table(step, decimals, spot))
        written = step.written(*cell_of(step, spot), decimals)
        if written:
            followed = escape(_followed(step, spot))
            body.append(f"<p>{followed}: <code>{escape(written)}</code></p>")
        body.append("</section>")
    body += [f"<p>{escape(line)}</p>" for line in story(example, steps)]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(visible(example.title))}</title><style>{_STYLE}</style></head>"
        f"<body>{''.join(body)}</body></html>"
    )


FORMATS: dict[str, Render] = {"markdown": markdown, "latex": latex, "html": html}
"""The formats of an example, besides the terminal's text."""


def _heading(step: WorkedStep) -> str:
    name = step.symbol if step.name == "x" or step.name.startswith("w_") else step.name
    rows, columns = step.table.shape
    where = f"{step.where}: " if step.where else ""
    return f"{where}{name} ({rows} × {columns})"


def _followed(step: WorkedStep, spot: tuple[int, int]) -> str:
    i, j = cell_of(step, spot)
    return f"{visible(step.rows[i])}, {visible(step.columns[j])}"


def _plain_line(text: str) -> str:
    return Table(("",), [(text,)]).markdown().splitlines()[-1][2:-2]


def _equation(step: WorkedStep, decimals: int) -> str:
    symbol = _tex(step.symbol)
    if step.operation == "product":
        left, right = step.factors()
        right_symbol = step.sources[1].symbol + "ᵀ" * step.transposed
        names = f"{_tex(step.sources[0].symbol)} {_tex(right_symbol)}"
        return f"{symbol} = {names} = {_matrix(left, decimals)} {_matrix(right, decimals)} = " + (
            _matrix(step.table, decimals)
        )
    if step.operation == "given":
        return f"{symbol} = {_matrix(step.table, decimals)}"
    source = ", ".join(_tex(source.symbol) for source in step.sources)
    right_side = {
        "scaled": f"{source} {_tex_scaling(step.scaling)}",
        "masked": rf"\operatorname{{mask}}({source})",
        "weights": rf"\operatorname{{softmax}}({source})",
        "concatenation": rf"\left[{source}\right]",
        "sum": " + ".join(_tex(source.symbol) for source in step.sources),
    }[step.name]
    return f"{symbol} = {right_side} = {_matrix(step.table, decimals)}"


def _tex_scaling(scaling: str) -> str:
    r"""How scores are scaled, in LaTeX.

    >>> _tex_scaling("/ √2"), _tex_scaling("· 0.5")
    ('/ \\sqrt{2}', '\\cdot 0.5')
    """
    return re.sub(r"√(\d+)", r"\\sqrt{\1}", scaling).replace("·", r"\cdot")


def _matrix(table: torch.Tensor, decimals: int) -> str:
    count = digits(table, decimals)
    rows = (
        " & ".join(number(value, count).replace("−", "-").replace("∞", r"\infty") for value in row)
        for row in table.tolist()
    )
    return r"\begin{bmatrix}" + r" \\ ".join(rows) + r"\end{bmatrix}"


def _tex(symbol: str) -> str:
    """A symbol in LaTeX: W_Q₁⁽²⁾ as W_{Q1}^{(2)}."""
    low = "".join(c for c in symbol if "₀" <= c <= "₉")  # subscript digits
    high = "".join(c for c in symbol if c in "⁰¹²³⁴⁵⁶⁷⁸⁹⁽⁾")  # superscripts
    primes = symbol.count("′") + 2 * symbol.count("″")
    base, _, under = "".join(c for c in symbol if c not in low + high + "′″ᵀ").partition("_")
    down, up = (unicodedata.normalize("NFKC", part) for part in (under + low, high))
    up += r"\prime" * primes + r"\top" * symbol.count("ᵀ")
    return base + (f"_{{{down}}}" if down else "") + (f"^{{{up}}}" if up else "")


def _html_table(step: WorkedStep, decimals: int, spot: tuple[int, int]) -> str:
    count, shares = digits(step.table, decimals), step.name == "weights"
    marked = cell_of(step, spot) if step.operation != "given" else None
    head = "".join(f"<th>{escape(visible(name))}</th>" for name in step.columns)
    lines = [f"<tr><th></th>{head}{'<th>sum</th>' if shares else ''}</tr>"]
    for i, (name, row) in enumerate(zip(step.rows, step.table.tolist(), strict=True)):
        cells = "".join(
            f"<td{_mark((i, j) == marked, value if shares else None)}>{number(value, count)}</td>"
            for j, value in enumerate(row)
        )
        total = f"<td>{number(sum(row), count)}</td>" if shares else ""
        lines.append(f"<tr><th>{escape(visible(name))}</th>{cells}{total}</tr>")
    return f"<table>{''.join(lines)}</table>"


def _mark(marked: bool, share: float | None) -> str:
    style = ""
    if share is not None:
        light, dark = (shade(0.75 * share, scale) for scale in (LIGHT.scale, DARK.scale))
        style = f' style="--light:rgb{light};--dark:rgb{dark}"'
    names = [*(["marked"] if marked else []), *(["share"] if share is not None else [])]
    return (f' class="{" ".join(names)}"' if names else "") + style


def _css(palette: object) -> Iterator[str]:
    for name in ("paper", "ink", "muted", "line", "query"):
        yield f"--{name}:{getattr(palette, name)}"


_STYLE = f"""
:root{{color-scheme:light dark;{";".join(_css(LIGHT))}}}
body{{margin:2rem auto;max-width:52rem;padding:0 1rem;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,sans-serif}}
h2{{margin:2rem 0 0;font-size:1.1rem}} code{{font-size:.95em}}
table{{border-collapse:collapse;font-variant-numeric:tabular-nums}}
th{{font-weight:600;color:var(--muted);text-align:right}} th:first-child{{text-align:left}}
td,th{{padding:.2rem .7rem;border-bottom:1px solid var(--line);text-align:right}}
td.marked{{outline:2px solid var(--query)}} td.share{{background:var(--light)}}
@media (prefers-color-scheme:dark){{
:root{{{";".join(_css(DARK))}}} td.share{{background:var(--dark)}}}}
"""
