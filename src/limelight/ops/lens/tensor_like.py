"""What lets an object that can compute a tensor stand where tools expect that tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from operator import methodcaller
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from limelight.errors import OptionError


class TensorLike:
    """Becomes its `dense()` tensor when a tool treats it as one.

    Functions of torch and numpy, indexing, arithmetic and the methods of a tensor all work; each
    use computes the dense tensor anew, so keep the result where it is used more than once.
    """

    @property
    def shape(self) -> torch.Size:
        """Of that tensor, known without computing it."""
        raise NotImplementedError

    def dense(self) -> Tensor:
        """The tensor this object stands for."""
        raise NotImplementedError

    __hash__ = object.__hash__
    """as a tensor's: equality is by element, so it cannot tell which object this is"""

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        return _on_plain(func, methodcaller("dense"), args, kwargs or {})

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        array = self.dense().cpu().numpy()
        return array if dtype is None else array.astype(dtype)

    def __array_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        return _on_plain(func, methodcaller("__array__"), args, kwargs)

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        return _on_plain(getattr(ufunc, method), methodcaller("__array__"), args, kwargs)

    def __dlpack__(self, **options: Any) -> Any:
        return self.dense().__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.dense().__dlpack_device__()

    def __getitem__(self, index: Any) -> Tensor:
        return self.dense()[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        raise _not_stored(type(self).__name__, "setting elements")

    def __len__(self) -> int:
        return self.shape[0]

    def __getattr__(self, name: str) -> Any:
        # Reached only for what the class itself does not have: a tensor's own methods. Asking
        # whether there is a method must not compute anything; calling it does.
        if name.startswith("_") or not hasattr(Tensor, name):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        if callable(getattr(Tensor, name)):
            return partial(_call, self, name)
        return getattr(self.dense(), name)


def _call(stands: TensorLike, name: str, *args: Any, **options: Any) -> Any:
    if name.endswith("_"):
        raise _not_stored(type(stands).__name__, f"{name}()")
    return getattr(stands.dense(), name)(*args, **options)


def _on_plain(
    func: Callable[..., Any],
    plain: Callable[[TensorLike], Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Any:
    """The function of what its arguments stand for, in lists too."""
    if any(isinstance(leaf, TensorLike) for leaf in pytree.tree_leaves(kwargs.get("out"))):
        raise _not_stored("out", getattr(func, "__name__", str(func)))
    args, kwargs = pytree.tree_map_only(TensorLike, plain, (args, dict(kwargs)))
    return func(*args, **kwargs)


def _not_stored(name: str, found: str) -> OptionError:
    return OptionError(
        f"{name} cannot be changed in place, found {found}: its numbers are computed on demand "
        "for, not stored. What can be done: take dense() and change that"
    )


def _forward(name: str) -> Callable[..., Any]:
    def operator(self: TensorLike, *others: Any) -> Any:
        plain = [other.dense() if isinstance(other, TensorLike) else other for other in others]
        return getattr(self.dense(), name)(*plain)

    return operator


_EITHER_SIDE = (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor",
)  # fmt: skip
OPERATORS = tuple(
    f"__{name}__"
    for name in (
        *_EITHER_SIDE,
        *(f"r{name}" for name in _EITHER_SIDE),
        *("lt", "le", "gt", "ge", "eq", "ne"),
        *("neg", "pos", "abs", "invert"),
    )
)
"""What Python calls the operators of a tensor."""


def _compare(name: str) -> Callable[..., Any]:
    """By element against tensors, arrays and numbers; against anything else, who it is.

    So `seen in [...]` finds a Seen, as its hash does, where a tensor's == would have no truth.
    """
    by_element = _forward(name)

    def operator(self: TensorLike, other: Any) -> Any:
        number = isinstance(other, Tensor | int | float) and not isinstance(other, bool)
        if number or type(other).__module__ == "numpy":
            return by_element(self, other)
        return (self is other) == (name == "__eq__")

    return operator


# Python looks operators up on the class, so `__getattr__` does not see them.
for _name in OPERATORS:
    _operator = _compare(_name) if _name in ("__eq__", "__ne__") else _forward(_name)
    setattr(TensorLike, _name, _operator)
