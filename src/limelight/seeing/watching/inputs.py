"""Which tokens a model reads: the ids and the padding passed to it and to models inside it."""

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
        """A module begins: one that takes token ids or padding is a model."""
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
        """The ids of the innermost model around a module that have this length."""
        for inputs in self._around(path):
            if inputs.ids is not None and inputs.ids.shape[1] == size:
                return inputs.ids
        return None

    def real_for(self, path: str, size: int) -> Tensor | None:
        """Which of a module's keys are tokens, where a padding mask of this length was passed."""
        for inputs in self._around(path):
            if inputs.real is not None and inputs.real.shape[1] == size:
                return inputs.real
        return None

    def source(self, size: int) -> ModelInputs:
        """The inputs of the encoder, if they have this length."""
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
