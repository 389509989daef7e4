"""Fill in every number, table and figure of the guide, by running the code that they describe.

    .venv/bin/python docs/make_guide.py                # rewrite pages and slides
    .venv/bin/limelight study NAME --to docs/studies   # measure a study again

Generated parts stand between `<!-- made: step query -->` and `<!-- end -->`, on lines of their own
or within one; the words after `made:` name a function below and its arguments. A test compares the
pages with the output of this script.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import limelight as ll
from limelight.insight.studies.study import Check, Curve, Panel, Study
from limelight.insight.table import Table
from limelight.insight.worked.rendering import step_table
from limelight.insight.worked.slides import save_slides

FOLDER = Path(__file__).parent
SENTENCE = "The animal didn't cross the street because it was too tired."
_BLOCK = re.compile(r"(<!-- made: ([^>]*?) -->)(.*?)(<!-- end -->)", re.DOTALL)


def step(name: str, example: str = "apple-phones") -> str:
    """The table of one step of a worked example."""
    [chosen] = [each for each in ll.worked(example).steps() if each.name == name]
    return step_table(chosen, 3).markdown()


def cell(name: str, row: str, column: str, example: str = "apple-phones") -> str:
    """One cell of a step, written out."""
    [chosen] = [each for each in ll.worked(example).steps() if each.name == name]
    return f"`{chosen.written(chosen.rows.index(row), chosen.columns.index(column))}`"


def audit(example: str = "apple-phones") -> str:
    """The printed numbers that do not follow from the ones before them."""
    return ll.worked(example).audit().table().markdown()


def weight(query: str, key: str, layer: str, head: str) -> str:
    """A weight of MiniLM in the sentence of the guide."""
    recording = _recording()
    links = dict(recording.top(layer=int(layer), head=int(head), token=query))
    return f"{links[key]:.3f}"


def top(query: str, layer: str, head: str) -> str:
    """What a token attends to most in the sentence of the guide."""
    links = _recording().top(layer=int(layer), head=int(head), token=query)[:4]
    return Table(("token", "weight"), [tuple(link) for link in links]).markdown()


def study(name: str) -> str:
    """The stored measurement of a study: its verdict, its checks and its figure."""
    result = read_study(name)
    claim = result.claim[0].upper() + result.claim[1:].rstrip(".")
    tables = [replace(result.table(), title=""), *result.tables]
    parts = [f"**{claim}: {result.verdict}.**", *(table.markdown() for table in tables)]
    parts.append(f"![{name}](../studies/{name}.png)")
    return "\n\n".join([*parts, result.notes] if result.notes else parts)


def read_study(name: str) -> Study:
    """A study from its JSON; the verdict and which checks hold are recomputed."""
    stored = json.loads((FOLDER / "studies" / f"{name}.json").read_text(encoding="utf-8"))
    del stored["verdict"]
    for check in stored["checks"]:
        del check["holds"]
        check["interval"] = check["interval"] and tuple(check["interval"])
    for panel in stored["panels"]:
        panel["curves"] = [Curve(**curve) for curve in panel["curves"]]
    for table in stored["tables"]:
        table["columns"] = tuple(table["columns"])
    kinds = {"checks": Check, "panels": Panel, "tables": Table}
    parts = {name: tuple(kind(**each) for each in stored[name]) for name, kind in kinds.items()}
    return Study(**{**stored, **parts})


def row(query: str, layer: str, head: str, *keys: str) -> str:
    """Some weights of a token in the sentence of the guide, as a row of the matrix."""
    links = dict(_recording().top(layer=int(layer), head=int(head), token=query))
    return Table(("from \\ to", *keys), [(query, *(links[key] for key in keys))]).markdown()


def compare(query: str, layer: str, head: str) -> str:
    """What a token attends to in the sentence of the guide, ending in "tired" or in "wide"."""
    rows = [
        (word, *(f"{token} {weight:.3f}" for token, weight in links[:3]))
        for word in ("tired", "wide")
        for links in [
            ll.look(SENTENCE.replace("tired", word)).top(
                layer=int(layer), head=int(head), token=query
            )
        ]
    ]
    return Table(("… was too", "first", "second", "third"), rows).markdown()


def shift(word: str) -> str:
    """How a word's vector moves in two sentences, toward two groups of words."""
    sentences, toward = _SHIFTS[word]
    return ll.shift(word, sentences, toward).table().markdown()


_SHIFTS = {
    "apple": (
        ["I love apple phones.", "I love apple pie."],
        {"fruit": ["banana", "pear", "mango"], "tech": ["laptop", "computer", "phone"]},
    ),
    "bank": (
        [
            "The bank was closed because the vault was stuck.",
            "We sat on the bank of the river and watched the water.",
        ],
        {"money": ["vault", "money", "loan"], "water": ["river", "stream", "lake"]},
    ),
}


def comparisons(n: str) -> str:
    """How many pairs there are among n tokens."""
    return f"{int(n) ** 2:,}"


@cache
def _recording() -> ll.Recording:
    return ll.look(SENTENCE)


MAKERS: dict[str, Callable[..., str]] = {
    each.__name__: each
    for each in (step, cell, audit, weight, top, study, row, compare, shift, comparisons)
}


def filled(page: str) -> str:
    """A page with its generated parts up to date."""

    def replacement(match: re.Match[str]) -> str:
        name, *words = match.group(2).split()
        text = MAKERS[name](*words)
        gap = "\n\n" if "\n" in match.group(3) else ""
        return f"{match.group(1)}{gap}{text}{gap}{match.group(4)}"

    return _BLOCK.sub(replacement, page)


def pages() -> list[Path]:
    """Every page that may have generated parts."""
    return sorted(FOLDER.rglob("*.md"))


def main() -> None:
    """Rewrite all pages and slides."""
    for path in pages():
        path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")
    save_slides(ll.worked("apple-phones"), FOLDER / "figures" / "worked")


if __name__ == "__main__":
    main()
