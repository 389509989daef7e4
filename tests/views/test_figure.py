"""Figures: every kind in every format, with any tokens."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib.image
import pytest
import torch

from limelight.errors import FileError, OptionError
from limelight.seeing.recording.recording import Recording
from limelight.seeing.recording.tokens import plain_tokens
from limelight.views import figure

Draw = Callable[[Recording], Any]
KINDS: list[Draw] = [figure.heat_map, figure.all_heads, figure.token_graph, figure.head_profile]
MAGIC = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}


@pytest.mark.parametrize("draw", KINDS)
def test_each_kind_of_figure_draws_a_sentence(
    sentence: Recording, draw: Draw, tmp_path: Path
) -> None:
    figure.save_figure(draw(sentence), tmp_path / "figure.png")
    pixels = matplotlib.image.imread(tmp_path / "figure.png")
    assert len({tuple(pixel) for pixel in pixels[::7, ::7].reshape(-1, pixels.shape[2])}) > 5


@pytest.mark.parametrize("ending", MAGIC)
def test_hostile_tokens_are_drawn_in_every_format(
    hostile: Recording, ending: str, tmp_path: Path
) -> None:
    for draw in (figure.heat_map, figure.token_graph):
        figure.save_figure(draw(hostile), tmp_path / f"figure{ending}")
        written = (tmp_path / f"figure{ending}").read_bytes()
        assert written.startswith(MAGIC[ending])
        assert b"<script" not in written


def test_the_heat_map_holds_the_weights(sentence: Recording) -> None:
    drawn = figure.heat_map(sentence, 3, 1)
    axes = drawn.axes[0]
    values = axes.images[0].get_array()
    assert float(values[10, 2]) == pytest.approx(0.677, abs=5e-4)
    assert values.mask[:, 0].all()
    assert [label.get_text() for label in axes.get_yticklabels()][10] == "it"


def test_the_heat_map_opens_at_the_head_of_the_most_salient_link(sentence: Recording) -> None:
    assert "layer 3, head 1" in figure.heat_map(sentence).axes[0].get_title()
    assert "layer 2, head" in figure.heat_map(sentence, layer=2).axes[0].get_title()


def test_the_profile_agrees_with_the_weights(sentence: Recording) -> None:
    drawn = figure.head_profile(sentence)
    x, y = drawn.axes[0].collections[0].get_offsets()[3 * 12 + 1]
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


def test_a_token_graph_of_two_texts_is_refused() -> None:
    from limelight.ops.lens.seen import Seen

    text, tokens = plain_tokens(["a", "b"])
    query_text, queries = plain_tokens(["c"])
    seen = Seen.of_weights(torch.tensor([[[[0.5, 0.5]]]]))
    recording = Recording(text, tokens, (seen,), queries=queries, query_text=query_text)
    with pytest.raises(OptionError, match="one text"):
        figure.token_graph(recording)


def random_recording(tokens: int, layers: int = 1, heads: int = 1) -> Recording:
    torch.manual_seed(0)
    weights = torch.randn(layers, heads, tokens, tokens).mul(3).softmax(-1)
    return Recording.of_weights(list(weights), [f"word{k}" for k in range(tokens)], model="m")


def boxes(drawn: Any, texts: list[Any]) -> list[Any]:
    """The bounding boxes of texts in a drawn figure."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(drawn)
    canvas.draw()
    return [text.get_window_extent(canvas.get_renderer()) for text in texts]


@pytest.mark.parametrize("tokens", [16, 64, 150])
def test_labels_of_a_heat_map_fit_and_do_not_overlap(tokens: int) -> None:
    drawn = figure.heat_map(random_recording(tokens))
    axes = drawn.axes[0]
    names = [axes.yaxis.label, axes.xaxis.label]
    ticks = axes.get_yticklabels()
    extents = boxes(drawn, [*names, *ticks])
    assert min(box.x0 for box in extents) >= 0
    assert max(box.y1 for box in extents) <= drawn.bbox.height
    assert min(label.get_fontsize() for label in ticks) >= 5.5
    middles = sorted((box.y0 + box.y1) / 2 for box in extents[2:])
    size = ticks[0].get_fontsize() * drawn.dpi / 72
    assert min(b - a for a, b in pairwise(middles)) > 0.9 * size


def test_a_profile_of_many_heads_has_a_colour_bar_and_labels_that_do_not_overlap() -> None:
    drawn = figure.head_profile(random_recording(12, layers=30, heads=9))
    axes = drawn.axes[0]
    assert axes.get_legend() is None
    assert drawn.axes[1].get_ylabel() == "layer"
    names = [text for text in axes.texts if text.get_text()]
    assert 3 <= len(names) < 100
    extents = boxes(drawn, names)
    for index, box in enumerate(extents):
        assert not any(box.overlaps(other) for other in extents[:index])


def test_a_graph_of_many_tokens_draws_the_strongest_links_and_counts_them() -> None:
    recording = random_recording(70)
    drawn = figure.token_graph(recording, 0, 0, least=0.001)
    axes = drawn.axes[0]
    assert drawn.get_figwidth() < 20
    assert len(axes.patches) == 210
    captions = [text.get_text() for text in axes.texts]
    assert "above: looks forward" in captions
    assert any(text.startswith("below: looks back; the 210 strongest of ") for text in captions)
    words = [text for text in axes.texts if text.get_text().startswith("word")]
    extents = boxes(drawn, words)
    assert not any(a.overlaps(b) for a, b in pairwise(extents))
    with pytest.raises(OptionError, match="at most 120 tokens, found 121"):
        figure.token_graph(random_recording(121))


def test_a_figure_renders_as_png_in_a_notebook(sentence: Recording) -> None:
    drawn = figure.head_profile(sentence)._repr_png_()  # pyright: ignore
    assert drawn.startswith(b"\x89PNG")
