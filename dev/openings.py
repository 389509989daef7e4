"""The share of texts that `show` opens at a sensible link, as a Markdown table in docs/openings.md.

    python dev/openings.py            both halves of tests/insight/openings/, and writes the page
    python dev/openings.py tuning -v  one half, with every opening; the other stays unseen

A link counts where a person who wrote the text said so, before anything was measured: the pairs of
words in the .toml files, either way round.
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
    """A word without its case, its marks and its ending, so that bees and bee are the same."""
    letters = "".join(letter for letter in word.casefold() if letter.isalnum())
    for ending in ("ings", "ing", "es", "s", "ed"):
        if len(letters) > len(ending) + 2 and letters.endswith(ending):
            return letters.removesuffix(ending)
    return letters


def words_of(recording: Recording) -> tuple[str, str] | None:
    """Query and key of the link that a view opens at."""
    if salient(recording) is None:
        return None
    link = opening(recording)
    return word_at(recording.queries, link.query), word_at(recording.tokens, link.key)


def is_sensible(pair: tuple[str, str] | None, listed: list[str]) -> bool:
    """Whether a person would call the link sensible."""
    if pair is None:
        return False
    query, key = map(stem, pair)
    if "same" in listed and query == key:
        return True
    pairs = [tuple(map(stem, line.split(">"))) for line in listed if ">" in line]
    return (query, key) in pairs or (key, query) in pairs


def judge(model: Model, half: str, *, verbose: bool = False) -> tuple[Counter[str], Counter[str]]:
    """Sensible openings and all of them, by kind of text."""
    right, total = Counter[str](), Counter[str]()
    for entry in tomllib.loads((FOLDER / f"{half}.toml").read_text(encoding="utf-8"))["text"]:
        pair = words_of(read(model, entry["text"]).recording)
        good = is_sensible(pair, entry["sensible"])
        right[entry["kind"]] += good
        total[entry["kind"]] += 1
        if verbose:
            print("yes" if good else "NO ", entry["kind"], pair)
    return right, total


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
        right, total = judge(model, half, verbose="-v" in sys.argv)
        share = right.total() / total.total()
        name = half.replace("_", " ")
        lines.append(f"| {name} | {right.total()} | {total.total()} | {share:.0%} |")
    print("\n".join(lines))
    if not halves:
        page = PAGE.format(table="\n".join(lines))
        (FOLDER.parents[2] / "docs" / "openings.md").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
