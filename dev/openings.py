"""The share of texts that `show` opens at a sensible link, as a Markdown table in docs/openings.md.

    python dev/openings.py            judge both halves of tests/insight/openings/, write the page
    python dev/openings.py tuning -v  judge one half and print every opening; the other stays unseen

A link is sensible if the author of the text listed it before anything was measured: the pairs of
words in the .toml files, in either direction.
"""

from __future__ import annotations

import sys
import tomllib
from collections import Counter
from pathlib import Path

from limelight.insight.salience import opening, salient
from limelight.models.loading.pretrained import Model, load
from limelight.seeing.recording.recording import Recording
from limelight.seeing.recording.tokens import word_at
from limelight.seeing.windows import read

FOLDER = Path(__file__).parent.parent / "tests" / "insight" / "openings"


def stem(word: str) -> str:
    """A word without case, punctuation and ending, so that bees and bee are the same."""
    letters = "".join(letter for letter in word.casefold() if letter.isalnum())
    for ending in ("ings", "ing", "es", "s", "ed"):
        if len(letters) > len(ending) + 2 and letters.endswith(ending):
            return letters.removesuffix(ending)
    return letters


def words_of(recording: Recording) -> tuple[str, str] | None:
    """The query and key words of the link that a view opens at, or None if it has none."""
    if salient(recording) is None:
        return None
    link = opening(recording)
    return word_at(recording.queries, link.query), word_at(recording.tokens, link.key)


def is_sensible(pair: tuple[str, str] | None, listed: list[str]) -> bool:
    """Whether a link is among those listed as sensible."""
    if pair is None:
        return False
    query, key = map(stem, pair)
    if "same" in listed and query == key:
        return True
    pairs = [tuple(map(stem, line.split(">"))) for line in listed if ">" in line]
    return (query, key) in pairs or (key, query) in pairs


def judge(model: Model, half: str, *, verbose: bool = False) -> tuple[Counter[str], Counter[str]]:
    """The numbers of sensible openings and of texts, by kind of text."""
    sensible, total = Counter[str](), Counter[str]()
    for entry in tomllib.loads((FOLDER / f"{half}.toml").read_text(encoding="utf-8"))["text"]:
        pair = words_of(read(model, entry["text"]).recording)
        is_good = is_sensible(pair, entry["sensible"])
        sensible[entry["kind"]] += is_good
        total[entry["kind"]] += 1
        if verbose:
            print("yes" if is_good else "NO ", entry["kind"], pair)
    return sensible, total


PAGE = """# Where a view opens

`show` and the page open at the most salient link (`limelight.insight.salience`). Is it one that a
person would call sensible? Sixty texts of many kinds (coreference, Winograd pairs, questions, code,
numbers, dialogue, German, instructions, news, paragraphs) each come with a list of sensible links,
written before anything was measured. The rule was tuned on one half of the texts and not on the
other. The model is MiniLM.

{table}

Measured by `python dev/openings.py`; the texts are in `tests/insight/openings/`.
"""


def main() -> None:
    """Judge the halves named by the arguments, or both."""
    halves = [word for word in sys.argv[1:] if not word.startswith("-")]
    model = load("minilm")
    lines = ["| half | sensible openings | of texts | share |", "|---|---|---|---|"]
    for half in halves or ["tuning", "held_out"]:
        sensible, total = judge(model, half, verbose="-v" in sys.argv)
        share = sensible.total() / total.total()
        name = half.replace("_", " ")
        lines.append(f"| {name} | {sensible.total()} | {total.total()} | {share:.0%} |")
    print("\n".join(lines))
    if not halves:
        page = PAGE.format(table="\n".join(lines))
        (FOLDER.parents[2] / "docs" / "openings.md").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
