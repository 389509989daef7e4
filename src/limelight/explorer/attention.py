"""The attention panel's numbers: what every head looks at, in one frame."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from limelight.errors import OptionError
from limelight.explorer.frames import frame
from limelight.explorer.patterns import MOST_TOKENS as MOST_PATTERNS
from limelight.explorer.patterns import PATTERNS, patterns
from limelight.ops.lens.sources import Recomputed
from limelight.seeing.recording.recording import Recording
from limelight.views.page.document import header

MOST_WEIGHTS = 1_500_000
"""Weights of all heads together that travel with the first answer; of more, heads come singly."""
MOST_WHOLE = 1024
"""Tokens up to which a head travels whole; longer texts are looked at by tiles."""


def text_frame(recording: Recording, kind: str) -> bytes:
    """The tokens, where to begin, and the weights of all heads, or a small map of each.

    `weights` l h i j where they are few, else `thumbs` l h r c: the greatest weight of each cell.
    `norms` l h j: the length of each value vector. `patterns` l h p: see `patterns`.
    """
    shape = (len(recording.layers), *recording.layers[0].extent[1:])
    head: dict[str, Any] = {**_head(recording), "kind": kind, "patterns": []}
    count = 1
    for size in shape:
        count *= size
    arrays: dict[str, Tensor] = {}
    if count <= MOST_WEIGHTS:
        arrays["weights"] = torch.stack([seen.dense()[0].float() for seen in recording.layers])
    else:
        arrays["thumbs"] = torch.stack([seen.map.max[0].half() for seen in recording.layers])
    if max(len(recording.queries), len(recording.tokens)) <= MOST_PATTERNS:
        head["patterns"], arrays["patterns"] = PATTERNS, patterns(recording)
    arrays["entropy"] = torch.stack([seen.entropy[0].float().mean(-1) for seen in recording.layers])
    norms = value_norms(recording)
    if norms is not None:
        arrays["norms"] = norms
    return frame(head, arrays)


def head_frame(recording: Recording, layer: int, head: int) -> bytes:
    """All weights of one head: `weights` i j."""
    _check_whole(recording)
    return frame(
        {"layer": layer, "head": head}, {"weights": recording.weights(layer, head).float()}
    )


def link_frame(recording: Recording, query: int, key: int) -> bytes:
    """The weight of one link in every head: `weights` l h."""
    _check_token("query", query, len(recording.queries))
    _check_token("key", key, len(recording.tokens))
    found = [
        seen.tile(slice(query, query + 1), slice(key, key + 1))[0, :, 0, 0].float()
        for seen in recording.layers
    ]
    return frame({"query": query, "key": key}, {"weights": torch.stack(found)})


def value_norms(recording: Recording) -> Tensor | None:
    """The length of each key's value vector: `l h j`; None where values are not known."""
    norms: list[Tensor] = []
    for seen in recording.layers:
        if not isinstance(seen.source, Recomputed):
            return None
        problem = seen.source.problem
        lengths = problem.value[0].float().norm(dim=-1)
        norms.append(lengths.repeat_interleave(problem.query.shape[1] // lengths.shape[0], dim=0))
    return torch.stack(norms)


def _head(recording: Recording) -> dict[str, Any]:
    whole = header(recording)
    # Small pictures come with the weights or the maps, colours came at the start.
    return {name: value for name, value in whole.items() if name not in ("thumbs", "colours")} | {
        "text": read_text(recording)
    }


def read_text(recording: Recording) -> str:
    """As much of the text as was read."""
    return recording.text[: max((token.end for token in recording.tokens), default=0)]


def _check_whole(recording: Recording) -> None:
    most = max(len(recording.queries), len(recording.tokens))
    if most > MOST_WHOLE:
        raise OptionError(f"a head of {most:,} tokens is looked at by tiles, beyond {MOST_WHOLE:,}")


def _check_token(name: str, token: int, count: int) -> None:
    if token >= count:
        raise OptionError(f"{name} must be one of the tokens 0 to {count - 1}, found {token}")
