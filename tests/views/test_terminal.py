"""Terminal pictures: eighty columns, with colour, with shades, and in plain ASCII."""

from __future__ import annotations

import io

import pytest
import torch
from rich.console import Console

from limelight.labels import columns
from limelight.seeing.recording.recording import Recording
from limelight.views import terminal
from views.hostile_tokens import HOSTILE


def printed(
    picture: object, *, width: int = 80, colour: bool = False, encoding: str = "utf-8"
) -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, write_through=True)
    system = "truecolor" if colour else None
    console = Console(file=file, width=width, force_terminal=colour, color_system=system)
    console.print(picture)
    return raw.getvalue().decode(encoding)


def pictures(recording: Recording) -> list[object]:
    layer, head = recording.layer_numbers[-1], recording.head_numbers[0]
    return [
        terminal.heat_map(recording, layer, head, mark=1),
        terminal.links(recording, recording.strongest(5).links),
        terminal.all_heads(recording, (layer, head)),
    ]


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_no_line_exceeds_eighty_columns(
    sentence: Recording, hostile: Recording, encoding: str
) -> None:
    for recording in (sentence, hostile):
        for picture in pictures(recording):
            for line in printed(picture, encoding=encoding).splitlines():
                assert columns(line) <= 80


def test_without_colour_the_strongest_weight_is_a_full_block(sentence: Recording) -> None:
    lines = printed(terminal.heat_map(sentence, 3, 1)).splitlines()
    row = next(line for line in lines if line.startswith(" 10 it"))
    assert row.count("█") == 3
    assert row.index("█") == 11 + 3 * 2
    assert "\x1b" not in "".join(lines)


def test_ascii_shows_tenths_of_the_largest_weight(sentence: Recording) -> None:
    text = printed(terminal.heat_map(sentence, 3, 1), encoding="ascii")
    row = next(line for line in text.splitlines() if line.startswith(" 10 it"))
    assert row.split()[2:].count("9") == 1


def test_the_strongest_weight_has_the_top_colour_of_the_scale(sentence: Recording) -> None:
    text = printed(terminal.heat_map(sentence, 3, 1), colour=True)
    assert "\x1b[48;2;247;254;157m" in text


def test_links_name_head_query_key_and_weight(sentence: Recording) -> None:
    text = printed(terminal.links(sentence, sentence.strongest(200).links))
    assert any(
        "layer 3 head 1" in line and "it" in line and "animal" in line and "0.677" in line
        for line in text.splitlines()
    )


def test_the_chosen_head_is_in_brackets(sentence: Recording) -> None:
    lines = printed(terminal.all_heads(sentence, (3, 1))).splitlines()
    chosen = [line for line in lines if "[" in line]
    assert len(chosen) == 1
    assert chosen[0].startswith(" layer  3")


def test_hostile_tokens_send_no_control_characters_to_the_terminal(hostile: Recording) -> None:
    for picture in pictures(hostile):
        text = printed(picture)
        assert not {"\x1b", "\x07", "\x00", "\u202e", "\t"} & set(text)
    labels = printed(terminal.heat_map(hostile, 0, 0))
    assert "<script>" in labels
    assert "[bold]markup[" in labels


def test_a_long_text_is_pooled_to_the_width() -> None:
    weights = torch.zeros(1, 500, 500)
    weights[0, :, 0] = 0.5
    weights[0, 250, 400] = 1.0
    recording = Recording.of_weights([weights], [f"t{k}" for k in range(500)])
    lines = printed(
        terminal.HeatMap(weights[0], [str(k) for k in range(500)], HOSTILE)
    ).splitlines()
    assert len(lines) < 60
    assert sum("█" in line for line in lines[:-1]) == 1
    assert max(columns(line) for line in lines) <= 80
    # The first token receives half of everything and is background: one link is left.
    assert printed(terminal.all_heads(recording)).splitlines() == [
        "     head  0  ",
        " layer  0  ██ ",
    ]


@pytest.mark.parametrize(("tokens", "cell"), [(20, 3), (31, 2), (48, 1), (60, 1)])
def test_columns_are_numbered_at_every_cell_width(tokens: int, cell: int) -> None:
    recording = Recording.of_weights([torch.eye(tokens)[None]], [f"t{k}" for k in range(tokens)])
    ruler, first, *_ = printed(terminal.heat_map(recording, 0, 0)).splitlines()
    numbers = [int(number) for number in ruler.split()]
    assert numbers == list(range(0, tokens, 1 if cell == 3 else 5))
    for number in numbers:
        above = ruler[first.index("█") + number * cell :]
        assert above.split()[0] == str(number)
        assert above.index(str(number)) < cell


def test_pooled_columns_are_numbered_by_their_first_token() -> None:
    recording = Recording.of_weights([torch.eye(500)[None]], [f"t{k}" for k in range(500)])
    ruler, *_ = printed(terminal.heat_map(recording, 0, 0)).splitlines()
    numbers = [int(number) for number in ruler.split()]
    assert numbers[:3] == [0, 35, 71]
    assert numbers[-1] > 400


def test_ascii_labels_keep_their_width() -> None:
    words = ["naïve", "日本", "x→y", "e\u0301a"]
    picture = terminal.HeatMap(torch.eye(4), words, words)
    lines = printed(picture, encoding="ascii").splitlines()[1:5]
    assert [line[4:9] for line in lines] == ["naive", "???? ", "x?y  ", "ea   "]
    assert len({columns(line) for line in lines}) == 1
