"""The names of transformers that limelight uses, for pyright.

Its own package imports every model under TYPE_CHECKING: 2,700 files to read for these names.
"""

from collections.abc import Callable
from os import PathLike
from typing import Any, Self

from torch import Tensor, nn
from transformers import masking_utils as masking_utils

class PreTrainedTokenizerBase:
    is_fast: bool
    all_special_ids: list[int]
    model_max_length: int
    def __call__(self, text: str | list[str] | None = None, **options: Any) -> Any: ...
    def __getattr__(self, name: str) -> Any: ...
    def __len__(self) -> int: ...

class PreTrainedModel(nn.Module):
    config: Any
    @classmethod
    def from_pretrained(cls, path: str | PathLike[str], **options: Any) -> Self: ...
    def get_correct_attn_implementation(
        self, requested_attention: str | None, *args: Any, **options: Any
    ) -> str: ...
    def _can_set_attn_implementation(self) -> bool: ...
    def set_attn_implementation(self, attn_implementation: str) -> None: ...
    def __getattr__(self, name: str) -> Any: ...

class AutoModel:
    @classmethod
    def from_pretrained(cls, path: str | PathLike[str], **options: Any) -> PreTrainedModel: ...

class AttentionInterface:
    @classmethod
    def register(cls, name: str, function: Callable[..., tuple[Tensor, Any]]) -> None: ...

class AttentionMaskInterface:
    @classmethod
    def register(cls, name: str, function: Callable[..., Any]) -> None: ...

def __getattr__(name: str) -> Any: ...
