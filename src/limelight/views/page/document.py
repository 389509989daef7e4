"""A recording as plain JSON documents: a header, and a part for each head.

    header(recording)                   what the page needs at once
    head_part(recording, layer, head)   what it needs of one head, when that head is chosen

In a file each part follows the header in a script block of its own, and is unpacked when its head
is chosen (`html.page`). A server sends parts by URL: `mount(host, header, css, keys, parts)` of
`assets/mount.js` takes a function `parts(layer, head)` that returns a promise of a part.

The header:

    format                  "limelight-page-2"
    title, model, made      words; `warning` where something went wrong in the model, else ""
    queries, keys           tokens of rows and columns; keys is null where both are the same.
                            Each: labels, tight (no space before), background, special,
                            words (the word of each token) and `merged`, the same by words:
                            labels, tight, background, special; null where each token is a word
    layers, heads           their numbers in the model
    choice                  layer, head, query, key to begin with; layer and head as positions
    summary                 of each head, layer by layer: strongest [query, key, weight] or null,
                            entropy (bits), distance (tokens)
    thumbs                  rows, columns, and two pictures a head (`plain` without background
                            tokens, `all` with them): bytes, 255 times the square root of a weight
    roles                   what each head does, layer by layer, the clearest role first; [] where
                            the model was not measured
    links                   the links most worth a look: layer, head, query, key, weight
    overview                of a long text, else null: entropy (bits) and distance (tokens) of each
                            layer, receivers [key, share of all attention], copies as `links`
    picture                 of a picture, else null: rows and columns of patches, leading tokens,
                            height, width, pixels (uint8), rollout (n × n, float32, or null)
    colours                 the palettes, light and dark

A part:

    layer, head             their numbers
    weights                 i × j, see `packing`; null where the text is too long for all of them
    merged                  the same by words; null where each token is a word
    sums                    i × 2, float32: the sum of a row, and its part on the background
    lse                     i, float32; null where scores are not known
    channels                query, key and value vectors, or null. With `plain`, scale · query · key
                            is the score
    links                   of a long text: each query's strongest keys (int32, −1 for none) and
                            weights, i × size; or null
    map                     of a long text: rows, columns, `plain` and `all` as in thumbs; or null
    tiles                   of a long text: exact weights around its strongest links: row, column,
                            rows, columns, weights

Labels are made by `visible`; they are text, to be shown as text.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, adaptive_max_pool2d

from limelight.colours import DARK, LIGHT
from limelight.insight.head_labels import head_labels
from limelight.insight.salience import head_links, opening, pooled, salient_links
from limelight.insight.summary import summary
from limelight.labels import visible
from limelight.ops.lens.sources import Recomputed
from limelight.ops.problem import Problem
from limelight.seeing.recording.recording import Link, Recording
from limelight.seeing.recording.tokens import Token, word_indices, words
from limelight.seeing.recording.words import has_merged_words, word_weights
from limelight.views.overview import overview
from limelight.views.page.packing import (
    packed,
    packed_channels,
    packed_shades,
    packed_weights,
)

MOST_WHOLE = 1 << 20
"""Weights up to which a part holds all of them: 1,024 tokens that look at one another."""
MOST_WEIGHTS = 36_000_000
"""Weights in a file, at most, over all heads: about 10 MB."""
MOST_FINE = 150_000
"""Weights in a file up to which they keep more than three decimals."""
MOST_CHANNELS = 140_000
"""Numbers of query, key and value vectors in a file, so that a sentence stays under 1 MB."""
MOST_LINKS = 700_000
"""Links of long texts in a file, at most; heads beyond have maps and tiles only."""
MAP = 96
"""Rows and columns of a long text's map."""
THUMB = 48
"""Rows and columns of a head's thumbnail, at most."""
MOST_SHADES = 140_000
"""Cells of all thumbnails of a file together, so that a sentence stays under 1 MB."""
MOST_PIXELS = 512
"""Along the longer side of a picture."""
MOST_ROLLED = 1024
"""Tokens of a picture up to which its rollout is included: 4 MB before deflation."""
TILE = 32
"""Tokens on the side of an exact tile of a long text."""
MOST_TILES = 6
_TILED = 48
"""Heads of a long text that have tiles in a file."""


class Detail(NamedTuple):
    """How much of a head its part holds."""

    whole: bool = True
    """all weights, rather than links, map and tiles"""
    fine: bool = True
    """more than three decimals"""
    channels: bool = True
    links: bool = True
    tiles: bool = True


def header(
    recording: Recording, layer: int | None = None, head: int | None = None
) -> dict[str, Any]:
    """What a page needs at once; it opens at a layer and head, or at the most salient link."""
    return {
        **description(recording, layer, head),
        "thumbs": _thumbs(recording),
        "picture": _picture(recording),
        "colours": {"light": LIGHT._asdict(), "dark": DARK._asdict()},
    }


def description(
    recording: Recording, layer: int | None = None, head: int | None = None
) -> dict[str, Any]:
    """The header without thumbnails, picture and colours, for a page that has them already."""
    choice = opening(recording, layer, head)
    overall = summary(recording)
    same = recording.queries is recording.tokens
    special = {index for index, token in enumerate(recording.queries) if token.special}
    keys = _side(recording.tokens, recording.text, overall.background)
    queries = keys if same else _side(recording.queries, recording.query_text, special)
    return {
        "format": "limelight-page-2",
        "title": f"Attention: {visible(recording.query_text or recording.text, 80)}",
        "model": visible(recording.model, 80) if recording.model else "",
        "made": _made(recording),
        "warning": visible(recording.nonfinite, 300) if recording.nonfinite else "",
        "queries": queries,
        "keys": None if same else keys,
        "layers": list(recording.layer_numbers),
        "heads": list(recording.head_numbers),
        "choice": {
            "layer": recording.layer_numbers.index(choice.layer),
            "head": recording.head_position(choice.head),
            "query": choice.query,
            "key": choice.key,
        },
        "summary": _summary(recording),
        "roles": _roles(recording),
        "links": [_link(link) for link in salient_links(recording, 8)],
        "overview": _overview(recording),
    }


def head_part(
    recording: Recording, layer: int, head: int, detail: Detail | None = None
) -> dict[str, Any]:
    """What a page needs of one head: all of it, unless `detail` limits it."""
    size = len(recording.queries) * len(recording.tokens)
    detail = detail or Detail(whole=size <= MOST_WHOLE, fine=size <= MOST_FINE)
    if recording.seen(layer).source is None:
        detail = detail._replace(whole=False)
    part: dict[str, Any] = {"layer": layer, "head": head}
    part |= dict.fromkeys(("weights", "merged", "sums", "lse", "channels", "links", "map", "tiles"))
    if detail.whole:
        return part | _whole(recording, layer, head, detail)
    return part | _sketch(recording, layer, head, detail)


def file_parts(recording: Recording, choice: Link | None = None) -> Iterator[dict[str, Any]]:
    """A part for every head, each in as much detail as a file of all of them can hold.

    The chosen head comes first, then those of the most salient links, then by strength.
    """
    size = len(recording.queries) * len(recording.tokens)
    heads = _order(recording, choice or opening(recording))
    whole = MOST_WEIGHTS // max(size, 1) if size <= MOST_WHOLE else 0
    fine = size * len(heads) <= MOST_FINE
    linked = MOST_LINKS // max(1, summary(recording).layers[0].keys[0].numel())
    vectors = max(1, MOST_CHANNELS // max(1, _channel_count(recording)))
    for rank, (layer, head) in enumerate(heads):
        detail = Detail(rank < whole, fine, rank < vectors, rank < linked, rank < _TILED)
        yield head_part(recording, layer, head, detail)


def _order(recording: Recording, choice: Link) -> list[tuple[int, int]]:
    """All heads, those first that are likely to be looked at."""
    chosen = [(choice.layer, choice.head)]
    chosen += [(link.layer, link.head) for link in salient_links(recording, 8)]
    chosen += [(choice.layer, head) for head in recording.head_numbers]
    ranked = head_links(recording).weight.flatten().argsort(descending=True).tolist()
    heads = len(recording.head_numbers)
    chosen += [
        (recording.layer_numbers[index // heads], recording.head_numbers[index % heads])
        for index in ranked
    ]
    return list(dict.fromkeys(chosen))


def _whole(recording: Recording, layer: int, head: int, detail: Detail) -> dict[str, Any]:
    weights = recording.weights(layer, head).float().cpu().nan_to_num(0.0, 0.0, 0.0)
    hidden = sorted(summary(recording).background)
    merged = None
    if has_merged_words(recording):
        merged = packed_weights(word_weights(recording, weights), fine=detail.fine)
    seen, position = recording.seen(layer), recording.head_position(head)
    known = isinstance(seen.source, Recomputed) and detail.fine
    return {
        "weights": packed_weights(weights, fine=detail.fine),
        "merged": merged,
        "sums": packed(torch.stack([weights.sum(-1), weights[:, hidden].sum(-1)], dim=-1)),
        # a score cannot be recovered from a weight of three decimals
        "lse": packed(seen.lse[0, position].float().cpu()) if known else None,
        "channels": _channels(recording, layer, head) if detail.channels else None,
    }


def _sketch(recording: Recording, layer: int, head: int, detail: Detail) -> dict[str, Any]:
    """A head of a long text: its strongest links, a map, and tiles around the strongest of them."""
    position = recording.head_position(head)
    stats = summary(recording).layers[recording.layer_numbers.index(layer)]
    part: dict[str, Any] = {"map": _map(recording, layer, position)}
    if detail.links:
        part["links"] = {
            "size": stats.keys.shape[-1],
            "keys": packed(stats.keys[position].to(torch.int32)),
            "weights": packed_weights(stats.weights[position], fine=False),
        }
    if detail.tiles:
        part["tiles"] = _tiles(recording, layer, position)
    return part


def _map(recording: Recording, layer: int, position: int) -> dict[str, Any]:
    plain, everything = (
        pooled(recording, layer, (MAP, MAP), background=background, head=position)[0]
        for background in (False, True)
    )
    rows, columns = plain.shape
    return {
        "rows": rows,
        "columns": columns,
        "plain": packed_shades(plain),
        "all": packed_shades(everything),
    }


def _tiles(recording: Recording, layer: int, position: int) -> list[dict[str, Any]]:
    """Exact weights around the strongest links of a head, background left out."""
    seen = recording.seen(layer)
    if seen.source is None:
        return []
    overall = summary(recording)
    links = overall.links(recording.layer_numbers.index(layer), position)
    values = links.weights.where(overall.plain(links), 0.0).flatten()
    strongest, indices = values.topk(min(256, len(values)))
    indices = indices[strongest > 0]
    rows, columns = links.queries.flatten()[indices], links.keys.flatten()[indices]
    tile_corners = torch.stack([rows, columns], -1) // TILE * TILE
    corners = list(dict.fromkeys(map(tuple, tile_corners.tolist())))[:MOST_TILES]
    # rows that several tiles share are recomputed once
    starts = sorted({row for row, _ in corners})
    blocks = [torch.arange(start, min(start + TILE, seen.extent.i)) for start in starts]
    if not blocks:
        return []
    weights = seen.heads([position]).rows(torch.cat(blocks))[0, 0].float().cpu()
    bands = weights.nan_to_num(0.0, 0.0, 0.0).split([len(block) for block in blocks])
    by_row = dict(zip(starts, bands, strict=True))
    tiles: list[dict[str, Any]] = []
    for row, column in corners:
        tile = by_row[row][:, column : column + TILE]
        tiles.append(
            {
                "row": row,
                "column": column,
                "rows": tile.shape[0],
                "columns": tile.shape[1],
                "weights": packed_weights(tile, fine=False),
            }
        )
    return tiles


def _made(recording: Recording) -> str:
    counts = {
        "layer": len(recording.layers),
        "head": len(recording.head_numbers),
        "token": len(recording.tokens),
    }
    facts = [f"{count:,} {name}{'s' * (count != 1)}" for name, count in counts.items()]
    # the lens does not matter where the weights are shown
    facts += [f"{name}: {value}" for name, value in recording.made.items() if name != "lens"]
    return visible(" · ".join(facts), 400)


def _summary(recording: Recording) -> dict[str, Any]:
    whole, best = summary(recording), head_links(recording)
    links = zip(
        best.query.flatten().tolist(),
        best.key.flatten().tolist(),
        best.weight.flatten().tolist(),
        strict=True,
    )
    return {
        "strongest": [None if query < 0 else [query, key, w] for query, key, w in links],
        "entropy": [round(value, 4) for value in whole.entropy.flatten().tolist()],
        "distance": [round(value, 2) for value in whole.distance.flatten().tolist()],
    }


def _overview(recording: Recording) -> dict[str, Any] | None:
    numbers = overview(recording)
    if numbers is None:
        return None
    return {**numbers._asdict(), "copies": [_link(link) for link in numbers.copies]}


def _roles(recording: Recording) -> list[list[str]]:
    """What each head does, the clearest role first; empty for a model that was not measured."""
    labels = head_labels(recording.model)
    heads = ((layer, head) for layer in recording.layer_numbers for head in recording.head_numbers)
    return [labels.get(f"{layer}.{head}", []) for layer, head in heads] if labels else []


def _picture(recording: Recording) -> dict[str, Any] | None:
    """The picture whose patches the tokens are, and the rollout over all layers."""
    picture = recording.picture
    if picture is None:
        return None
    pixels = picture.pixels
    longest = max(pixels.shape[:2])
    if longest > MOST_PIXELS:
        height, width = (max(1, side * MOST_PIXELS // longest) for side in pixels.shape[:2])
        smaller = adaptive_avg_pool2d(pixels.permute(2, 0, 1).float(), (height, width))
        pixels = smaller.round().to(torch.uint8).permute(1, 2, 0)
    shares = patch_shares(recording)
    return {
        "rows": picture.rows,
        "columns": picture.columns,
        "leading": picture.leading,
        "height": pixels.shape[0],
        "width": pixels.shape[1],
        "pixels": packed(pixels),
        "rollout": None if shares is None else packed(shares),
    }


def patch_shares(recording: Recording) -> Tensor | None:
    """Rollout, `n n`: what each patch is made of after all layers, if attention were all there is.

    None where there are too many patches, or their weights cannot be recomputed.
    """
    if len(recording.tokens) > MOST_ROLLED or recording.layers[0].source is None:
        return None
    shares = torch.eye(len(recording.tokens))
    for seen in recording.layers:
        mean = seen.dense()[0].float().cpu().nan_to_num(0.0, 0.0, 0.0).mean(0)
        shares = (shares + mean @ shares) / 2
    return shares


def _thumbs(recording: Recording) -> dict[str, Any]:
    """A thumbnail of every head: all its weights, or the strongest links of a longer text."""
    pictures: dict[str, list[Tensor]] = {"plain": [], "all": []}
    hidden = sorted(summary(recording).background)
    heads = len(recording.layers) * len(recording.head_numbers)
    side = max(12, min(THUMB, math.isqrt(MOST_SHADES // (2 * heads))))
    short = max(len(recording.queries), len(recording.tokens)) <= THUMB
    for layer in recording.layer_numbers:
        seen = recording.seen(layer)
        if short and seen.source is not None:
            weights = seen.dense()[0].float().cpu().nan_to_num(0.0, 0.0, 0.0)
            cells = min(weights.shape[1], side), min(weights.shape[2], side)
            plain = weights.index_fill(2, torch.tensor(hidden).long(), 0.0)
            pictures["all"].append(adaptive_max_pool2d(weights, cells))
            pictures["plain"].append(adaptive_max_pool2d(plain, cells))
        else:
            for name, background in (("plain", False), ("all", True)):
                picture = pooled(recording, layer, (side, side), background=background)
                pictures[name].append(picture)
    rows, columns = pictures["all"][0].shape[1:]
    packs = {name: packed_shades(torch.stack(parts)) for name, parts in pictures.items()}
    return {"rows": rows, "columns": columns, **packs}


def _link(link: Link) -> dict[str, Any]:
    return {name: getattr(link, name) for name in ("layer", "head", "query", "key", "weight")}


def _side(
    tokens: Sequence[Token], text: str, background: set[int] | frozenset[int]
) -> dict[str, Any]:
    groups = words(tokens)
    firsts = [tokens[group[0]] for group in groups]
    lasts = [tokens[group[-1]] for group in groups]
    spelled = [
        text[first.start : last.end] or first.text
        for first, last in zip(firsts, lasts, strict=True)
    ]
    side: dict[str, Any] = {
        "labels": [visible(token.text) for token in tokens],
        "tight": _tight(tokens, tokens),
        "background": sorted(background),
        "special": [index for index, token in enumerate(tokens) if token.special],
        "words": word_indices(tokens),
        "merged": None,
    }
    if len(groups) < len(tokens):
        side["merged"] = {
            "labels": [visible(word) for word in spelled],
            "tight": _tight(firsts, lasts),
            "background": [k for k, group in enumerate(groups) if set(group) <= background],
            "special": [k for k, first in enumerate(firsts) if first.special],
        }
    return side


def _tight(firsts: Sequence[Token], lasts: Sequence[Token]) -> list[bool]:
    """Whether each token or word follows the one before without a space."""
    placed = [last.end > last.start for last in lasts]
    pairs = zip(firsts[1:], lasts[:-1], placed[1:], placed[:-1], strict=True)
    return [False, *(first.start == before.end and a and b for first, before, a, b in pairs)]


def _problem(recording: Recording, layer: int) -> Problem | None:
    """The call that a layer's weights are recomputed from, if there is one."""
    source = recording.seen(layer).source
    return source.problem if isinstance(source, Recomputed) else None


def _channel_count(recording: Recording) -> int:
    """Numbers in the query, key and value vectors of one head."""
    problem = _problem(recording, recording.layer_numbers[0])
    if problem is None:
        return 0
    size, value_size = problem.query.shape[-1], problem.value.shape[-1]
    return len(recording.queries) * size + len(recording.tokens) * (size + value_size)


def _channels(recording: Recording, layer: int, head: int) -> dict[str, Any] | None:
    """Query, key and value of a head, where its weights were computed from them."""
    problem, position = _problem(recording, layer), recording.head_position(head)
    if problem is None:
        return None
    kv_head = position // (problem.query.shape[1] // problem.key.shape[1])
    parts = [problem.query[0, position], problem.key[0, kv_head], problem.value[0, kv_head]]
    data, peaks = packed_channels(parts)
    added = problem.bias is not None or problem.slopes is not None
    return {
        "size": problem.query.shape[-1],
        "valueSize": problem.value.shape[-1],
        "scale": problem.scale,
        "plain": not (problem.softcap or added),
        "peaks": peaks,
        "data": data,
    }
