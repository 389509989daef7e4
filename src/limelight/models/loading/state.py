"""Foreign weights for a model of ours: what fits, what is missing, left over or misshapen.

    model = ll.Decoder(ll.Config.llama(layers=6, width=288, heads=6, rotary_pairs="interleaved"))
    print(ll.compare_weights(model, "stories15M.safetensors"))       # which names do not fit
    ll.load_weights(model, "stories15M.safetensors", rename={"norm.weight": "stack.norm.weight"})

The names of our tensors, and how the parts of a matrix follow one another, are listed in
`limelight/models/stack.py`.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
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
"""Tensors of a kind that are named; of the rest the number is given."""


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
    """tensors of the model that are not there, with the shapes they need"""
    left_over: Mapping[str, tuple[int, ...]]
    """tensors that the model has no place for"""
    misshapen: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]
    """found and expected shape"""

    @property
    def fits(self) -> bool:
        """Whether every tensor has its place."""
        return not (self.missing or self.left_over or self.misshapen)

    def nearest(self, name: str) -> str | None:
        """The tensor left over whose name is nearest to a missing one; those of its shape first."""
        shape = self.missing[name]
        alike = [other for other, left_shape in self.left_over.items() if left_shape == shape]
        for names in (alike, list(self.left_over)):
            close = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
            if close:
                return close[0]
        return alike[0] if len(alike) == 1 else None

    def __str__(self) -> str:
        if self.fits:
            return "every tensor fits"
        lines: list[str] = []
        for name, shape in list(self.missing.items())[:_SHOWN]:
            near = self.nearest(name)
            hint = "" if near is None else f", nearest is {near} {_shape(self.left_over[near])}"
            lines.append(f"missing: {name} {_shape(shape)}{hint}")
        lines += _more("missing", len(self.missing))
        for name, shape in list(self.left_over.items())[:_SHOWN]:
            lines.append(f"left over: {name} {_shape(shape)}")
        lines += _more("left over", len(self.left_over))
        for name, (found, expected) in list(self.misshapen.items())[:_SHOWN]:
            lines.append(f"misshapen: {name} is {_shape(found)}, expected {_shape(expected)}")
        lines += _more("misshapen", len(self.misshapen))
        return "\n".join(lines)


@checked
def compare_weights(
    model: nn.Module,
    weights: Mapping[str, Tensor] | str | Path,
    *,
    rename: Mapping[str, str] | None = None,
) -> WeightsReport:
    """Report which tensors are missing, left over or misshapen, with the nearest names.

    Args:
        model: one of ours, or any module.
        weights: a state dict, or the path of a safetensors file; only shapes are read.
        rename: names in `weights` → names in the model, for those that differ.
    """
    return _compare(model, _shapes(weights), rename or {})


@checked
def load_weights(
    model: nn.Module,
    weights: Mapping[str, Tensor] | str | Path,
    *,
    rename: Mapping[str, str] | None = None,
) -> None:
    """Load foreign weights into a model; the arguments are those of `compare_weights`.

    Raises:
        FileError: the whole report, where not every tensor fits; the model is as it was then.
    """
    rename = rename or {}
    report = _compare(model, _shapes(weights), rename)
    if not report.fits:
        where = "the weights" if isinstance(weights, Mapping) else str(weights)
        raise FileError(f"{where} do not fit the model: " + "; ".join(str(report).split("\n")))
    slots = model.state_dict()
    read = weights.__getitem__ if isinstance(weights, Mapping) else Safetensors(Path(weights)).read
    with torch.no_grad():
        for name in _shapes(weights):
            slots[rename.get(name, name)].copy_(read(name))


def _shapes(weights: Mapping[str, Tensor] | str | Path) -> dict[str, tuple[int, ...]]:
    if isinstance(weights, Mapping):
        for name, tensor in weights.items():
            check_tensor(f"weights[{name!r}]", tensor)
        return {name: tuple(tensor.shape) for name, tensor in weights.items()}
    path = check_path(weights)
    refuse_pickle(path)
    file = Safetensors(path)
    return {name: file.shape(name) for name in file.names()}


def _compare(
    model: nn.Module, shapes: Mapping[str, tuple[int, ...]], rename: Mapping[str, str]
) -> WeightsReport:
    unknown = [name for name in rename if name not in shapes]
    if unknown:
        raise OptionError(f"rename speaks of {unknown[0]!r}, which is not among the weights")
    expected = {name: tuple(slot.shape) for name, slot in model.state_dict().items()}
    renamed = {rename.get(name, name): shape for name, shape in shapes.items()}
    if len(renamed) < len(shapes):
        raise OptionError("rename gives two tensors the same name")
    return WeightsReport(
        {name: shape for name, shape in expected.items() if name not in renamed},
        {name: shape for name, shape in renamed.items() if name not in expected},
        {
            name: (shape, expected[name])
            for name, shape in renamed.items()
            if name in expected and shape != expected[name]
        },
    )


def _shape(sizes: tuple[int, ...]) -> str:
    return "(" + ", ".join(map(str, sizes)) + ")"


def _more(kind: str, count: int) -> list[str]:
    return [f"{kind}: {count - _SHOWN} more"] if count > _SHOWN else []
