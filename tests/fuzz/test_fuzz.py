"""A few cases of each kind, and every saved case that failed (`make fuzz` tries more)."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fuzz import attention, files

SAVED = sorted((Path(__file__).parent / "saved").glob("*-*"))


def seeds(kind: str, count: int) -> list[int]:
    saved = [path.stem.split("-")[1] for path in SAVED if path.name.startswith(f"{kind}-")]
    return [*range(count), *map(int, saved)]


@pytest.mark.parametrize("seed", seeds("attention", 4))
def test_attention_agrees_with_the_oracle(seed: int) -> None:
    attention.check(seed)


@pytest.mark.parametrize("seed", seeds("sinks", 10))
def test_attention_with_sinks_agrees_with_the_oracle(seed: int) -> None:
    attention.check_sinks(seed)


def test_wrong_arguments_raise_only_our_errors(untyped: None) -> None:
    for seed in seeds("refusals", 60):
        attention.check_refusals(seed)


def test_damaged_files_raise_only_our_errors(tmp_path: Path, untyped: None) -> None:
    readers = files.sources(tmp_path)
    contents = {path: path.read_bytes() for path in readers}
    cases = [files.drawn(seed, readers, contents) for seed in range(30)]
    for saved in (path for path in SAVED if path.name.startswith("files-")):
        name = saved.name.split("-", 2)[2].split("+")
        cases.append((tmp_path.joinpath(*name), saved.read_bytes()))
    for path, damage in cases:
        files.check(path, damage, readers, contents)
