"""The link a view opens at, by the stated rule."""

from __future__ import annotations

import math

import pytest
import torch

import limelight as ll
from limelight.insight.salience import most_telling, opening, telling
from limelight.seeing.recording.recording import Recording


def test_the_known_sentence_opens_at_it_and_animal(sentence: Recording) -> None:
    link = most_telling(sentence)
    assert link is not None
    assert (link.layer, link.head) == (3, 1)
    assert sentence.queries[link.query].text == "it"
    assert sentence.tokens[link.key].text == "animal"
    assert f"{link.weight:.3f}" == "0.677"


@pytest.mark.parametrize(
    ("text", "asks", "answers"),
    [
        ("Mary went to the bank to deposit her money.", "her", "Mary"),
        ("The keys to the old cabinet in the hall are on the table.", "are", "keys"),
    ],
)
def test_the_rule_is_not_made_for_one_sentence(text: str, asks: str, answers: str) -> None:
    recording = ll.look(text)
    link = most_telling(recording)
    assert link is not None
    assert recording.queries[link.query].text == asks
    assert recording.tokens[link.key].text == answers


def test_it_is_the_greatest_by_the_rule_over_all_links(sentence: Recording) -> None:
    best = 0.0
    apart = sentence.sinks | {j for j, t in enumerate(sentence.tokens) if t.separates}
    for layer in sentence.layer_numbers:
        for head in sentence.head_numbers:
            weights = sentence.weights(layer, head)
            average = weights.mean(0).tolist()
            for i, row in enumerate(weights.tolist()):
                asker = sentence.queries[i]
                for j, weight in enumerate(row):
                    if asker.special or asker.separates or j in apart:
                        continue
                    words = abs(asker.word - sentence.tokens[j].word)
                    best = max(best, (weight - average[j]) * math.log2(max(words, 1)))
    link = most_telling(sentence)
    assert link is not None
    assert telling(sentence, link) == pytest.approx(best, rel=1e-4)


def test_a_layer_or_head_can_be_held(sentence: Recording) -> None:
    link = most_telling(sentence, layer=5, head=11)
    assert link is not None
    assert (link.layer, link.head) == (5, 11)
    assert sentence.tokens[link.key].text == "animal"


def test_where_no_link_tells_the_first_token_opens() -> None:
    recording = Recording.of_weights([torch.eye(2)[None]], [".", "!"])
    assert most_telling(recording) is None
    assert opening(recording)[:4] == (0, 0, 0, 0)
