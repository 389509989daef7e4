"""A recording as a plain document: what the page, or anything else that reads JSON, needs.

Its entries:

    format                  "limelight-page-1"
    title, model, made      words
    queries, keys           the tokens that ask and answer; keys is null where both are the same.
                            Each: labels, tight (no space before), apart (set apart as sinks),
                            special, words (the word of each token), wordLabels, wordTight
    layers, heads           their numbers in the model
    runs                    tokens that each row and column stands for: 1 but for long texts
    choice                  layer, head, query, key to begin with, as positions
    weights                 layers × heads × i × j, see `packing`
    sums                    layers × heads × i × 2, float32: what a row gives in all, and what of it
                            to the keys set apart
    lse                     layers × heads × i, float32; null where scores are not known
    channels                query, key and value vectors of the heads in `places`; or null. With
                            `plain`, scale · query · key is the score
    colours                 the palettes, light and dark

Labels are made by `visible`; they are text, to be shown as text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from limelight.colours import DARK, LIGHT
from limelight.insight.salience import opening
from limelight.labels import visible
from limelight.ops.lens.seen import Seen
from limelight.ops.lens.sources import Call
from limelight.ops.problem import Problem
from limelight.seeing.recording.recording import Link, Recording
from limelight.seeing.recording.tokens import Token, words
from limelight.views.page.packing import packed, packed_channels, packed_weights

MOST_WEIGHTS = 10_000_000
"""A page holds no more weights than these (about 7 MB); longer texts are shown in runs."""

_PARTS = ((150_000, 0), (600_000, 16), (2_500_000, 4), (math.inf, 1))
"""Up to so many weights, small ones are told by parts of half a thousandth: see `packing`."""

MOST_CHANNELS = 150_000
"""Numbers of query, key and value vectors on a page, so that a sentence stays under 1 MB."""


def document(
    recording: Recording, layer: int | None = None, head: int | None = None
) -> dict[str, Any]:
    """The recording as plain values, opening at a layer and head, or at the most telling link."""
    choice = opening(recording, layer, head)
    run = _run_length(recording)
    same = recording.queries is recording.tokens
    apart = recording.set_apart
    marks = {index for index, token in enumerate(recording.queries) if token.special}
    keys = _side(recording.tokens, recording.text, apart, run)
    queries = keys if same else _side(recording.queries, recording.query_text, marks, run)
    weights = torch.stack([_weights(seen, run) for seen in recording.layers])
    parts = next(parts for most, parts in _PARTS if weights.numel() <= most)
    position = recording.layer_numbers.index(choice.layer)
    return {
        "format": "limelight-page-1",
        "title": f"Attention: {visible(recording.query_text or recording.text, 80)}",
        "model": visible(recording.model, 80) if recording.model else "",
        "made": _made(recording, run),
        "queries": queries,
        "keys": None if same else keys,
        "layers": list(recording.layer_numbers),
        "heads": list(recording.head_numbers),
        "runs": run,
        "choice": {
            "layer": position,
            "head": recording.head_position(choice.head),
            "query": choice.query // run,
            "key": choice.key // run,
        },
        "weights": packed_weights(weights, parts)._asdict(),
        "sums": packed(_sums(weights, keys["apart"])),
        # from a weight told by a mean no score can be had back
        "lse": _lse(recording) if run == 1 and not parts else None,
        "channels": _channels(recording, choice) if run == 1 else None,
        "colours": {"light": LIGHT._asdict(), "dark": DARK._asdict()},
    }


def _made(recording: Recording, run: int) -> str:
    counts = {
        "layer": len(recording.layers),
        "head": len(recording.head_numbers),
        "token": len(recording.tokens),
    }
    said = [f"{count} {name}{'s' * (count != 1)}" for name, count in counts.items()]
    if run > 1:
        said.append(f"shown in runs of {run}: weights to a run added, from a run averaged")
    # what the lens noted is no news to someone who looks at the weights themselves
    said += [f"{name}: {value}" for name, value in recording.made.items() if name != "lens"]
    return visible(" · ".join(said), 400)


def _run_length(recording: Recording) -> int:
    """How many tokens a row must stand for, so that the weights fit a page."""
    per_head = MOST_WEIGHTS // (len(recording.layers) * len(recording.head_numbers))
    run = 1
    while _runs(len(recording.queries), run) * _runs(len(recording.tokens), run) > per_head:
        run += 1
    return run


def _runs(count: int, run: int) -> int:
    return -(-count // run)


def _weights(seen: Seen, run: int) -> Tensor:
    """A layer's weights by runs: `h i j`; sums over keys and means over queries of a run."""
    merged: list[Tensor] = []
    for _, tile in seen.in_tiles(run):
        weights = tile[0].float().cpu()
        rows, columns = weights.shape[1:]
        # whole runs, the last one filled up with zeros and divided by what it really holds
        whole = pad(weights, (0, -columns % run, 0, -rows % run))
        sums = whole.unflatten(2, (-1, run)).sum(3).unflatten(1, (-1, run)).sum(2)
        held = (rows - torch.arange(0, rows, run)).clamp(max=run)
        merged.append(sums / held[:, None])
    return torch.cat(merged, dim=1)


def _sums(weights: Tensor, apart: Sequence[int]) -> Tensor:
    """What each row gives in all, and to the keys set apart: `l h i 2`, from the exact weights."""
    return torch.stack([weights.sum(-1), weights[..., list(apart)].sum(-1)], dim=-1)


def _side(
    tokens: Sequence[Token], text: str, apart: set[int] | frozenset[int], run: int
) -> dict[str, Any]:
    if run > 1:
        return _side_of_runs(tokens, text, run)
    groups = words(tokens)
    firsts = [tokens[group[0]] for group in groups]
    lasts = [tokens[group[-1]] for group in groups]
    place = {first.word: place for place, first in enumerate(firsts)}
    spelled = [
        text[first.start : last.end] or first.text
        for first, last in zip(firsts, lasts, strict=True)
    ]
    return {
        "labels": [visible(token.text) for token in tokens],
        "tight": _tight(tokens, tokens),
        "apart": sorted(apart),
        "special": [index for index, token in enumerate(tokens) if token.special],
        "words": [place[token.word] for token in tokens],
        "wordLabels": [visible(word) for word in spelled],
        "wordTight": _tight(firsts, lasts),
    }


def _side_of_runs(tokens: Sequence[Token], text: str, run: int) -> dict[str, Any]:
    groups = [tokens[first : first + run] for first in range(0, len(tokens), run)]
    labels = [
        visible(text[group[0].start : group[-1].end] or " ".join(one.text for one in group))
        for group in groups
    ]
    return {
        "labels": labels,
        "tight": [False] * len(groups),
        "apart": [],
        "special": [],
        "words": None,
        "wordLabels": None,
        "wordTight": None,
    }


def _tight(firsts: Sequence[Token], lasts: Sequence[Token]) -> list[bool]:
    """For each piece of text whether it follows the one before without a space."""
    placed = [one.end > one.start for one in lasts]
    pairs = zip(firsts[1:], lasts[:-1], placed[1:], placed[:-1], strict=True)
    return [False, *(one.start == before.end and a and b for one, before, a, b in pairs)]


def _lse(recording: Recording) -> str | None:
    """Log-sum-exps, where scores are known: weights computed elsewhere come without them."""
    if len(_problems(recording)) < len(recording.layers):
        return None
    return packed(torch.stack([seen.lse[0].float().cpu() for seen in recording.layers]))


def _problems(recording: Recording) -> list[Problem]:
    """The calls that the layers' weights come from, where each comes from one."""
    sources = [seen.source for seen in recording.layers]
    return [source.problem for source in sources if isinstance(source, Call)]


def _added(problem: Problem) -> bool:
    """Whether the scores are more than scale · q·k."""
    return problem.bias is not None or problem.slopes is not None


def _channels(recording: Recording, choice: Link) -> dict[str, Any] | None:
    """Query, key and value of as many heads as fit, the chosen one and its layer first."""
    problems = _problems(recording)
    if len(problems) < len(recording.layers):
        return None
    first = problems[0]
    size, value_size = first.query.shape[-1], first.value.shape[-1]
    alike = [(one.query.shape[-1], one.value.shape[-1], one.scale) for one in problems]
    if len(set(alike)) > 1:
        return None
    heads = len(recording.head_numbers)
    each = len(recording.queries) * size + len(recording.tokens) * (size + value_size)
    layer, head = recording.layer_numbers.index(choice.layer), recording.head_position(choice.head)
    order = sorted(
        range(len(problems) * heads),
        key=lambda place: (place != layer * heads + head, place // heads != layer, place),
    )
    places = sorted(order[: max(1, MOST_CHANNELS // max(each, 1))])
    parts: list[Tensor] = []
    for place in places:
        problem, here = problems[place // heads], place % heads
        owner = here // (problem.query.shape[1] // problem.key.shape[1])
        parts += [problem.query[0, here], problem.key[0, owner], problem.value[0, owner]]
    data, peaks = packed_channels(parts)
    return {
        "size": size,
        "valueSize": value_size,
        "scale": first.scale,
        "plain": not any(one.softcap or _added(one) for one in problems),
        "places": places,
        "peaks": [peaks[k : k + 3] for k in range(0, len(peaks), 3)],
        "data": data,
    }
