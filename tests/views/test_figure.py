"""Figures: every kind in every format, whatever the tokens are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.image
import pytest
import torch

from limelight.seeing.recording import Recording
from limelight.seeing.tokens import plain_tokens
from limelight.shapes import FileError, OptionError
from limelight.views import figure

Draw = Callable[[Recording], Any]
KINDS: list[Draw] = [figure.heat_map, figure.all_heads, figure.token_graph, figure.head_profile]
STARTS = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}


@pytest.mark.parametrize("draw", KINDS)
def test_each_kind_is_drawn_of_a_sentence(sentence: Recording, draw: Draw, tmp_path: Path) -> None:
    figure.save_figure(draw(sentence), tmp_path / "figure.png")
    pixels = matplotlib.image.imread(tmp_path / "figure.png")
    assert len({tuple(pixel) for pixel in pixels[::7, ::7].reshape(-1, pixels.shape[2])}) > 5


@pytest.mark.parametrize("ending", STARTS)
def test_hostile_tokens_are_drawn_in_every_format(
    hostile: Recording, ending: str, tmp_path: Path
) -> None:
    for draw in (figure.heat_map, figure.token_graph):
        figure.save_figure(draw(hostile), tmp_path / f"figure{ending}")
        assert (tmp_path / f"figure{ending}").read_bytes().startswith(STARTS[ending])
    assert "<script" not in (tmp_path / f"figure{ending}").read_bytes().decode("latin-1")


def test_the_heat_map_holds_the_weights(sentence: Recording) -> None:
    drawn = figure.heat_map(sentence, 3, 1)
    axes = drawn.axes[0]
    values = axes.images[0].get_array()
    assert float(values[10, 2]) == pytest.approx(0.677, abs=5e-4)
    assert values.mask[:, 0].all()
    assert [label.get_text() for label in axes.get_yticklabels()][10] == "it"


def test_without_a_choice_it_draws_the_most_telling_head(sentence: Recording) -> None:
    assert "layer 3, head 1" in figure.heat_map(sentence).axes[0].get_title()
    assert "layer 2, head" in figure.heat_map(sentence, layer=2).axes[0].get_title()


def test_the_profile_agrees_with_the_weights(sentence: Recording) -> None:
    drawn = figure.head_profile(sentence)
    x, y = drawn.axes[0].collections[3].get_offsets()[1]
    weights = sentence.weights(3, 1).double()
    place = torch.arange(len(weights))
    entropy = -(weights * weights.clamp(min=1e-30).log2()).sum(1).mean()
    distance = (weights * (place[:, None] - place).abs()).sum(1).mean()
    assert x == pytest.approx(float(entropy), abs=1e-4)
    assert y == pytest.approx(float(distance), abs=1e-4)


def test_an_unknown_ending_is_refused_and_nothing_written(
    sentence: Recording, tmp_path: Path
) -> None:
    with pytest.raises(FileError, match=r"path must end in .*found 'a\.gif'"):
        figure.save_figure(figure.heat_map(sentence), tmp_path / "a.gif")
    with pytest.raises(FileError, match=r"path must end in .*found 'a\.docx'"):
        sentence.save(tmp_path / "a.docx")
    assert list(tmp_path.iterdir()) == []


def test_a_token_graph_is_of_one_text() -> None:
    from limelight.ops.seen import Seen

    text, tokens = plain_tokens(["a", "b"])
    asking, queries = plain_tokens(["c"])
    seen = Seen.of_weights(torch.tensor([[[[0.5, 0.5]]]]))
    recording = Recording(text, tokens, (seen,), queries=queries, query_text=asking)
    with pytest.raises(OptionError, match="one text"):
        figure.token_graph(recording)
