"""Texts longer than a model reads at once: linear time, bounded memory, and what is said of it."""

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


def test_weights_of_many_windows_are_not_kept_and_the_same_links_are_shown(
    minilm: ll.Encoder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole = read(minilm, STORY).recording
    monkeypatch.setattr(windows, "MOST_SOURCE", 1 << 20)
    bare = read(minilm, STORY).recording
    assert whole.layers[0].source is not None
    assert bare.layers[0].source is None
    assert bare.made["weights"] == "not kept for so many windows: only what the lens recorded"
    # what was recorded belongs to its rows alone: no view holds on to a whole window
    top = bare.layers[0].top.weights
    assert top.untyped_storage().nbytes() == top.nbytes
    assert salient_links(bare) == salient_links(whole)
    bare.save(tmp_path / "x.safetensors")
    again = ll.Recording.load(tmp_path / "x.safetensors")
    assert again.windows == whole.windows
    assert salient_links(again) == salient_links(whole)


def test_a_text_of_one_word_takes_time_linear_in_it(
    minilm: ll.Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows are all alike, so nearly all are recomputed to find the best: within windows."""
    counts: list[int] = []
    weights = Joined.weights

    def counted(self: Joined, rows: torch.Tensor, columns: range) -> torch.Tensor:
        counts.append(len(rows) * len(columns))
        return weights(self, rows, columns)

    monkeypatch.setattr(Joined, "weights", counted)
    recording = read(minilm, "word " * 1000).recording
    links = salient_links(recording)
    assert sum(counts) <= 6 * 1000 * 126
    # and they are the best of all, wherever they stand
    dense = torch.cat([seen.dense()[0] for seen in recording.layers])
    for link in links:
        exact = dense[12 * link.layer + link.head, link.query, link.key]
        assert link.weight == pytest.approx(float(exact), abs=1e-6)


def test_what_is_too_long_is_said(minilm: ll.Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "MOST_ROWS", 72 * 200)
    reading = read(minilm, "tick tock " * 150)
    assert (reading.taken, reading.total) == (200, 450)
    assert reading.recording.text == ("tick tock " * 67).strip()[: len(reading.recording.text)]
    assert len(reading.recording.tokens) == 200
    monkeypatch.setattr(windows, "MOST_CHARACTERS", 1000)
    with pytest.raises(OptionError, match="text has 1,500 characters, expected at most 1,000"):
        read(minilm, "tick tock " * 150)


@pytest.mark.parametrize(
    ("config", "recorded"),
    [
        (ll.Config.llama, (Window(8, 0, 8), Window(4, 4, 8))),
        (ll.Config.transformer2017, (Window(6, 0, 8), Window(6, 4, 8))),
    ],
)
def test_a_token_is_recorded_in_the_window_that_shows_most_of_its_context(config, recorded) -> None:
    """A decoder's tokens see those before them, those of an encoder see both ways."""
    tokens = Tokens.characters("abc")
    sizes = {"vocabulary": len(tokens), "width": 16, "layers": 2, "heads": 2, "context": 8}
    model = (ll.Decoder if config is ll.Config.llama else ll.Transformer)(config(**sizes)).eval()
    model.tokens = tokens
    assert read(model, "abc" * 4, stride=4).recording.windows == recorded


def test_windows_that_do_not_fit_are_refused() -> None:
    whole = ll.Recording.of_weights([torch.eye(3)[None]], ["a", "b", "c"])
    for wrong in ((Window(2, 0, 3),), (Window(3, 1, 3),), (Window(3, -1, 3),)):
        with pytest.raises(ShapeError, match=r"windows hold|does not fit"):
            ll.Recording(whole.text, whole.tokens, whole.layers, windows=wrong)
