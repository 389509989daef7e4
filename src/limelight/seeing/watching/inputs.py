"""Which tokens a model reads: the ids and the padding that it and its parts are given."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from limelight.ops.call_sites import is_within


class ModelInputs(NamedTuple):
    """The token ids and padding of a model call."""

    ids: Tensor | None
    """b n: token ids"""
    real: Tensor | None
    """b n: true for tokens, false for padding"""


class InputRecorder:
    """Records the inputs of the models within a model, by their paths."""

    def __init__(self) -> None:
        self._by_path: dict[str, ModelInputs] = {}

    def begin(
        self, module: nn.Module, path: str, args: tuple[Any, ...], options: dict[str, Any]
    ) -> None:
        """A module begins: those that take token ids are models."""
        ids = next(
            (value for value in (options.get("input_ids"), *args[:1]) if _is_ids(value)), None
        )
        real = options.get("attention_mask")
        padded = isinstance(real, Tensor) and real.ndim == 2
        if ids is not None or padded:
            self._by_path[path] = ModelInputs(
                None if ids is None else ids.detach(),
                real.detach().bool() if padded else None,  # pyright: ignore[reportOptionalMemberAccess]
            )
        elif hasattr(module, "config") or path == "":
            self._by_path.pop(path, None)

    def ids_for(self, path: str, size: int) -> Tensor | None:
        """What the innermost model around a module was given, if it fits."""
        for inputs in self._around(path):
            if inputs.ids is not None and inputs.ids.shape[1] == size:
                return inputs.ids
        return None

    def real_for(self, path: str, size: int) -> Tensor | None:
        """Which of the keys that a module looks at are tokens, where padding was named."""
        for inputs in self._around(path):
            if inputs.real is not None and inputs.real.shape[1] == size:
                return inputs.real
        return None

    def source(self, size: int) -> ModelInputs:
        """What the encoder was given, if it fits."""
        fitting = [
            inputs
            for path, inputs in self._by_path.items()
            if "encoder" in path.lower()
            and any(tensor is not None and tensor.shape[1] == size for tensor in inputs)
        ]
        return fitting[-1] if fitting else ModelInputs(None, None)

    def _around(self, path: str) -> list[ModelInputs]:
        around = [outer for outer in self._by_path if is_within(path, outer)]
        return [self._by_path[outer] for outer in sorted(around, key=len, reverse=True)]


def _is_ids(value: object) -> bool:
    return isinstance(value, Tensor) and value.ndim == 2 and value.dtype in _WHOLE


_WHOLE = (torch.int64, torch.int32)
