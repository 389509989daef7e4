"""A small table of results, for the terminal, Markdown, LaTeX and HTML."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.text import Text

from limelight.labels import visible

Cell = str | int | float | bool | None


@dataclass(frozen=True)
class Table:
    """Rows of cells under named columns; numbers are right-aligned, None is an empty cell.

    >>> table = Table(("token", "weight"), [("animal", 0.677), ("street", 0.1)])
    >>> print(table.markdown())
    | token | weight |
    | --- | ---: |
    | animal | 0.677 |
    | street | 0.100 |
    """

    columns: tuple[str, ...]
    rows: Sequence[Sequence[Cell]]
    title: str = ""
    decimals: int = 3
    right_aligned: bool = False
    """whether all columns but the first are right-aligned, even if they hold text"""

    def cells(self) -> list[list[str]]:
        """Every cell as text, control characters made visible."""
        return [[_text(cell, self.decimals) for cell in row] for row in self.rows]

    def numeric(self) -> list[bool]:
        """Which columns are right-aligned: those that hold nothing but numbers."""
        if self.right_aligned:
            return [column > 0 for column in range(len(self.columns))]
        columns = [[row[c] for row in self.rows] for c in range(len(self.columns))]
        return [
            any(cell is not None for cell in column)
            and all(_is_number(cell) for cell in column if cell is not None)
            for column in columns
        ]

    def markdown(self) -> str:
        """A pipe table, as GitHub and MkDocs render it."""
        rule = ["---:" if number else "---" for number in self.numeric()]
        lines = [[_pipe(_label(name)) for name in self.columns], rule]
        lines += [[_pipe(cell) for cell in row] for row in self.cells()]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return f"**{_pipe(_label(self.title))}**\n\n{table}" if self.title else table

    def latex(self) -> str:
        """A `tabular` with rules of `booktabs`."""
        align = "".join("r" if number else "l" for number in self.numeric())
        head = " & ".join(latex_text(name) for name in self.columns)
        body = " \\\\\n".join(" & ".join(map(latex_text, row)) for row in self.cells())
        return (
            f"\\begin{{tabular}}{{{align}}}\n\\toprule\n{head} \\\\\n\\midrule\n"
            f"{body} \\\\\n\\bottomrule\n\\end{{tabular}}"
        )

    def html(self) -> str:
        """A plain `<table>`, all its text escaped."""
        numeric = self.numeric()

        def row(cells: Sequence[str], tag: str) -> str:
            tags = (
                f'<{tag} style="text-align:{"right" if number else "left"}">{escape(cell)}</{tag}>'
                for cell, number in zip(cells, numeric, strict=True)
            )
            return f"<tr>{''.join(tags)}</tr>"

        title = f"<caption>{escape(_label(self.title))}</caption>" if self.title else ""
        head = row([_label(name) for name in self.columns], "th")
        body = "".join(row(cells, "td") for cells in self.cells())
        return f"<table>{title}<thead>{head}</thead><tbody>{body}</tbody></table>"

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        """In the terminal, where no cell is read as markup."""
        from rich import box
        from rich.table import Table as RichTable

        table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
        cells = self.cells()
        names = [_label(name) for name in self.columns]
        widths = [max(map(cell_len, column)) for column in zip(names, *cells, strict=True)]
        tight = sum(widths) + 2 * len(widths) > options.max_width
        for column, (name, number) in enumerate(zip(names, self.numeric(), strict=True)):
            # In a narrow terminal the names of numbers wrap rather than the text beside them.
            entries = [*name.split(), *(row[column] for row in cells)]
            most = max(map(cell_len, entries)) if number and tight else None
            table.add_column(Text(name), justify="right" if number else "left", max_width=most)
        for row in cells:
            table.add_row(*(Text(cell) for cell in row))
        if self.title:
            yield Text(_label(self.title), style="bold")
        yield table

    def __str__(self) -> str:
        console = Console(width=100, file=None, force_terminal=False, color_system=None)
        with console.capture() as captured:
            console.print(self)
        return "\n".join(line.rstrip() for line in captured.get().rstrip().splitlines())


def latex_text(text: str) -> str:
    """Text as LaTeX reads it literally.

    >>> print(latex_text("50% of $x_1"))
    50\\% of \\$x\\_1
    """
    return visible(text).translate(_LATEX)


_LATEX = str.maketrans(
    {sign: f"\\{sign}" for sign in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
)


def _label(name: str) -> str:
    return visible(name, 1000) if name else ""


def _is_number(cell: Cell) -> bool:
    return isinstance(cell, int | float) and not isinstance(cell, bool)


def _text(cell: Cell, decimals: int) -> str:
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, float):
        return f"{cell:.{decimals}f}"
    return f"{cell:,}" if isinstance(cell, int) else _label(cell)


def _pipe(text: str) -> str:
    """Text escaped for a cell of Markdown, so that it cannot end the cell or start markup."""
    return re.sub(r"([\\`*_\[\]|<>$])", r"\\\1", text)
