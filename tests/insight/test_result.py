"""`Result`: every subclass tabulates, serialises and saves itself, whatever it holds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure

from limelight.errors import FileError
from limelight.insight.result import Result
from limelight.insight.table import Table
from limelight.plotting import new_figure

HOSTILE = "[red]<b>|$&\x1b[31m"


@dataclass(frozen=True)
class Shares(Result):
    names: tuple[str, ...]
    shares: torch.Tensor

    def table(self) -> Table:
        return Table(("token", "share"), list(zip(self.names, self.shares.tolist(), strict=True)))

    def figure(self) -> Figure:
        figure = new_figure(2.0, 2.0)
        figure.add_subplot().bar(range(len(self.names)), self.shares.numpy())
        return figure

    def values(self) -> Mapping[str, Any]:
        return {"names": self.names, "shares": self.shares}


SHARES = Shares(("it", HOSTILE), torch.tensor([0.25, float("nan")]))


def test_json_is_strict_and_ascii() -> None:
    text = SHARES.to_json()
    assert text.isascii()
    assert json.loads(text, parse_constant=pytest.fail) == {
        "names": ["it", HOSTILE],
        "shares": [0.25, None],
    }


def test_no_cell_is_read_as_markup() -> None:
    table = SHARES.table()
    assert "[red]<b>|$&␛[31m" in str(table)
    assert r"\[red\]\<b\>\|\$&␛\[31m" in table.markdown()
    assert "[red]&lt;b&gt;|$&amp;␛[31m" in table.html()
    assert r"[red]<b>|\$\&␛[31m" in table.latex()
    assert "\x1b" not in SHARES._repr_html_() + table.latex() + table.markdown()


@pytest.mark.parametrize("ending", ["png", "svg", "json", "md", "tex", "html"])
def test_save_chooses_the_format_by_the_ending_of_the_path(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"shares.{ending}"
    SHARES.save(path)
    assert path.stat().st_size > 40
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_an_unknown_ending_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"one of \.png, .* found 'shares.doc'"):
        SHARES.save(tmp_path / "shares.doc")
