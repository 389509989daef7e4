"""Attention in a terminal: colour blocks where there is colour, shades where there is none.

Each picture is a Rich renderable that adapts to the width, the colours and the character set of the
console it is printed on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from rich.color import Color
from rich.console import Console, ConsoleOptions
from rich.style import Style
from rich.text import Text
from torch import Tensor

from limelight.ascii_fallback import to_ascii
from limelight.colours import DARK, LIGHT, shade
from limelight.insight.salience import head_links, pooled
from limelight.insight.summary import background
from limelight.labels import columns as width_of
from limelight.labels import fit, visible
from limelight.seeing.recording.recording import Link, Recording
from limelight.seeing.recording.tokens import Token, word_at
from limelight.views.overview import Overview

_SHADES = " ░▒▓█"
_WIDEST_LABEL = 14
_MOST_ROWS = 48
_MOST_COLUMNS = 160
_MOST_WEIGHTS = 1 << 20
"""Weights of a head up to which its heat map is made from all of them."""


def heat_map(recording: Recording, layer: int, head: int, mark: int | None = None) -> HeatMap:
    """One head of a recording: background left blank, one row marked.

    For a long text: the strongest of its recorded links in each cell.
    """
    rows, columns = len(recording.queries), len(recording.tokens)
    if rows * columns <= _MOST_WEIGHTS and recording.seen(layer).source is not None:
        weights = recording.weights(layer, head).float().cpu().nan_to_num(0.0, 0.0, 0.0)
    else:
        cells = (_MOST_ROWS, _MOST_COLUMNS)
        weights = pooled(recording, layer, cells, head=recording.head_position(head))[0]
    return HeatMap(
        weights,
        [visible(token.text, _WIDEST_LABEL) for token in recording.queries],
        [visible(token.text, _WIDEST_LABEL) for token in recording.tokens],
        background(recording),
        mark,
    )


def links(recording: Recording, shown: Sequence[Link]) -> LinkLines:
    """Links by the words of query and key, with an index where several tokens are equal."""
    names = Counter(token.text for token in recording.tokens)
    names += Counter(token.text for token in recording.queries)
    twice = 2 if recording.queries is recording.tokens else 1

    def name(tokens: Sequence[Token], index: int) -> str:
        label = visible(word_at(tokens, index), 40)
        return label if names[tokens[index].text] <= twice else f"{label} ({index})"

    return LinkLines(
        [
            (
                f"layer {link.layer} head {link.head}",
                name(recording.queries, link.query),
                name(recording.tokens, link.key),
                link.weight,
            )
            for link in shown
        ]
    )


def sentence(recording: Recording, link: Link | None, shown: Link) -> str:
    """The link that a view opens at as a sentence, with an index where several tokens are equal."""
    where = f"Layer {shown.layer} head {shown.head}"
    if link is None:
        return f"{where}: no link beyond neighbouring words."
    query, key = _name(recording.queries, link.query), _name(recording.tokens, link.key)
    return f"{where} ties {query} to {key} ({link.weight:.3f})."


def _name(tokens: Sequence[Token], index: int) -> str:
    """A token by its word, with its piece where that is only a part, and its rank among equals."""
    word, piece = visible(word_at(tokens, index), 40), visible(tokens[index].text, 40)
    name = f'"{word}"' if word == piece else f'"{piece}" of "{word}"'
    equal = [k for k, token in enumerate(tokens) if token.text == tokens[index].text]
    if len(equal) == 1:
        return name
    return f"{name} (token {index}, the {_ordinal(equal.index(index) + 1)} of {len(equal)})"


def _ordinal(number: int) -> str:
    """1st, 2nd, 3rd, 4th, 11th.

    >>> [_ordinal(n) for n in (1, 2, 3, 4, 11, 21, 112)]
    ['1st', '2nd', '3rd', '4th', '11th', '21st', '112th']
    """
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10)
    return f"{number}{ending or 'th'}"


def quotes(recording: Recording, shown: Sequence[Link]) -> Quotes:
    """Links of a long text, each token quoted with the words around it."""
    return Quotes(
        [
            (
                f"layer {link.layer} head {link.head}",
                link.weight,
                _quote(recording.queries, recording.query_text or recording.text, link.query),
                _quote(recording.tokens, recording.text, link.key),
            )
            for link in shown
        ]
    )


def _quote(tokens: Sequence[Token], text: str, index: int) -> tuple[int, str, str, str]:
    """The index of a token, the text before it, the token, and the text after it."""
    token = tokens[index]
    if token.end <= token.start:
        return index, "", visible(token.text, 40), ""
    before = " ".join(text[max(0, token.start - 60) : token.start].split(" ")[-6:])
    after = " ".join(text[token.end : token.end + 60].split(" ")[:6])
    before, word, after = (
        visible(part, 60) if part else "" for part in (before, token.text, after)
    )
    return index, before, word, after


def overview(recording: Recording, numbers: Overview) -> WholeText:
    """A long text at a glance: layers, the tokens that receive most, repeats that are copied."""
    layers = zip(recording.layer_numbers, numbers.entropy, numbers.distance, strict=True)
    return WholeText(
        list(layers),
        [
            (f"{visible(word_at(recording.tokens, key), 20)} ({key})", share)
            for key, share in numbers.receivers
        ],
        quotes(recording, numbers.copies),
    )


def all_heads(recording: Recording, chosen: tuple[int, int] | None = None) -> Heads:
    """Every head by the weight of its strongest link, background left out."""
    position = None
    if chosen is not None:
        position = recording.layer_numbers.index(chosen[0]), recording.head_position(chosen[1])
    values = head_links(recording).weight
    return Heads(values, recording.layer_numbers, recording.head_numbers, position)


@dataclass(frozen=True)
class HeatMap:
    """The weights of one head: rows are queries, columns are keys, one cell each.

    Tokens are numbered, columns and rows alike. A map wider than the console is pooled: each cell
    then shows the strongest weight in it.
    """

    weights: Tensor
    """`i j`, as they are, or the strongest in each of fewer cells"""
    rows: Sequence[str]
    columns: Sequence[str]
    background: frozenset[int] = frozenset()
    """columns left blank, which would outshine the rest"""
    mark: int | None = None
    """the row in bold"""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """The map in the width and the colours of this console."""
        label = min(_WIDEST_LABEL, max((width_of(row) for row in self.rows), default=1))
        width = options.max_width - label - 6
        cell = 3 if 3 * len(self.columns) <= width else 2 if 2 * len(self.columns) <= width else 1
        weights = self._pooled(width)
        whole = weights.shape == (len(self.rows), len(self.columns))
        yield Text(" " * (label + 4) + self._ruler(cell, weights.shape[1]), style="dim")
        peak = float(weights.max()) if weights.numel() else 0.0
        ink = _Ink.of(console)
        for place, row in enumerate(weights.tolist()):
            name = ink.spell(self._row_label(place, weights.shape[0], whole, label))
            line = Text(name, style="bold" if place == self.mark and whole else "")
            for column, weight in enumerate(row):
                left_out = whole and column in self.background
                line.append_text(ink.cell(weight / peak if peak else 0.0, cell, blank=left_out))
            yield line
        yield from self._legend(ink, peak, label, whole)

    def _pooled(self, width: int) -> Tensor:
        shown = self.weights.float().cpu().clone()
        if shown.shape == (len(self.rows), len(self.columns)):
            shown[:, sorted(self.background)] = 0.0
        return _coarser(_coarser(shown, _MOST_ROWS).T, max(width, 1)).T

    def _ruler(self, cell: int, count: int) -> str:
        """The numbers of the columns: all where they fit, else every fifth."""
        total, line = len(self.columns), ""
        for place in range(0, count, 1 if cell == 3 and total <= 100 else 5):
            number = str(place * total // count)
            start = place * cell
            start += cell == 3 and len(number) == 1  # units are aligned
            # the last number may extend two columns beyond the map
            if start + len(number) <= count * cell + 2:
                line += " " * (start - len(line)) + number
        return line

    def _row_label(self, place: int, count: int, whole: bool, label: int) -> str:
        token = place if whole else place * len(self.rows) // count
        digits = max(3, len(str(len(self.rows) - 1)))
        return f"{token:>{digits}} {fit(self.rows[token], label + 3 - digits)}"

    def _legend(self, ink: _Ink, peak: float, label: int, whole: bool) -> Iterator[Text]:
        line = Text(" " * (label + 4) + "0 ", style="dim")
        for step in range(9):
            line.append_text(ink.cell(step / 8, 2))
        line.append(f" {peak:.3f}", style="dim")
        if not whole:
            line.append("  the strongest in each cell", style="dim")
        yield line
        if self.background and whole:
            names = ", ".join(f"{column}" for column in sorted(self.background)[:8])
            yield Text(f"{' ' * (label + 4)}background: columns {names}", style="dim")


def _narrow(character: str) -> str:
    """A character in ASCII, as wide as it was."""
    width = width_of(character)
    form = "~" if character == "…" else to_ascii(character)
    return form if len(form) == width else "?" * width


def _coarser(table: Tensor, most: int) -> Tensor:
    """The table pooled to at most `most` rows, each the maximum of several."""
    count = table.shape[0]
    if count <= most:
        return table
    cells = torch.arange(count) * most // count
    empty = table.new_zeros(most, table.shape[1])
    return empty.scatter_reduce(0, cells[:, None].expand_as(table), table, "amax")


@dataclass(frozen=True)
class LinkLines:
    """Links as lines of text: head, query, key, weight."""

    links: Sequence[tuple[str, str, str, float]]
    """layer and head, query, key, weight"""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """One line for each link, with a bar for its weight."""
        wide = [
            min(18, max(map(width_of, labels), default=0))
            for labels in ([link[1] for link in self.links], [link[2] for link in self.links])
        ]
        where = max((width_of(link[0]) for link in self.links), default=0)
        bar = max(4, min(30, options.max_width - where - sum(wide) - 18))
        ink = _Ink.of(console)
        arrow = "→" if ink.unicode else "->"
        for head, query, key, weight in self.links:
            line = Text(f"  {fit(head, where)}  ")
            line.append(ink.spell(fit(query, wide[0])), style="bold")
            line.append(f" {arrow} ")
            line.append(ink.spell(fit(key, wide[1])), style="bold")
            line.append(f"  {weight:.3f}  ")
            line.append_text(ink.bar(weight, bar))
            yield line


@dataclass(frozen=True)
class Quotes:
    """Links with the words around both ends."""

    links: Sequence[tuple[str, float, tuple[int, str, str, str], tuple[int, str, str, str]]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """Three lines for each link: head and weight, query, key."""
        ink = _Ink.of(console)
        for where, weight, query, key in self.links:
            line = Text(f"  {weight:.3f}  {where}  ")
            line.append_text(ink.bar(weight, max(4, min(24, options.max_width - 40))))
            yield line
            for sign, quote in (("", query), ("→" if ink.unicode else "->", key)):
                yield self._line(ink, sign, quote, options.max_width)

    def _line(self, ink: _Ink, sign: str, quote: tuple[int, str, str, str], width: int) -> Text:
        index, before, word, after = quote
        lead = f"    {sign:>2} {index:>5}  "
        rest = max(10, width - width_of(lead) - width_of(word) - 4)
        line = Text(lead, style="dim")
        line.append(ink.spell(_tail(before, rest // 2)), style="not dim")
        line.append(f"[{ink.spell(word)}]", style="bold not dim")
        line.append(ink.spell(fit(after, rest - rest // 2).rstrip(" ")), style="not dim")
        return line


def _tail(text: str, width: int) -> str:
    """The end of a text, at most `width` columns wide."""
    while width_of(text) > width:
        text = text[1:]
    return text


@dataclass(frozen=True)
class WholeText:
    """What all heads do in a long text, in numbers."""

    layers: Sequence[tuple[int, float, float]]
    """number, entropy in bits, distance in tokens"""
    receive: Sequence[tuple[str, float]]
    """tokens and their share of all attention"""
    copied: Quotes

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[Text | Quotes]:
        """Layers with bars, then tokens, then copies."""
        ink = _Ink.of(console)
        yield Text("\nLayers: how spread out they look, and how far:", style="bold")
        most = max((entropy for _, entropy, _ in self.layers), default=1.0) or 1.0
        far = max((distance for *_, distance in self.layers), default=1.0) or 1.0
        for number, entropy, distance in self.layers:
            line = Text(f"  layer {number:>2}  {entropy:5.2f} bits ")
            first = ink.bar(entropy / most, 16)
            line.append_text(first)
            line.append(" " * (17 - len(first)) + f"{distance:8,.1f} tokens ")
            line.append_text(ink.bar(distance / far, 16))
            yield line
        yield Text(
            "\nTokens that receive most, background and function words left out:", style="bold"
        )
        for label, share in self.receive:
            line = Text(f"  {ink.spell(fit(label, 28))} {100 * share:7.3f}%  ")
            line.append_text(ink.bar(share / max(self.receive[0][1], 1e-9), 24))
            yield line
        if self.copied.links:
            yield Text("\nRepeats that are copied (what followed it before):", style="bold")
            yield self.copied


@dataclass(frozen=True)
class Heads:
    """All heads at once: layers down, heads across, one number in [0, 1] each."""

    values: Tensor
    """`layers heads`"""
    layers: Sequence[int]
    heads: Sequence[int]
    """their numbers"""
    chosen: tuple[int, int] | None = None
    """the position of the one in brackets"""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """A small table of shades; the chosen head in brackets."""
        ink = _Ink.of(console)
        cell = 4 if 4 * len(self.heads) + 10 <= options.max_width else 2
        if cell == 4:
            yield Text("     head " + "".join(f"{head:^4}" for head in self.heads), style="dim")
        for place, (layer, row) in enumerate(zip(self.layers, self.values.tolist(), strict=True)):
            line = Text(f" layer {layer:>2} ", style="dim")
            for head, value in enumerate(row):
                picked = self.chosen == (place, head)
                line.append("[" if picked else " ", style="bold") if cell == 4 else None
                line.append_text(ink.cell(value, 2))
                line.append("]" if picked else " ", style="bold") if cell == 4 else None
            yield line


@dataclass(frozen=True)
class _Ink:
    """How this console shows a value: colour, shades, or digits."""

    colour: bool
    unicode: bool

    @classmethod
    def of(cls, console: Console) -> _Ink:
        colour = console.color_system is not None and not console.no_color
        return cls(colour, (console.encoding or "").lower().startswith("utf"))

    def spell(self, text: str) -> str:
        """The text in characters that this console can print, each as wide as it was."""
        return text if self.unicode else "".join(map(_narrow, text))

    def cell(self, value: float, width: int, *, blank: bool = False) -> Text:
        """A value in [0, 1] as `width` columns."""
        if blank:
            return Text(" " * width)
        if self.colour:
            return Text(" " * width, style=Style(bgcolor=Color.from_rgb(*shade(value, DARK.scale))))
        if not self.unicode:
            digit = min(9, int(value * 10))
            return Text(f"{digit or '.':>{max(1, width - 1)}}{' ' if width > 1 else ''}")
        level = min(len(_SHADES) - 1, int(value * (len(_SHADES) - 1) + 0.5))
        return Text(_SHADES[level] * width)

    def bar(self, value: float, width: int) -> Text:
        """A bar, `width` columns long for 1."""
        eighths = round(max(0.0, min(1.0, value)) * width * 8)
        if not self.unicode:
            return Text("#" * round(eighths / 8))
        full, part = divmod(eighths, 8)
        tail = " ▏▎▍▌▋▊▉"[part].strip()
        style = Style(color=Color.from_rgb(*shade(0.75, LIGHT.scale))) if self.colour else ""
        return Text("█" * full + tail, style=style)
