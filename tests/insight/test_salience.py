"""Salient links follow the stated rule, as computed from dense weights and plain loops."""

from __future__ import annotations

import json
import math

import pytest
import torch

import limelight as ll
from limelight.insight import top_links
from limelight.insight.salience import (
    head_links,
    opening,
    pooled,
    receivers,
    salience,
    salient,
    salient_links,
    strongest,
)
from limelight.insight.summary import FUNCTION_WORDS, background, summary
from limelight.ops.lens.sources import Recomputed
from limelight.seeing.choice import LENS
from limelight.seeing.recording.recording import Recording


@pytest.fixture(scope="module")
def sentence() -> Recording:
    return ll.look("The animal didn't cross the street because it was too tired.")


def test_the_known_sentence_opens_at_it_and_animal(sentence: Recording) -> None:
    link = salient(sentence)
    assert link is not None
    assert (link.layer, link.head) == (3, 1)
    assert sentence.queries[link.query].text == "it"
    assert sentence.tokens[link.key].text == "animal"
    assert f"{link.weight:.3f}" == "0.677"


@pytest.mark.parametrize(
    ("text", "query", "key"),
    [
        ("Mary went to the bank to deposit her money.", "her", "Mary"),
        ("The keys to the old cabinet in the hall are on the table.", "are", "keys"),
    ],
)
def test_other_sentences_open_at_a_sensible_link(text: str, query: str, key: str) -> None:
    recording = ll.look(text)
    link = salient(recording)
    assert link is not None
    assert recording.queries[link.query].text == query
    assert recording.tokens[link.key].text == key


def valued_links(recording: Recording, layer: int, head: int) -> list[tuple[float, int, int]]:
    """Every link of a head with its value by the rule, highest first: value, query, key."""
    weights = recording.weights(layer, head).double()
    size, hidden = len(recording.tokens), background(recording)
    causal = bool((weights[0, 1:] == 0).all())
    listed = torch.zeros_like(weights)
    top = weights.topk(min(8, size))
    listed.scatter_(1, top.indices, top.values)
    offsets = {d: float(listed.diagonal(-d).sum()) for d in range(1 - size, size)}
    links = []
    for i, query in enumerate(recording.queries):
        for j, key in enumerate(recording.tokens):
            words = min(abs(query.word - key.word), 64)
            if query.special or query.separates or j in hidden or words < 2:
                continue
            weight, seeing = float(weights[i, j]), size - j if causal else size
            key_share = (float(weights[:, j].sum()) - weight) / (seeing + 1)
            same = max(0.0, offsets[i - j] - weight)
            near = max(same, offsets.get(i - j - 1, 0.0), offsets.get(i - j + 1, 0.0))
            offset_share = near / (size - abs(i - j) + 1)
            functions = sum(token.text.lower() in FUNCTION_WORDS for token in (query, key))
            value = (weight - max(key_share, offset_share)) * math.log2(words) * 0.5**functions
            links.append((value, i, j))
    return sorted(links, reverse=True)


def random_recording(heads: int = 2, size: int = 60, **options: object) -> Recording:
    torch.manual_seed(1)
    q, k, v = torch.randn(3, 1, heads, size, 8) * 1.5
    _, seen = ll.attend(q, k, v, lens=LENS, **options)
    words = ["," if place % 7 == 3 else f"w{place}" for place in range(size)]
    named = Recording.of_weights([torch.eye(size)[None]], words)
    return Recording(named.text, named.tokens, (seen,))


@pytest.mark.parametrize("mask", [None, ll.causal()], ids=["all", "causal"])
def test_the_salient_link_has_the_highest_value_of_all_links(
    sentence: Recording, mask: ll.Mask | None
) -> None:
    for recording in (sentence, random_recording(mask=mask)):
        best, layer, head, (query, key) = max(
            (value, layer, head, (i, j))
            for layer in recording.layer_numbers
            for head in recording.head_numbers
            for value, i, j in valued_links(recording, layer, head)[:1]
        )
        link = salient(recording)
        assert link is not None
        assert link[:4] == (layer, head, query, key)
        assert salience(recording, link) == pytest.approx(best, rel=1e-3)


@pytest.mark.parametrize("mask", [None, ll.causal()], ids=["all", "causal"])
def test_links_beyond_the_heaviest_are_valued_where_they_could_matter(
    monkeypatch: pytest.MonkeyPatch, mask: ll.Mask | None
) -> None:
    expected = random_recording(mask=mask)
    monkeypatch.setattr(top_links, "SAMPLE", 3)
    sampled = random_recording(mask=mask)
    assert salient_links(sampled, 24) == salient_links(expected, 24)
    assert strongest(sampled, 24) == strongest(expected, 24)
    assert torch.equal(head_links(sampled).key, head_links(expected).key)


def test_links_that_the_lens_did_not_record_are_found() -> None:
    """Where punctuation takes all eight recorded links of every query."""
    torch.manual_seed(2)
    size = 40
    weights = torch.rand(1, 1, size, size) * 0.1
    stops = [place for place in range(size) if place % 4 == 0]
    weights[..., stops] += 1.0
    weights = weights / weights.sum(-1, keepdim=True)
    words = ["." if place in stops else f"w{place}" for place in range(size)]
    recording = Recording.of_weights([weights[0]], words, lens=LENS)
    assert set(recording.seen(0).top.indices.unique().tolist()) <= set(stops)
    plain = weights[0, 0].clone()
    plain[:, stops] = 0.0
    plain[stops] = 0.0
    near = torch.arange(size)
    plain[(near[:, None] - near).abs() < 2] = 0.0
    best = plain.flatten().topk(5)
    links = strongest(recording, 5).links
    assert [link.query * size + link.key for link in links] == best.indices.tolist()
    assert float(head_links(recording).weight) == pytest.approx(float(best.values[0]))


def test_salient_links_have_exact_weights_and_at_most_two_come_from_one_head(
    sentence: Recording,
) -> None:
    links = salient_links(sentence, 20)
    heads = [(link.layer, link.head) for link in links]
    assert max(map(heads.count, heads)) <= 2
    assert len({(link.query, link.key) for link in links}) == 20
    for link in links:
        exact = float(sentence.weights(link.layer, link.head)[link.query, link.key])
        assert link.weight == pytest.approx(exact, abs=1e-5)


def test_a_head_with_a_fixed_offset_does_not_open_a_view() -> None:
    size = 80
    offset = torch.zeros(1, size, size)
    offset[0, torch.arange(size), (torch.arange(size) - 9).clamp_min(0)] = 1.0
    content = torch.full((1, size, size), 1 / size)
    content[0, 50] = 0.4 / (size - 1)
    content[0, 50, 20] = 0.6
    words = [f"w{place}" for place in range(size)]
    link = salient(Recording.of_weights([torch.cat([offset, content])], words))
    assert link is not None
    assert link[:4] == (0, 1, 50, 20)


def test_salient_links_need_only_the_statistics() -> None:
    recording = random_recording()
    seen = recording.seen(0)
    assert isinstance(seen.source, Recomputed)
    bare = Recording(
        recording.text,
        recording.tokens,
        (ll.Seen(seen.extent, seen.lens, seen.statistics, None),),
    )
    assert salient_links(bare, 5) == salient_links(recording, 5)
    swept = Recording.of_weights([seen.dense()[0]], [token.text for token in recording.tokens])
    assert [link[:4] for link in salient_links(swept, 5)] == [
        link[:4] for link in salient_links(recording, 5)
    ]
    torch.testing.assert_close(summary(swept).entropy, summary(recording).entropy)
    torch.testing.assert_close(summary(swept).distance, summary(recording).distance)


def test_a_pooled_map_holds_the_strongest_recorded_link_of_each_cell() -> None:
    recording = random_recording()
    weights = recording.weights(0, 1)
    listed = torch.zeros_like(weights).scatter_(1, *weights.topk(8)[::-1])
    exact = listed.unflatten(0, (6, 10)).unflatten(2, (6, 10)).amax((1, 3))
    torch.testing.assert_close(
        pooled(recording, 0, (6, 6), background=True)[1], exact, atol=1e-5, rtol=1e-5
    )


def test_the_search_can_be_limited_to_a_layer_and_head(sentence: Recording) -> None:
    link = salient(sentence, layer=5, head=11)
    assert link is not None
    assert (link.layer, link.head) == (5, 11)
    assert sentence.tokens[link.key].text == "animal"


def test_without_a_salient_link_a_view_opens_at_the_first_token() -> None:
    recording = Recording.of_weights([torch.eye(2)[None]], [".", "!"])
    assert salient(recording) is None
    assert opening(recording)[:4] == (0, 0, 0, 0)


def test_a_recording_says_where_its_numbers_are_not_finite() -> None:
    """A model that overflows is shown up to there, and its JSON and page hold no NaN."""
    torch.manual_seed(4)
    model = ll.load("minilm")
    with torch.no_grad():
        model.stack.blocks[2].attention.inputs.weight[40, 3] = float("nan")
    recording = ll.look("The old man gave his dog to the girl next door.", model=model)
    assert recording.nonfinite.startswith("Numbers are not finite from layer 2 (first in head")
    link = salient(recording)
    assert link is not None
    assert math.isfinite(link.weight)
    assert link.layer in (0, 1, 2)
    document = json.loads(recording.to_json(), parse_constant=pytest.fail)
    assert document["nonfinite"] == recording.nonfinite
    assert recording._repr_html_().count("Numbers are not finite") == 1
    assert ll.look("All is well.").nonfinite == ""


def test_tables_hold_the_recorded_links(sentence: Recording) -> None:
    table = sentence.links(layer=3, head=1, least=0.05)
    rows = table.to_pylist()
    assert rows[0].keys() == {"layer", "head", "query", "key", "weight", "query_token", "key_token"}
    (it,) = [row for row in rows if row["query_token"] == "it" and row["key_token"] == "animal"]
    assert it["weight"] == pytest.approx(0.677, abs=5e-4)
    exact = sentence.weights(3, 1)
    assert len(rows) == int((exact.topk(8).values >= 0.05).sum())
    carried = ll.look(sentence.text, lens=ll.Lens(value_top=2)).links(3, 1, by="value")
    assert carried.num_rows == 2 * len(sentence.tokens)
    assert sentence.entropy.shape == sentence.distance.shape == (6, 12, 16)


def test_a_sink_inside_a_long_text_is_background() -> None:
    n = 300
    words = [f"word{k}" for k in range(n)]
    words[71], words[150] = "the", "harbour"
    weights = torch.rand(2, 3, n, n, generator=torch.Generator().manual_seed(0)).tril()
    weights /= weights.sum(-1, keepdim=True)
    weights[..., 71:, :] *= 0.8
    weights[..., 71:, 71] += 0.2  # a sink: from every query in every head
    weights[:, :1, 200:, 150] += 0.02  # a word that one head looks at
    weights /= weights.sum(-1, keepdim=True)
    recording = ll.Recording.of_weights(list(weights), words)
    assert 71 in background(recording)
    assert 150 not in background(recording)
    names = [words[key] for key, _ in receivers(recording, 8)]
    assert "the" not in names
    # in a short text no token is a sink but the first
    short = ll.Recording.of_weights(list(weights[..., :100, :100]), words[:100])
    assert 71 not in background(short)
