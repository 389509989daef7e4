"""The worked example: right numbers, and the slips of print found where they were made."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch

from limelight.errors import FileError
from limelight.insight.worked import EXAMPLES, load_worked


def test_the_steps_are_what_plain_arithmetic_gives() -> None:
    steps = {step.name: step.table for step in load_worked().steps()}
    query = [[1.2, 0.6], [1.0, 1.1], [1.1, 0.7], [0.4, 1.3]]
    key = [[1.1, 0.7], [0.9, 1.2], [0.6, 1.2], [1.2, 0.5]]
    assert torch.allclose(steps["query"], torch.tensor(query, dtype=torch.float64))
    assert torch.allclose(steps["key"], torch.tensor(key, dtype=torch.float64))
    by_hand = torch.softmax(steps["query"] @ steps["key"].T / 2**0.5, dim=1)
    assert torch.allclose(steps["weights"], by_hand)
    assert torch.allclose(steps["output"], by_hand @ steps["value"])


def test_the_audit_finds_every_slip_where_it_was_made() -> None:
    slips = load_worked().audit()
    assert Counter(slip.step for slip in slips) == {"key": 7, "value": 6, "scores": 2}
    scores = {(slip.token, slip.column): slip for slip in slips if slip.step == "scores"}
    assert scores["love", "phones"].follows == pytest.approx(1.63)
    assert scores["phones", "phones"].follows == pytest.approx(0.91)


def test_a_correct_print_has_no_slip(tmp_path: Path) -> None:
    text = (EXAMPLES / "apple-phones.toml").read_text().partition("[printed]")[0]
    steps = {step.name: step.table for step in load_worked().steps()}
    lines = ["[printed]"]
    for name, digits in (
        ("query", 1),
        ("key", 1),
        ("value", 1),
        ("scores", 2),
        ("weights", 3),
        ("output", 3),
    ):
        rows = [" ".join(f"{x:.{digits}f}" for x in row) for row in steps[name].tolist()]
        lines.append(f"{name} = {rows!r}")
    path = tmp_path / "right.toml"
    path.write_text(text + "\n".join(lines))
    assert load_worked(path).audit() == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tokens = [", "not a TOML file"),
        ("x = [[1]]", "tokens is missing"),
        ('tokens = ["a"]\nx = [[1], [2, 3]]', "x must be rows of numbers"),
        (
            'tokens = ["a"]\nx = [[1], [2]]\nw_query = [[1]]\nw_key = [[1]]\nw_value = [[1]]',
            "x has 2 rows",
        ),
        (
            'tokens = ["a"]\nx = [[1, 2]]\nw_query = [[1]]\nw_key = [[1]]\nw_value = [[1]]',
            "w_query has 1 rows",
        ),
    ],
)
def test_a_wrong_file_is_refused_in_words(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "example.toml"
    path.write_text(text)
    with pytest.raises(FileError, match=words):
        load_worked(path)


def test_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(FileError, match="known: apple-phones"):
        load_worked("pear-phones")
