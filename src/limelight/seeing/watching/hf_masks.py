"""Hugging Face's masks as rules instead of n² numbers.

`transformers` describes a mask as a function of (batch, head, query, key) built from a few known
pieces. Each piece has a rule here; an unknown function is evaluated to its dense form.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from limelight.errors import UnavailableError
from limelight.ops.lens.tensor_like import OPERATORS
from limelight.ops.masks.band import Band
from limelight.ops.masks.combine import And, Or
from limelight.ops.masks.dense import Dense
from limelight.ops.masks.documents import Documents
from limelight.ops.masks.mask import Mask
from limelight.ops.masks.padding import Padding


@dataclass(frozen=True, eq=False)
class LazyMask:
    """Stands for a mask of `b 1 i j` on its way through a model to its attention.

    A model that computes with its mask computes attention by itself: some expect numbers to add,
    some bools, true for what is masked or for what is not. No tensor is right for all of them, so
    any operation on the mask raises.
    """

    sizes: tuple[int, int, int]
    """b, i, j"""
    mask: Mask | None
    """the rule, in terms of the first `keys` keys; None allows all of them"""
    keys: int
    """keys from here on are columns that a static cache has not filled yet"""
    first_key: int
    """the position in the text of key 0; not 0 once a sliding cache has dropped some"""
    device: torch.device
    dtype = torch.bool
    ndim = 4

    @property
    def shape(self) -> torch.Size:
        """Of the dense mask: `b 1 i j`."""
        b, i, j = self.sizes
        return torch.Size((b, 1, i, j))

    def size(self, dim: int | None = None) -> Any:
        """As `shape`, or one of its sizes."""
        return self.shape if dim is None else self.shape[dim]

    def contiguous(self) -> LazyMask:
        """Itself: generate() calls this before the model."""
        return self

    def to(self, device: Any = None, **options: Any) -> LazyMask:
        """On another device, for models spread over several; another type is refused."""
        if device is None or isinstance(device, torch.dtype) or "dtype" in options:
            raise _off_the_interface("to")
        return replace(self, device=torch.device(device))

    def dense(self) -> Tensor:
        """The mask as a bool tensor `b 1 i j`."""
        b, _, i, j = self.shape
        dense = torch.zeros(self.shape, dtype=torch.bool, device=self.device)
        part = torch.ones(1, 1, 1, 1, dtype=torch.bool)
        if self.mask is not None:
            part = self.mask.dense(i, min(self.keys, j), b=b, device=self.device)
        dense[..., : self.keys] = part
        return dense

    @classmethod
    def __torch_function__(cls, func: Callable[..., Any], *_: Any) -> Any:
        raise _off_the_interface(getattr(func, "__name__", str(func)))

    def __getattr__(self, name: str) -> Any:
        # hasattr must work; only a call of the method raises.
        if name.startswith("_") or not hasattr(Tensor, name):
            raise AttributeError(f"LazyMask has no attribute {name!r}")
        if callable(getattr(Tensor, name)):
            return _refusal(name)
        raise _off_the_interface(name)


def _off_the_interface(operation: str) -> UnavailableError:
    return UnavailableError(
        f"the model computes with its attention mask itself ({operation}) instead of handing it to "
        "the attention interface of transformers, so "
        'attn_implementation="limelight" cannot serve it. Load it with '
        'attn_implementation="eager" instead; with output_attentions=True it returns dense '
        "weights, which Recording.of_weights takes"
    )


def _refusal(name: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise _off_the_interface(name)

    return refuse


# Python looks operators up on the class, so `__getattr__` does not see them. Numpy takes the
# operators of its arrays from `__array_ufunc__`.
for _name in (*OPERATORS, "__getitem__", "__setitem__", "__array__", "__array_ufunc__"):
    setattr(LazyMask, _name, _refusal(_name.strip("_")))
LazyMask.__hash__ = object.__hash__


@dataclass(frozen=True)
class _Request:
    """The sizes of the call that `transformers` requests a mask for."""

    batch: int
    queries: int
    keys: int
    first_query: int
    first_key: int

    @property
    def diagonal(self) -> int | None:
        """The key at the position of query 0; None where the last query is at the last key."""
        offset = self.first_query - self.first_key
        return None if offset == self.keys - self.queries else offset


class _UnknownRuleError(Exception):
    """A mask function that no rule here describes."""


def lazy_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] | None = None,
    attention_mask: Tensor | LazyMask | None = None,
    device: torch.device | str = "cpu",
    **options: Any,
) -> LazyMask:
    """What `AttentionMaskInterface` calls: the mask of a call as a rule."""
    if isinstance(attention_mask, LazyMask):
        # generate() with a static cache makes the mask before it calls the model.
        return attention_mask
    from transformers.masking_utils import causal_mask_function

    function = causal_mask_function if mask_function is None else mask_function
    filled = int(q_offset) + q_length - kv_offset
    device = torch.device(device)
    request = _Request(batch_size, q_length, kv_length, int(q_offset), kv_offset)
    keys = kv_length
    try:
        if _is_causal(function) and filled < kv_length:
            keys = filled
            request = _Request(batch_size, q_length, keys, int(q_offset), kv_offset)
        rule = _rule(function, request)
        if attention_mask is not None:
            rule = _both(rule, _padding(_fitted(attention_mask, request)))
    except _UnknownRuleError:
        rule = _dense_rule(function, attention_mask, request, device, options)
    return LazyMask((batch_size, q_length, kv_length), rule, keys, kv_offset, device)


def _dense_rule(
    function: Callable[..., Any],
    attention_mask: Tensor | None,
    request: _Request,
    device: torch.device,
    options: dict[str, Any],
) -> Mask:
    from transformers.masking_utils import sdpa_mask

    tensor = sdpa_mask(
        batch_size=request.batch,
        q_length=request.queries,
        kv_length=request.keys,
        q_offset=request.first_query,
        kv_offset=request.first_key,
        mask_function=function,
        attention_mask=attention_mask,
        allow_is_causal_skip=False,
        use_vmap=options.get("use_vmap", False),
        device=device,
    )
    assert tensor is not None
    return Dense(tensor)


def _rule(function: Callable[..., Any], request: _Request) -> Mask | None:
    """The rule of a mask function, None where it allows everything."""
    from transformers import masking_utils as hf

    if function is hf.causal_mask_function:
        return Band(None, 0, request.diagonal)
    if function is hf.bidirectional_mask_function:
        return None
    maker, parts = _made_by(function)
    if maker == "and_masks":
        return reduce(_both, (_rule(function, request) for function in parts["mask_functions"]))
    if maker == "or_masks":
        return reduce(_either, (_rule(function, request) for function in parts["mask_functions"]))
    if maker == "sliding_window_overlay":
        return Band(int(parts["sliding_window"]) - 1, None, request.diagonal)
    if maker == "sliding_window_bidirectional_overlay":
        reach = int(parts["sliding_window"])
        return Band(reach, reach, request.diagonal)
    if maker == "padding_mask_function":
        return _padding(_fitted(parts["padding_mask"], request))
    if maker == "packed_sequence_mask_function":
        return _packed(parts["packed_sequence_mask"], request)
    raise _UnknownRuleError


def _made_by(function: Callable[..., Any]) -> tuple[str, dict[str, Any]]:
    """Which function of `masking_utils` made this one, and what it closed over."""
    if getattr(function, "__module__", "") != "transformers.masking_utils":
        raise _UnknownRuleError
    maker = function.__qualname__.partition(".")[0]
    return maker, dict(inspect.getclosurevars(function).nonlocals)


def _is_causal(function: Callable[..., Any]) -> bool:
    """Whether no query sees a later key, whatever else the mask forbids."""
    from transformers import masking_utils as hf

    if function is hf.causal_mask_function:
        return True
    try:
        maker, parts = _made_by(function)
    except _UnknownRuleError:
        return False
    inner: Sequence[Callable[..., Any]] = parts.get("mask_functions", ())
    return maker == "and_masks" and any(_is_causal(function) for function in inner)


def _both(first: Mask | None, second: Mask | None) -> Mask | None:
    if first is None or second is None:
        return first or second
    if isinstance(first, Band) and isinstance(second, Band) and first.diagonal == second.diagonal:
        left, right = _min_reach(first.left, second.left), _min_reach(first.right, second.right)
        return Band(left, right, first.diagonal)
    return And.of(first, second)


def _either(first: Mask | None, second: Mask | None) -> Mask | None:
    return None if first is None or second is None else Or.of(first, second)


def _min_reach(first: int | None, second: int | None) -> int | None:
    return min((size for size in (first, second) if size is not None), default=None)


def _fitted(padding: Tensor, request: _Request) -> Tensor:
    """A padding mask `b keys` cut to, or filled up to, the keys of this call."""
    padding = padding.bool()[:, request.first_key : request.first_key + request.keys]
    missing = request.keys - padding.shape[1]
    return torch.nn.functional.pad(padding, (0, missing)) if missing > 0 else padding


def _padding(real: Tensor) -> Mask | None:
    """Which keys are real, `b j`, as lengths where the padding is on one side."""
    if torch.compiler.is_compiling():
        # A traced graph cannot branch on the values of a tensor.
        return Dense(real[:, None, None, :])
    if bool(real.all()):
        return None
    lengths = real.sum(1)
    places = torch.arange(real.shape[1], device=real.device)
    if torch.equal(real, places < lengths[:, None]):
        return Padding(lengths.cpu(), "right")
    if torch.equal(real, places >= real.shape[1] - lengths[:, None]):
        return Padding(lengths.cpu(), "left")
    return Dense(real[:, None, None, :])


def _packed(numbers: Tensor, request: _Request) -> Mask:
    """Sequences packed into one row: `b n`, the number of each token's sequence."""
    complete = request.queries == request.keys == numbers.shape[1] and request.diagonal is None
    if not complete or len(numbers) != 1 or torch.compiler.is_compiling():
        raise _UnknownRuleError
    lengths = torch.unique_consecutive(numbers[0], return_counts=True)[1]
    sizes = tuple(int(length) for length in lengths)
    return Documents(sizes, sizes)
