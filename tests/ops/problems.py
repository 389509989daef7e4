"""Random attention calls, for properties that must hold over all of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

import limelight as ll
from limelight.ops.masks.mask import Mask, as_mask

INSIDE = [None, ll.causal(), ~ll.causal() | ll.window(2)]


@dataclass
class Call:
    """The arguments of one `attend` call."""

    query: Tensor
    key: Tensor
    value: Tensor
    options: dict[str, Any] = field(default_factory=dict)

    def to(self, dtype: torch.dtype) -> Call:
        options = dict(self.options)
        if isinstance(options.get("bias"), Tensor):
            options["bias"] = options["bias"].to(dtype)
        return Call(self.query.to(dtype), self.key.to(dtype), self.value.to(dtype), options)

    def allowed(self) -> Tensor:
        """Which keys each query may attend to: `b h i j`."""
        b, h, i, _ = self.query.shape
        j = self.key.shape[2]
        mask = self.options.get("mask")
        if mask is None:
            return torch.ones(b, h, i, j, dtype=torch.bool)
        dense = mask.dense(i, j, b=b, h=h) if isinstance(mask, Mask) else mask
        return dense.expand(b, h, i, j)

    def run(self, impl: str = "auto") -> Tensor:
        return ll.attend(self.query, self.key, self.value, impl=impl, **self.options)


def split(draw: st.DrawFn, total: int) -> list[int]:
    cuts = sorted(draw(st.lists(st.integers(0, total), max_size=4)))
    return [b - a for a, b in zip([0, *cuts], [*cuts, total], strict=True)]


@st.composite
def leaf_masks(
    draw: st.DrawFn, b: int, h: int, i: int, j: int, rng: torch.Generator
) -> Mask | Tensor:
    rule = draw(
        st.sampled_from(
            [
                "causal",
                "window",
                "dilated",
                "padding",
                "blocks",
                "anchors",
                "dense",
                "documents",
                "without",
            ]
        )
    )
    match rule:
        case "causal":
            return ll.causal(draw(st.sampled_from([None, 0, 3])))
        case "window":
            return ll.window(draw(st.integers(0, 2 * j + 1)), draw(st.integers(0, j + 1)))
        case "dilated":
            return ll.dilated(draw(st.integers(1, 5)), draw(st.none() | st.integers(0, 9)), 2)
        case "padding":
            lengths = draw(st.lists(st.integers(0, j), min_size=b, max_size=b))
            return ll.padding(lengths, draw(st.sampled_from(["right", "left"])))
        case "blocks":
            size = draw(st.sampled_from([1, 7, 16, 64]))
            shape = draw(st.sampled_from([1, h])), -(-i // size), -(-j // size)
            layout = torch.rand(shape, generator=rng) < 0.5
            return ll.blocks(layout, size)
        case "anchors":
            return ll.anchors(draw(st.lists(st.integers(0, j - 1), max_size=3)) if j else [])
        case "without":
            links = torch.randint(1 << 20, (draw(st.integers(0, 40)), 2), generator=rng)
            return ll.without(links % torch.tensor([i, j]) if i and j else [])
        case "documents":
            rows = split(draw, i)
            columns = torch.tensor(split(draw, j))
            columns = torch.nn.functional.pad(columns, (0, max(0, len(rows) - len(columns))))
            rows += [0] * (len(columns) - len(rows))
            return ll.documents(rows, columns, inside=draw(st.sampled_from(INSIDE)))
        case _:
            shape = draw(st.sampled_from([(b, h, i, j), (1, 1, i, j), (b, 1, 1, j), (i, 1), (j,)]))
            return torch.rand(shape, generator=rng) < 0.6


@st.composite
def masks(
    draw: st.DrawFn, b: int, h: int, i: int, j: int, rng: torch.Generator
) -> Mask | Tensor | None:
    leaves = draw(st.lists(leaf_masks(b, h, i, j, rng), max_size=3))
    if not leaves:
        return None
    leaves = [~as_mask(leaf) if draw(st.integers(0, 4)) == 0 else leaf for leaf in leaves]
    mask = leaves[0]
    for leaf in leaves[1:]:
        mask = mask & leaf if draw(st.booleans()) else mask | leaf
    return mask


@st.composite
def calls(draw: st.DrawFn, longest: int = 80) -> Call:
    """Float32 calls of every kind: lengths, groups, strides, masks, biases, caps."""
    rng = torch.Generator().manual_seed(draw(st.integers(0, 1 << 30)))

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng)

    b, g = draw(st.integers(0, 3)), draw(st.integers(1, 3))
    h = g * draw(st.integers(1, 3))
    i, j = draw(st.integers(0, longest)), draw(st.integers(0, longest))
    d = draw(st.sampled_from([1, 2, 5, 8, 16, 31, 32, 64]))
    e = draw(st.sampled_from([d, d, 1, 7, 48]))
    if draw(st.booleans()):  # as nn.Linear leaves them
        query = randn(b, i, h, d).transpose(1, 2)
        key, value = randn(b, j, g, d + e).transpose(1, 2).split([d, e], dim=3)
    else:
        query, key, value = randn(b, h, i, d), randn(b, g, j, d), randn(b, g, j, e)
    options: dict[str, Any] = {"mask": draw(masks(b, h, i, j, rng))}
    match draw(st.sampled_from(["none", "none", "tensor", "alibi"])):
        case "tensor":
            shape = draw(st.sampled_from([(b, h, i, j), (1, h, 1, j), (h, i, 1), (i, j)]))
            options["bias"] = randn(*shape)
        case "alibi":
            options["bias"] = ll.alibi(h)
    if draw(st.booleans()):
        options["softcap"] = draw(st.sampled_from([1.0, 30.0]))
    if draw(st.booleans()):
        options["scale"] = draw(st.sampled_from([0.0, 0.3, -1.0, 4.0]))
    return Call(query, key, value, options)
