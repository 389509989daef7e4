"""Texts longer than a model reads at once: linear time, bounded memory, and what is reported."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import limelight as ll
from limelight.errors import OptionError, ShapeError
from limelight.insight.salience import salient_links
from limelight.models.tokens import Tokens
from limelight.ops.lens.sources import Joined
from limelight.seeing import windows
from limelight.seeing.recording.recording import Window
from limelight.seeing.windows import read

STORY = " ".join(f"On day {k} the captain wrote a letter to her sister." for k in range(40))


@pytest.fixture(scope="module")
def minilm() -> ll.Encoder:
    model = ll.load("minilm")
    assert isinstance(model, ll.Encoder)
    return model


def test_many_windows_keep_only_statistics_and_show_the_same_links(
    minilm: ll.Encoder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole = read(minilm, STORY).recording
    monkeypatch.setattr(windows, "MOST_SOURCE", 1 << 20)
    statistics_only = read(minilm, STORY).recording
    assert whole.layers[0].source is not None
    assert statistics_only.layers[0].source is None
    assert statistics_only.made["weights"].startswith("not kept for so many windows")
    # statistics are copies: no view keeps a whole window alive
    top = statistics_only.layers[0].top.weights
    assert top.untyped_storage().nbytes() == top.nbytes
    assert salient_links(statistics_only) == salient_links(whole)
    statistics_only.save(tmp_path / "x.safetensors")
    loaded = ll.Recording.load(tmp_path / "x.safetensors")
    assert loaded.windows == whole.windows
    assert salient_links(loaded) == salient_links(whole)


def test_the_search_for_links_is_linear_even_for_a_text_of_one_repeated_word(
    minilm: ll.Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows are all alike, so nearly all are recomputed, but each only within its window."""
    counts: list[int] = []
    weights = Joined.weights

    def counted(self: Joined, rows: torch.Tensor, columns: range) -> torch.Tensor:
        counts.append(len(rows) * len(columns))
        return weights(self, rows, columns)

    monkeypatch.setattr(Joined, "weights", counted)
    recording = read(minilm, "word " * 1000).recording
    links = salient_links(recording)
    assert sum(counts) <= 6 * 1000 * 126
    assert links
    dense = torch.cat([seen.dense()[0] for seen in recording.layers])
    for link in links:
        exact = dense[12 * link.layer + link.head, link.query, link.key]
        assert link.weight == pytest.approx(float(exact), abs=1e-6)


def test_a_text_beyond_the_limits_is_cut_or_refused(
    minilm: ll.Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows, "MOST_ROWS", 72 * 200)
    reading = read(minilm, "tick tock " * 150)
    assert (reading.taken, reading.total) == (200, 450)
    assert reading.recording.text == ("tick tock " * 67).strip()[: len(reading.recording.text)]
    assert len(reading.recording.tokens) == 200
    monkeypatch.setattr(windows, "MOST_CHARACTERS", 1000)
    with pytest.raises(OptionError, match="text has 1,500 characters, expected at most 1,000"):
        read(minilm, "tick tock " * 150)


@pytest.mark.parametrize(
    ("kind", "config", "recorded"),
    [
        (ll.Decoder, ll.Config.llama, (Window(8, 0, 8), Window(4, 4, 8))),
        (ll.Transformer, ll.Config.transformer2017, (Window(6, 0, 8), Window(6, 4, 8))),
    ],
)
def test_a_token_is_recorded_in_the_window_that_shows_most_of_its_context(kind, config, recorded):
    """A decoder's tokens see those before them, those of an encoder see both ways."""
    tokens = Tokens.characters("abc")
    sizes = {"vocabulary": len(tokens), "width": 16, "layers": 2, "heads": 2, "context": 8}
    model = kind(config(**sizes)).eval()
    model.tokens = tokens
    assert read(model, "abc" * 4, stride=4).recording.windows == recorded


def test_windows_that_do_not_fit_the_tokens_are_refused() -> None:
    whole = ll.Recording.of_weights([torch.eye(3)[None]], ["a", "b", "c"])
    for wrong in ((Window(2, 0, 3),), (Window(3, 1, 3),), (Window(3, -1, 3),)):
        with pytest.raises(ShapeError, match=r"windows hold|does not fit"):
            ll.Recording(whole.text, whole.tokens, whole.layers, windows=wrong)
