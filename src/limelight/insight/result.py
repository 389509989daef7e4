"""The base class of all results: plain values with a table, a figure and JSON."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from limelight.errors import FileError
from limelight.files import check_path, writing
from limelight.insight.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console, ConsoleOptions, RenderableType


class Result(ABC):
    """The answer to one question about attention, as a value.

    A result is a frozen dataclass of plain fields. A subclass defines its table, its figure and its
    values for JSON; from these the base class prints it in a terminal, displays it in a notebook
    and saves it in the format that a path ends in.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Shares(Result):
    ...     shares: dict[str, float]
    ...     def table(self): return Table(("token", "share"), list(self.shares.items()))
    ...     def figure(self): raise NotImplementedError
    ...     def values(self): return {"shares": self.shares}
    >>> Shares({"animal": 0.75}).to_json()
    '{"shares": {"animal": 0.75}}'
    """

    @abstractmethod
    def table(self) -> Table:
        """The numbers in rows and columns."""

    @abstractmethod
    def figure(self) -> Figure:
        """The numbers drawn."""

    @abstractmethod
    def values(self) -> Mapping[str, Any]:
        """The fields as plain values: tables, lists, texts and numbers; tensors are allowed."""

    def to_json(self, *, indent: int | None = None) -> str:
        """All of it as JSON in ASCII; NaN and infinity become null."""
        return json.dumps(plain(self.values()), indent=indent, allow_nan=False)

    def save(self, path: str | Path) -> None:
        """Write a file by its ending: .png, .svg, .pdf (the figure), .json, .md, .tex, .html."""
        from limelight.plotting import FORMATS, save_figure

        path = check_path(path)
        ending = path.suffix.lower()
        if ending in FORMATS:
            return save_figure(self.figure(), path)
        writers = {
            ".json": lambda: self.to_json(indent=1),
            ".md": lambda: self.table().markdown(),
            ".tex": lambda: self.table().latex(),
            ".html": self._repr_html_,
        }
        if ending not in writers:
            known = ", ".join([*FORMATS, *writers])
            raise FileError(f"path must end in one of {known}, found {path.name!r}")
        text = writers[ending]()
        with writing(path) as temporary:
            temporary.write_text(text + "\n", encoding="utf-8")
        return None

    def _repr_html_(self) -> str:
        """In a notebook: the table and, where matplotlib is installed, the figure."""
        from limelight.errors import UnavailableError
        from limelight.plotting import inline_svg

        try:
            figure = inline_svg(self.figure())
        except UnavailableError:
            figure = ""
        return f"<div>{self.table().html()}{figure}</div>"

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        """In a terminal: the table."""
        yield self.table()

    def __str__(self) -> str:
        return str(self.table())


def plain(value: Any) -> Any:
    """The same value in JSON's types: tensors as lists, dataclasses as objects, NaN as None.

    >>> import torch
    >>> plain({"weights": torch.eye(2), "worst": float("inf"), 3: ("a", None)})
    {'weights': [[1.0, 0.0], [0.0, 1.0]], 'worst': None, '3': ['a', None]}
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, Mapping):
        mapping = cast("Mapping[Any, Any]", value)
        return {str(key): plain(item) for key, item in mapping.items()}
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    if hasattr(value, "__dataclass_fields__"):
        return {name: plain(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, Path):
        return str(value)
    return [plain(item) for item in value]
