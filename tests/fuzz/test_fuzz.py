"""A few cases of each kind, and every case that ever failed (`make fuzz` tries more)."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fuzz import attention, files

SAVED = [path.stem.rsplit("-", 1) for path in (Path(__file__).parent / "saved").glob("*-*.txt")]


def seeds(kind: str, count: int) -> list[int]:
    return [*range(count), *(int(seed) for saved, seed in SAVED if saved == kind)]


@pytest.mark.parametrize("seed", seeds("attention", 4))
def test_attention_agrees_with_the_oracle(seed: int) -> None:
    attention.check(seed)


def test_wrong_arguments_are_refused_in_words(untyped: None) -> None:
    for seed in seeds("refusals", 60):
        attention.check_refusals(seed)


def test_damaged_files_are_refused_in_words(tmp_path: Path, untyped: None) -> None:
    readers = files.sources(tmp_path)
    contents = {path: path.read_bytes() for path in readers}
    for seed in seeds("files", 30):
        files.check(seed, readers, contents)
