"""The figure of `cause`: every link by weight and by what its cut causes, and every key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from limelight.colours import LIGHT
from limelight.labels import fit, visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from limelight.insight.cause import Cause

_NAMED = 3
"""Links that are labelled in the scatter plot."""
_TALLEST = 16.0
"""The greatest height in inches; a long text labels every few keys only."""
_FLOOR = 1e-8
"""Smaller changes are rounding errors."""


def draw(cause: Cause) -> Figure:
    """Left: each link of one head. Right: each key by every measure, as a share of its largest."""
    from limelight.plotting import new_figure

    height = min(max(4.2, 0.24 * len(cause.tokens) + 1.6), _TALLEST)
    figure = new_figure(11.0, height)
    left, right = figure.subplots(1, 2)
    _scatter(left, cause)
    _by_key(right, cause)
    token = visible(cause.tokens[cause.token], 30)
    figure.suptitle(
        f'{visible(cause.model, 40)}: what the links of "{token}" weigh, and what cutting them '
        f"causes ({cause.measure})",
        fontsize=10, parse_math=False,
    )  # fmt: skip
    return figure


def _scatter(axes: Axes, cause: Cause) -> None:
    from limelight.plotting import fonts_for, weight_scale

    weight, change = cause.weight, cause.forbid.change.clamp(min=_FLOOR)
    layers = torch.arange(len(weight))[:, None, None].expand_as(weight)
    points = axes.scatter(
        weight.flatten().tolist(), change.flatten().tolist(), s=9, c=layers.flatten().tolist(),
        cmap=weight_scale(), vmin=-0.25 * len(weight), linewidth=0, alpha=0.85,
    )  # fmt: skip
    axes.set_yscale("log")
    axes.set_xlabel("weight of a link, in one head")
    axes.set_ylabel(f"{cause.measure} when it is cut there")
    if len(cause.control.change):
        high = max(float(cause.control.change.quantile(0.95)), _FLOOR)
        axes.axhline(high, color=LIGHT.muted, linewidth=0.8, linestyle="--")
        axes.text(
            1.0, high, "95% of random links of other tokens cause less ", fontsize=7,
            color=LIGHT.muted, ha="right", va="bottom", transform=axes.get_yaxis_transform(),
        )  # fmt: skip
    for link, value in cause.links(_NAMED):
        name = fit(visible(cause.tokens[link.key]), 14).strip()
        left = link.weight > 0.7
        axes.annotate(
            f"{link.layer}·{link.head} {name}", (link.weight, max(value, _FLOOR)),
            xytext=(-5 if left else 5, 2), ha="right" if left else "left",
            textcoords="offset points", fontsize=7, color=LIGHT.ink, parse_math=False,
            fontfamily=fonts_for([name]),
        )  # fmt: skip
    axes.spines[["top", "right"]].set_visible(False)
    figure = axes.get_figure()
    assert figure is not None
    bar = figure.colorbar(points, ax=axes, fraction=0.04, pad=0.02)
    bar.ax.set_ylim(0, max(1, len(weight) - 1))
    bar.set_label("layer")
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]


def _by_key(axes: Axes, cause: Cause) -> None:
    from limelight.plotting import fonts_for, weight_scale

    measures = cause.by_token
    shares = torch.stack([each / each.max().clamp(min=1e-12) for each in measures.values()], 1)
    axes.imshow(shares.numpy(), cmap=weight_scale(), vmin=0.0, vmax=1.0, aspect="auto")
    names = [fit(visible(token), 14).strip() or "·" for token in cause.tokens]
    style: dict[str, Any] = {"fontsize": 8, "fontfamily": fonts_for(names), "parse_math": False}
    every = max(1, len(names) // 48)
    axes.set_yticks(range(0, len(names), every), names[::every], **style)
    axes.set_xticks(range(len(measures)), list(measures), rotation=35, ha="left", fontsize=8)
    axes.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False, length=0)
    axes.spines[:].set_visible(False)
    if len(names) <= 48:
        for column, each in enumerate(measures.values()):
            for row, value in enumerate(each.tolist()):
                dark = float(shares[row, column]) > 0.55
                axes.text(
                    column, row, _short(value), ha="center", va="center", fontsize=6.5,
                    color="white" if dark else LIGHT.ink,
                )  # fmt: skip


def _short(value: float) -> str:
    """Two decimals, or one digit and its exponent; no leading zero.

    >>> _short(0.17432), _short(0.00042), _short(0.0)
    ('.17', '4e-4', '0')
    """
    if value >= 0.005:
        return f"{value:.2f}".removeprefix("0")
    return "0" if value == 0 else f"{value:.0e}".replace("e-0", "e-")
