"""How meaning shifts: apple and bank end where their sentences put them."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

import limelight as ll
from limelight.insight.shift import Shift

GROUPS = {"fruit": ["banana", "pear", "mango"], "tech": ["laptop", "computer", "phone"]}


@pytest.fixture(scope="module")
def minilm() -> ll.Encoder:
    return ll.load("minilm")


@pytest.fixture(scope="module")
def apple(minilm: ll.Encoder) -> Shift:
    return ll.shift("apple", ["I love apple phones.", "I love apple pie."], GROUPS, model=minilm)


def test_apple_ends_nearer_what_it_is_in_each_sentence(apple: Shift) -> None:
    phones, pie = apple.similarity[:, -1].tolist()  # fruit, tech
    assert phones == pytest.approx([0.24, 0.37], abs=0.02)
    assert pie == pytest.approx([0.44, 0.15], abs=0.02)
    # before attention the word is the same but for its place, and nearer to fruit
    torch.testing.assert_close(apple.similarity[0, 0], apple.similarity[1, 0], atol=1e-4, rtol=0)
    assert apple.nearest(0) == "tech"
    assert apple.nearest(1) == "fruit"


def test_what_it_took_from_is_the_values_it_weighed(apple: Shift, minilm: ll.Encoder) -> None:
    assert "phones" in apple.sources(0, 3)
    rec = ll.look("I love apple pie.", minilm)
    place = rec.find("apple")[0]
    seen = rec.seen(2)
    value: Any = seen.source.problem.value[0]  # pyright: ignore
    expected = (seen.dense()[0, :, place, :, None] * value).norm(dim=-1).sum(0)
    torch.testing.assert_close(apple.took[1][2], expected.double(), atol=1e-4, rtol=1e-4)


def test_bank_by_money_and_by_water(minilm: ll.Encoder) -> None:
    groups = {"water": ["river", "lake", "shore"], "money": ["cash", "loan", "vault"]}
    texts = ["She sat on the bank of the river.", "The bank kept the money in a vault."]
    found = ll.shift("bank", texts, groups, model=minilm)
    river, vault = found.similarity[:, -1].tolist()  # water, money
    assert river[0] > vault[0] + 0.1
    assert vault[1] > river[1] + 0.1


def test_views_of_the_result(apple: Shift, tmp_path: Any) -> None:
    apple.save(tmp_path / "shift.png")
    assert (tmp_path / "shift.png").stat().st_size > 10_000
    values = json.loads(apple.to_json())
    assert values["nearest"] == ["tech", "fruit"]
    assert len(values["similarity"][0]) == 7


@pytest.mark.parametrize(
    ("word", "sentences", "toward", "said"),
    [
        ("pear", ["I love apple pie."], GROUPS, "must stand once"),
        ("apple", ["An apple is an apple."], GROUPS, "found 2 times"),
        ("apple", [], GROUPS, "one or more sentences"),
        ("apple", ["An apple."], {}, "groups of words"),
    ],
)
def test_what_is_wrong_is_said(
    minilm: ll.Encoder, word: str, sentences: list[str], toward: Any, said: str
) -> None:
    with pytest.raises(ll.LimelightError, match=said):
        ll.shift(word, sentences, toward, model=minilm)
