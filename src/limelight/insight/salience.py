"""Which link to show first, when nobody said which."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from limelight.ops.lens.seen import Seen
from limelight.ops.lens.spec import Lens
from limelight.seeing.recording.recording import Link, Recording


def rule(layer: int | None = None, head: int | None = None) -> str:
    """The rule of `most_telling`, in words.

    >>> rule(layer=3).split("; ")[0].split(", ")[-1]
    'greatest over the heads of layer 3'
    """
    if layer is None:
        among = "all heads" if head is None else f"head {head} of all layers"
    else:
        among = f"the heads of layer {layer}" if head is None else f"layer {layer} head {head}"
    return (
        "(weight − what its key gets on average) × log₂(distance in words), greatest over "
        f"{among}; special tokens, punctuation and sinks set apart"
    )


def most_telling(
    recording: Recording, layer: int | None = None, head: int | None = None
) -> Link | None:
    """The link that says most: strong, and explained neither by its key nor by standing close.

        telling_ij = (weights_ij − mean_i weights_ij) · log₂|word_i − word_j|

    Neighbours attend to one another in any model, every token attends to sinks, and some keys are
    looked at by everyone, so weight alone would pick those. What a key gets on average is taken
    off; neighbouring words count nothing, and the logarithm lets reach count without letting it
    win over weight: a link over 8 words tells as much as one over 2 that is three times as strong.
    Special tokens, punctuation and sinks have no say. Between two texts (cross-attention) there
    is no distance.

    Args:
        recording: what was seen.
        layer: look in this layer only.
        head: look in this head only.

    Returns:
        The link, or None where no link is left to choose from.

    >>> import torch
    >>> weights = torch.tensor([[[.0, .9, .1], [.5, .0, .5], [.7, .3, .0]]])
    >>> rec = Recording.of_weights([weights], ["cats", "chase", "mice"])
    >>> most_telling(rec)
    Link(layer=0, head=0, query=2, key=0, weight=0.69...)
    """
    reach = _reach(recording)
    averages = _averages(recording)
    best: tuple[float, Link] | None = None
    heads = recording.head_numbers if head is None else (head,)
    positions = [recording.head_position(one) for one in heads]
    for number in recording.layer_numbers if layer is None else (layer,):
        seen = recording.seen(number)
        average = averages[recording.layer_numbers.index(number), positions, None]
        for first, tile in seen.in_tiles():
            weights = tile[0, positions].float().cpu()
            values = (weights - average) * reach(slice(first, first + weights.shape[1]))
            place = int(values.argmax())
            found = float(values.flatten()[place])
            if found > 0 and (best is None or found > best[0]):
                at, rest = divmod(place, values[0].numel())
                row, column = divmod(rest, values.shape[2])
                weight = float(weights[at, row, column])
                best = found, Link(number, heads[at], first + row, column, weight)
    return None if best is None else best[1]


def opening(recording: Recording, layer: int | None = None, head: int | None = None) -> Link:
    """The link that a view opens at: the most telling, else the first token's look at the first."""
    found = most_telling(recording, layer, head)
    if found is not None:
        return found
    layer = recording.layer_numbers[0] if layer is None else layer
    head = recording.head_numbers[0] if head is None else head
    return Link(layer, head, 0, 0, float(recording.weights(layer, head)[0, 0]))


def telling(recording: Recording, link: Link) -> float:
    """The value by which `most_telling` chose a link."""
    reach = _reach(recording)(slice(link.query, link.query + 1))
    layer = recording.layer_numbers.index(link.layer)
    average = _averages(recording)[layer, recording.head_position(link.head), link.key]
    return (link.weight - float(average)) * float(reach[0, link.key])


def _averages(recording: Recording) -> torch.Tensor:
    """What each key gets of a query on average: `layers heads j`."""
    return recording.received().float().cpu() / max(1, len(recording.queries))


def _reach(recording: Recording) -> Callable[[slice], torch.Tensor]:
    """For some queries: log₂(distance in words), 0 where a link does not tell: `r j`."""
    words = torch.tensor([token.word for token in recording.tokens])

    def reach(rows: slice) -> torch.Tensor:
        tells = recording.tells(rows)
        if recording.queries is not recording.tokens:
            return tells.float()
        distance = (words[rows, None] - words).abs().float()
        return distance.log2().where(tells, 0.0)

    return reach


def spread(seen: Seen) -> tuple[torch.Tensor, torch.Tensor]:
    """How each head looks, on average: entropy in bits, and distance in tokens: `h`."""
    statistics = seen.statistics
    if statistics.entropy is None or statistics.distance is None:
        seen = Seen.of_weights(seen.dense(), Lens(top=0, entropy=True, distance=True))
    return seen.entropy[0].mean(-1).cpu() / math.log(2), seen.distance[0].mean(-1).cpu()
