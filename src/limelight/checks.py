"""Checks that name the argument, what was found and what was expected; the axis letters.

The letters are the same everywhere in Limelight:

    b  batch              i  query position     d  head channels
    h  query heads        j  key position       e  value channels
    g  key/value heads    n  tokens             m  model width

`scores` go into softmax, `weights` come out of it.
"""

from __future__ import annotations

import math
import operator

import torch
from torch import Tensor

from limelight.errors import DeviceError, DtypeError, OptionError, ShapeError


def shape_text(tensor: Tensor) -> str:
    """The shape as people write it: `(2, 8, 128, 64)`."""
    return "(" + ", ".join(str(size) for size in tensor.shape) + ")"


def check_tensor(name: str, tensor: Tensor) -> None:
    """Raise unless `tensor` is a dense torch.Tensor: not nested, sparse or quantized."""
    if not isinstance(tensor, Tensor):
        raise DtypeError(f"{name} must be a torch.Tensor, found {type(tensor).__name__}")
    if tensor.is_nested:
        kind, advice = "nested", "attend_packed takes concatenated sequences of any lengths"
    elif tensor.layout is not torch.strided:
        kind = str(tensor.layout).removeprefix("torch.")
        advice = "convert it with tensor.to_dense()"
    elif tensor.is_quantized:
        kind, advice = "quantized", "convert it with tensor.dequantize()"
    else:
        return
    raise DtypeError(f"{name} is a {kind} tensor, expected a dense one; {advice}")


def check_plain(name: str, tensor: Tensor) -> Tensor:
    """The tensor, with a lazy negation or conjugation resolved, so that memory holds its values.

    Refuses subclasses whose memory need not hold their values.
    """
    check_tensor(name, tensor)
    if type(tensor) not in _PLAIN and not _dispatches(tensor):
        raise DtypeError(
            f"{name} is a {type(tensor).__name__}, expected a plain torch.Tensor: "
            "a subclass may mean more than its memory holds; "
            "if it does not, pass tensor.as_subclass(torch.Tensor)"
        )
    if not torch.compiler.is_compiling() and (tensor.is_neg() or tensor.is_conj()):
        return tensor.resolve_neg().resolve_conj()
    return tensor


_PLAIN = (Tensor, torch.nn.Parameter, torch.nn.Buffer)


def _dispatches(tensor: Tensor) -> bool:
    """Whether a subclass implements torch's operations itself, as those that trace or shard do."""
    name = "__torch_dispatch__"
    overridden = getattr(type(tensor), name) is not getattr(Tensor, name)
    return overridden or torch.compiler.is_compiling()


def check_rank(name: str, tensor: Tensor, letters: str) -> None:
    """Raise unless `tensor` is dense, with one axis for each of the space-separated `letters`."""
    check_tensor(name, tensor)
    expected = len(letters.split())
    if tensor.ndim != expected:
        raise ShapeError(
            f"{name} must have {expected} axes ({letters}), "
            f"found {tensor.ndim}: {shape_text(tensor)}"
        )


def check_size(
    name: str, tensor: Tensor, axis: int, letter: str, expected: int, source: str
) -> None:
    """Raise unless `tensor.shape[axis]` is `expected`, the size that `source` sets."""
    size = tensor.shape[axis]
    if size != expected:
        raise ShapeError(
            f"{name} has {letter} = {size} (shape {shape_text(tensor)}), "
            f"expected {expected} as in {source}"
        )


def check_shape(name: str, tensor: Tensor, letters: str, sizes: tuple[int, ...]) -> None:
    """Raise unless `tensor` has exactly these sizes, one for each of the `letters`."""
    if tuple(tensor.shape) != sizes:
        raise ShapeError(
            f"{name} has shape {shape_text(tensor)}, "
            f"expected ({', '.join(letters.split())}) = {sizes}"
        )


def check_broadcast(name: str, tensor: Tensor, letters: str, sizes: tuple[int, ...]) -> None:
    """Raise unless `tensor` broadcasts to these sizes."""
    fits = tensor.ndim <= len(sizes) and all(
        size == 1 or size == target  # `in` does not trace when sizes are symbols
        for size, target in zip(reversed(tensor.shape), reversed(sizes), strict=False)
    )
    if not fits:
        raise ShapeError(
            f"{name} has shape {shape_text(tensor)}, expected one that broadcasts to "
            f"({', '.join(letters.split())}) = {sizes}"
        )


def check_groups(name: str, tensor: Tensor, h: int) -> None:
    """Raise unless the heads of `tensor`, `b g n c`, divide those of the query."""
    g = tensor.shape[1]
    if g != h and (g == 0 or g > h or h % g != 0):
        raise ShapeError(
            f"{name} has g = {g} heads (shape {shape_text(tensor)}), "
            f"expected a number that divides query's h = {h}"
        )


def check_same_kind(name: str, tensor: Tensor, like: Tensor, source: str) -> None:
    """Raise unless `tensor` has the element type and the device of `like`."""
    if tensor.dtype != like.dtype:
        raise DtypeError(f"{name} is {tensor.dtype}, expected {like.dtype} as in {source}")
    check_same_device(name, tensor, like, source)


def check_same_device(name: str, tensor: Tensor, like: Tensor, source: str) -> None:
    """Raise unless `tensor` is on the device of `like`."""
    if tensor.device != like.device:
        raise DeviceError(f"{name} is on {tensor.device}, expected {like.device} as {source}")


def check_device(device: str | torch.device) -> torch.device:
    """The device of this name."""
    try:
        return torch.device(device)
    except (TypeError, ValueError, RuntimeError):
        raise DeviceError(f"device must be a torch device like 'cpu', found {device!r}") from None


def check_number(
    name: str,
    value: float,
    expected: str,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    above: float = -math.inf,
    below: float = math.inf,
) -> float:
    """The value as a float, if it is finite, in [low, high] and in (above, below).

    `expected` says that in words.
    """
    try:
        # float() alone would also parse a string, and take a bool for 0 or 1.
        number = math.nan if isinstance(value, str | bool) else float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        number = math.nan
    # Plain comparisons, which trace under torch.compile; false for NaN too.
    if not (low <= number <= high and above < number < below):
        raise OptionError(f"{name} must be {expected}, found {value!r}")
    return number


def check_probability(name: str, value: float) -> float:
    """The value as a float, if it can be the probability of dropout: [0, 1)."""
    return check_number(name, value, "at least 0 and below 1", low=0.0, below=1.0)


def check_positive(name: str, value: float) -> float:
    """The value as a float, if it is finite and above 0."""
    return check_number(name, value, "a positive number", above=0.0)


def check_whole(name: str, value: int, least: int = 1, most: int | None = None) -> int:
    """The value, if it is a whole number of at least `least` and, if given, at most `most`."""
    try:
        # Whatever can index a sequence counts: numpy's integers and tensors of one element too.
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    bound = f"at most {most}" if number is not None and number > least else f"at least {least}"
    if number is None or number < least or (most is not None and number > most):
        raise OptionError(f"{name} must be a whole number of {bound}, found {value!r}")
    return number


def check_flag(name: str, value: object) -> bool:
    """The value as a bool, if it is a bool, a number, or an array or tensor of one element.

    >>> check_flag("is_causal", 1)
    True
    """
    if isinstance(value, bool):
        return value
    try:
        # Strings, lists and None have a truth value in Python, but are never meant as flags.
        if value is not None and hasattr(value, "__bool__"):
            return bool(value)
    except (TypeError, ValueError, RuntimeError):  # a tensor of several
        pass
    raise OptionError(f"{name} must be True or False, found {value!r}")


def check_table(name: str, value: object, kind: torch.dtype) -> Tensor:
    """The value, a tensor or nested sequences of equal lengths, as a tensor of this type."""
    if isinstance(value, Tensor):
        value = check_plain(name, value)
    try:
        return torch.as_tensor(value, dtype=kind)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise OptionError(
            f"{name} must be a tensor, or nested sequences of equal lengths, found {value!r}"
        ) from None


FLOATING = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
"""The element types that attention takes."""
