"""Cutting links: a model runs as if some queries could not look at some keys."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from limelight.checks import check_whole
from limelight.errors import OptionError
from limelight.fields import as_list
from limelight.insight.runner import layer_of, through_the_seam
from limelight.ops.calls import AttentionCall, intercept
from limelight.ops.masks.dense import Dense
from limelight.ops.masks.links import without
from limelight.ops.masks.mask import Mask, as_mask
from limelight.seeing.recording.recording import Link

How = Literal["forbid", "zero"]


@contextmanager
def cutting(
    model: nn.Module,
    links: Iterable[Link],
    how: How = "forbid",
    *,
    stack: str | None = None,
) -> Generator[None]:
    """Within the block, the model runs without these links.

        forbid    weights_ij = 0 before softmax: the row's other weights grow, it sums to 1 again
        zero      weights_ij = 0 after softmax: the row's other weights stay, it sums to less

    Memory stays linear in the text. A query and a key are places in the text, also while a model
    generates token by token. Cuts nest with each other and with `watch` and `intercept`.

    Args:
        model: one of ours, a Hugging Face model, or a module whose attention goes through
            limelight.
        links: which query no longer sees which key, in which layer and head; weights are ignored.
        how: before softmax or after it.
        stack: for a model with several kinds of layers, such as an encoder and a decoder: the
            path of those that are meant, such as "decoder.block.*.layer.1.EncDecAttention".

    >>> import limelight as ll
    >>> model, text = ll.load("minilm"), "The animal didn't cross the street because it was tired."
    >>> with ll.cutting(model, [ll.Link(layer=3, head=1, query=9, key=2)]):
    ...     rec = ll.look(text, model)
    >>> float(rec.weights(3, 1)[9, 2]), float(rec.weights(3, 1)[9].sum().round(decimals=4))
    (0.0, 1.0)
    """
    if how not in get_args(How):
        raise OptionError(f"how must be 'forbid' or 'zero', found {how!r}")
    cuts = _by_layer(links)
    stacks: set[str] = set()

    def cut(call: AttentionCall) -> Tensor:
        if stack is not None and call.stack != stack:
            return call.attend()
        stacks.add(call.stack)
        if len(stacks) > 1:
            known = ", ".join(map(repr, sorted(stacks)))
            raise OptionError(f"stack must say which layers are meant: one of {known}")
        number = layer_of(call)
        mask = _mask(call, cuts[number]) if number in cuts else None
        return call.attend() if mask is None else cut_call(call, mask, how).attend()

    with through_the_seam(model), intercept(cut, model):
        yield


def cut_call(call: AttentionCall, mask: Mask | Tensor, how: How) -> AttentionCall:
    """The call without the links that the mask does not allow."""
    combined = mask if call.mask is None else as_mask(call.mask) & as_mask(mask)
    if how == "forbid" or call.lse is not None:
        return call.replace(mask=combined)
    return call.replace(mask=combined, lse=call.normaliser(), sinks=None)


_Cuts = dict[int, dict[int, dict[int, list[int]]]]
"""keys by layer, head and query"""


def _by_layer(links: Iterable[Link]) -> _Cuts:
    cuts: _Cuts = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for link in as_list("links", links):
        if not isinstance(link, Link):
            raise OptionError(f"links must be Links, found {link!r}")
        for name in ("layer", "head", "query", "key"):
            check_whole(f"{name} of a link", getattr(link, name), 0)
        cuts[link.layer][link.head][link.query].append(link.key)
    return cuts


def _mask(call: AttentionCall, heads: dict[int, dict[int, list[int]]]) -> Mask | None:
    """The mask that cuts the links of one layer; None where the call holds none of them."""
    h, i, j = call.query.shape[1], call.query.shape[2], call.key.shape[2]
    first_query = call.first_key + j - i
    # Heads that lose the same links share one mask.
    shared: dict[tuple[tuple[int, int], ...], list[int]] = defaultdict(list)
    for head, queries in heads.items():
        if head >= h:
            raise OptionError(f"a link names head {head}, expected one of the {h} heads")
        cells = {
            (query - first_query, key - call.first_key)
            for query, keys in queries.items()
            for key in keys
        }
        pairs = sorted((row, column) for row, column in cells if 0 <= row < i and 0 <= column < j)
        if pairs:
            shared[tuple(pairs)].append(head)
    mask: Mask | None = None
    for pairs, cut_heads in shared.items():
        kept = without(pairs)
        if len(cut_heads) < h:
            others = torch.ones(1, h, 1, 1, dtype=torch.bool, device=call.query.device)
            others[:, cut_heads] = False
            kept = kept | Dense(others)
        mask = kept if mask is None else mask & kept
    return mask
