"""Loading weights from other code by name: what is missing, left over or misshapen.

    model = ll.Decoder(ll.Config.llama(layers=6, width=288, heads=6, rotary_pairs="interleaved"))
    print(ll.compare_weights(model, "stories15M.safetensors"))       # which names do not fit
    ll.load_weights(model, "stories15M.safetensors", rename={
        "norm.weight": "stack.norm.weight",
        "layers.*.attention.wq.weight": "stack.blocks.*.attention.inputs.weight",
        "layers.*.attention.wk.weight": "stack.blocks.*.attention.inputs.weight",
        "layers.*.attention.wv.weight": "stack.blocks.*.attention.inputs.weight",
        ...})

The names of our tensors, and the order of the parts that a matrix joins, are listed in
`limelight/models/stack.py` and in docs/how-to/foreign-weights.md.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from limelight.checks import check_tensor
from limelight.errors import FileError, OptionError
from limelight.fields import checked
from limelight.files import check_path
from limelight.models.loading.weights import Safetensors, refuse_pickle

_SHOWN = 8
"""How many tensors of a kind are named; of the rest only the number is given."""


@dataclass(frozen=True)
class WeightsReport:
    """How well a set of tensors fits a model, by the names of the model's tensors.

    >>> from torch import nn, zeros
    >>> print(compare_weights(nn.Linear(2, 3), {"wieght": zeros(3, 2), "bias": zeros(4)}))
    missing: weight (3, 2), nearest is wieght (3, 2)
    left over: wieght (3, 2)
    misshapen: bias is (4), expected (3)
    """

    missing: Mapping[str, tuple[int, ...]]
    """tensors of the model that were not found, with their expected shapes"""
    left_over: Mapping[str, tuple[int, ...]]
    """tensors that the model does not have, with their shapes"""
    misshapen: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]
    """found and expected shape"""

    @property
    def fits(self) -> bool:
        """Whether every tensor fits."""
        return not (self.missing or self.left_over or self.misshapen)

    def nearest(self, name: str) -> str | None:
        """The left-over tensor whose name is nearest to a missing one; those of its shape first."""
        shape = self.missing[name]
        same_shape = [other for other, found in self.left_over.items() if found == shape]
        for names in (same_shape, list(self.left_over)):
            close = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
            if close:
                return close[0]
        return same_shape[0] if len(same_shape) == 1 else None

    def __str__(self) -> str:
        if self.fits:
            return "every tensor fits"
        lines: list[str] = []
        for name, shape in list(self.missing.items())[:_SHOWN]:
            near = self.nearest(name)
            hint = "" if near is None else f", nearest is {near} {_shape(self.left_over[near])}"
            lines.append(f"missing: {name} {_shape(shape)}{hint}")
        lines += _unnamed("missing", len(self.missing))
        for name, shape in list(self.left_over.items())[:_SHOWN]:
            lines.append(f"left over: {name} {_shape(shape)}")
        lines += _unnamed("left over", len(self.left_over))
        for name, (found, expected) in list(self.misshapen.items())[:_SHOWN]:
            lines.append(f"misshapen: {name} is {_shape(found)}, expected {_shape(expected)}")
        lines += _unnamed("misshapen", len(self.misshapen))
        return "\n".join(lines)


@checked
def compare_weights(
    model: nn.Module,
    weights: Mapping[str, Tensor] | str | Path,
    *,
    rename: Mapping[str, str | None] | None = None,
) -> WeightsReport:
    """Report which tensors are missing, left over or misshapen, with the nearest names.

    Args:
        model: one of ours, or any module.
        weights: a state dict, or the path of a safetensors file; only shapes are read.
        rename: names in `weights` → names in the model, for those that differ. A `*` stands for one
            part between dots, the same on both sides. Tensors that get the same name are
            concatenated along the rows, in the order of this mapping; None leaves a tensor out.

    >>> from torch import nn, ones, zeros
    >>> parts = {"q.weight": zeros(1, 2), "k.weight": ones(2, 2), "bias": zeros(3)}
    >>> rename = {"q.weight": "weight", "k.weight": "weight"}
    >>> print(compare_weights(nn.Linear(2, 3), parts, rename=rename))
    every tensor fits
    """
    shapes = _shapes(weights)
    return _compare(model, shapes, _joined(shapes, rename or {}))


@checked
def load_weights(
    model: nn.Module,
    weights: Mapping[str, Tensor] | str | Path,
    *,
    rename: Mapping[str, str | None] | None = None,
) -> None:
    """Load weights from other code into a model; the arguments are those of `compare_weights`.

    Raises:
        FileError: with the whole report, unless every tensor fits; the model is then unchanged.
    """
    shapes = _shapes(weights)
    joined = _joined(shapes, rename or {})
    report = _compare(model, shapes, joined)
    if not report.fits:
        where = "the weights" if isinstance(weights, Mapping) else str(weights)
        raise FileError(f"{where} do not fit the model: " + "; ".join(str(report).split("\n")))
    state = model.state_dict()
    read = weights.__getitem__ if isinstance(weights, Mapping) else Safetensors(Path(weights)).read
    with torch.no_grad():
        for name, parts in joined.items():
            tensors = [read(part) for part in parts]
            state[name].copy_(tensors[0] if len(tensors) == 1 else torch.cat(tensors))


def _shapes(weights: Mapping[str, Tensor] | str | Path) -> dict[str, tuple[int, ...]]:
    if isinstance(weights, Mapping):
        for name, tensor in weights.items():
            check_tensor(f"weights[{name!r}]", tensor)
        return {name: tuple(tensor.shape) for name, tensor in weights.items()}
    path = check_path(weights)
    refuse_pickle(path)
    file = Safetensors(path)
    return {name: file.shape(name) for name in file.names()}


def _joined(shapes: Iterable[str], rename: Mapping[str, str | None]) -> dict[str, list[str]]:
    """The names in the model, each with the tensors that are joined to make it."""
    left = dict.fromkeys(shapes)
    joined: dict[str, list[str]] = {}
    for theirs, ours in rename.items():
        if ours is not None and theirs.count("*") != ours.count("*"):
            raise OptionError(f"rename: {theirs!r} and {ours!r} have different numbers of *")
        pattern = re.compile(r"([^.]+)".join(map(re.escape, theirs.split("*"))))
        matches = [match for name in left if (match := pattern.fullmatch(name))]
        if not matches:
            raise OptionError(f"rename has {theirs!r}, which matches none of the weights")
        for match in matches:
            del left[match.string]
            if ours is None:
                continue
            parts = iter(match.groups())
            name = "".join(next(parts) if letter == "*" else letter for letter in ours)
            joined.setdefault(name, []).append(match.string)
    for name in left:
        joined.setdefault(name, []).append(name)
    return joined


def _compare(
    model: nn.Module, shapes: Mapping[str, tuple[int, ...]], joined: Mapping[str, Sequence[str]]
) -> WeightsReport:
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    found = {name: _joined_shape(name, [shapes[part] for part in joined[name]]) for name in joined}
    return WeightsReport(
        {name: shape for name, shape in expected.items() if name not in found},
        {name: shape for name, shape in found.items() if name not in expected},
        {
            name: (shape, expected[name])
            for name, shape in found.items()
            if name in expected and shape != expected[name]
        },
    )


def _joined_shape(name: str, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The shape of tensors concatenated along the rows."""
    first = shapes[0]
    if len(shapes) == 1:
        return first
    if not first or any(shape[1:] != first[1:] for shape in shapes):
        listed = ", ".join(map(_shape, shapes))
        raise OptionError(
            f"tensors joined to {name} may differ in the number of rows only, found {listed}"
        )
    return (sum(shape[0] for shape in shapes), *first[1:])


def _shape(sizes: tuple[int, ...]) -> str:
    return "(" + ", ".join(map(str, sizes)) + ")"


def _unnamed(kind: str, count: int) -> list[str]:
    return [f"{kind}: {count - _SHOWN} more"] if count > _SHOWN else []
