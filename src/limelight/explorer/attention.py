"""The attention panel: what every head attends to, in one frame."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn.functional import adaptive_max_pool2d

from limelight.errors import OptionError
from limelight.explorer.frames import frame
from limelight.explorer.long import weights_between
from limelight.explorer.patterns import MAX_TOKENS as MAX_PATTERNS
from limelight.explorer.patterns import PATTERNS, patterns
from limelight.explorer.worker import Job
from limelight.insight.value_norms import value_norms
from limelight.ops.lens.sources import Recomputed
from limelight.seeing.recording.recording import Recording
from limelight.seeing.recording.words import has_merged_words, word_weights
from limelight.views.page.document import description, patch_shares

MAX_WEIGHTS = 1_500_000
"""Weights of all heads together that are sent at once; beyond, each head has its own request."""
MAX_WHOLE = 1024
"""Tokens up to which a head is sent whole; longer texts are sent in tiles."""
MAX_CACHED = 1 << 20
"""Bytes of a frame that is cached with its recording."""
THUMB = 48
"""Cells along a side of a small map."""
_ROWS = 64
"""Rows of all heads of a layer that are computed at a time: 18 MB at 8,192 tokens of nine heads."""
_EXACT = 256
"""Queries up to which the rows of a link are computed whole."""


_frames: WeakKeyDictionary[Recording, bytes] = WeakKeyDictionary()


def text_frame(recording: Recording, kind: str, name: str) -> bytes:
    """As `describe`, cached with the recording, since many clients may look at the same text."""
    data = _frames.get(recording)
    if data is None:
        data = describe(recording, kind, name)
        if len(data) <= MAX_CACHED:
            _frames[recording] = data
    return data


def describe(recording: Recording, kind: str, name: str) -> bytes:
    """The tokens, the link to open at, and the weights of all heads or a small map of each.

    `weights` l h i j if there are few enough, else `thumbs` l h r c: the largest weight of each
    cell. `patterns` l h p: see `patterns`.
    """
    header: dict[str, Any] = {
        **description(recording), "text": name, "kind": kind, "patterns": []
    }  # fmt: skip
    arrays: dict[str, Tensor] = {}
    if len(recording.layers) * math.prod(recording.layers[0].extent[1:]) <= MAX_WEIGHTS:
        arrays["weights"] = torch.stack([seen.dense()[0].float() for seen in recording.layers])
    else:
        arrays["thumbs"] = torch.stack([_thumb(seen.map.max[0]) for seen in recording.layers])
    if max(len(recording.queries), len(recording.tokens)) <= MAX_PATTERNS:
        header["patterns"] = PATTERNS
        arrays["patterns"] = patterns(recording, arrays.get("weights"))
    picture = recording.picture
    if picture is not None:
        pixels, arrays["pixels"] = picture.pixels, picture.pixels
        header["picture"] = {
            "rows": picture.rows, "columns": picture.columns, "leading": picture.leading,
            "height": pixels.shape[0], "width": pixels.shape[1],
        }  # fmt: skip
        shares = patch_shares(recording)
        if shares is not None:
            arrays["rollout"] = shares
    return frame(header, arrays)


def head_frame(recording: Recording, layer: int, head: int, *, valued: bool) -> bytes:
    """All weights of one head: `weights` i j; if words have several tokens, `merged` u v by words.

    Valued: each weight is multiplied by the length of its value vector, if values are known.
    """
    _check_whole(recording)
    seen, position = recording.seen(layer), recording.head_position(head)
    weights = recording.weights(layer, head).float()
    if valued and isinstance(seen.source, Recomputed):
        weights = weights * value_norms(seen)[0, position].float()
    arrays = {"weights": weights}
    if has_merged_words(recording):
        arrays["merged"] = word_weights(recording, weights)
    return frame({"layer": layer, "head": head}, arrays)


def link_frame(
    recording: Recording, queries: Sequence[int], keys: Sequence[int], job: Job
) -> bytes:
    """How much some tokens attend to some others, in every head: `weights` l h.

    Summed over the keys, averaged over the queries. The rows of a few queries are computed whole,
    which is exact; for many, such as every occurrence of a word in a long text, only the weights of
    these keys are computed, up to rounding.
    """
    for token in queries:
        _check_token("queries", token, len(recording.queries))
    for token in keys:
        _check_token("keys", token, len(recording.tokens))
    query_indices, key_indices = torch.tensor(queries), torch.tensor(keys)
    sums: list[Tensor] = []
    for seen in recording.layers:
        total = torch.zeros(seen.extent.h)
        for rows in query_indices.split(_ROWS):
            job.pause()
            exact = len(query_indices) <= _EXACT
            weights = (
                seen.rows(rows)[..., key_indices]
                if exact
                else weights_between(seen, rows, key_indices)
            )
            total += weights[0].float().sum((-2, -1)).cpu()
        sums.append(total / len(queries))
    return frame({"queries": list(queries), "keys": list(keys)}, {"weights": torch.stack(sums)})


def _thumb(cells: Tensor) -> Tensor:
    """The maps `h r c` of the heads of a layer, coarse enough to show all heads at once."""
    size = min(cells.shape[1], THUMB), min(cells.shape[2], THUMB)
    return adaptive_max_pool2d(cells.float(), size).half()


def read_text(recording: Recording) -> str:
    """The part of the text that was read."""
    return recording.text[: max((token.end for token in recording.tokens), default=0)]


def _check_whole(recording: Recording) -> None:
    count = max(len(recording.queries), len(recording.tokens))
    if count > MAX_WHOLE:
        raise OptionError(
            f"a whole head is for texts of up to {MAX_WHOLE:,} tokens, this one has {count:,}"
        )


def _check_token(name: str, token: int, count: int) -> None:
    if token >= count:
        raise OptionError(f"{name} must be tokens from 0 to {count - 1}, found {token}")
