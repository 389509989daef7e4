"""The mixin of objects that compute a tensor on demand and can be used in its place."""

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
    use recomputes the dense tensor, so keep the result where it is used more than once.
    """

    @property
    def shape(self) -> torch.Size:
        """The shape of that tensor, known without computing it."""
        raise NotImplementedError

    def dense(self) -> Tensor:
        """The tensor this object stands for."""
        raise NotImplementedError

    __hash__ = object.__hash__
    """by identity, as a tensor's, because == compares elements"""

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        return _on_values(func, methodcaller("dense"), args, kwargs or {})

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
        return _on_values(func, methodcaller("__array__"), args, kwargs)

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        return _on_values(getattr(ufunc, method), methodcaller("__array__"), args, kwargs)

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
        # Reached only for what the class itself does not have: a tensor's own methods. `hasattr`
        # must not compute anything; calling the method does.
        if name.startswith("_") or not hasattr(Tensor, name):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        if callable(getattr(Tensor, name)):
            return partial(_call, self, name)
        return getattr(self.dense(), name)


def _call(owner: TensorLike, name: str, *args: Any, **options: Any) -> Any:
    if name.endswith("_"):
        raise _not_stored(type(owner).__name__, f"{name}()")
    return getattr(owner.dense(), name)(*args, **options)


def _on_values(
    func: Callable[..., Any],
    value: Callable[[TensorLike], Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Any:
    """Call a function with the values of its TensorLike arguments, those in lists too."""
    if any(isinstance(leaf, TensorLike) for leaf in pytree.tree_leaves(kwargs.get("out"))):
        raise _not_stored("out", getattr(func, "__name__", str(func)))
    args, kwargs = pytree.tree_map_only(TensorLike, value, (args, dict(kwargs)))
    return func(*args, **kwargs)


def _not_stored(name: str, found: str) -> OptionError:
    return OptionError(
        f"{name} cannot be changed in place, found {found}: its values are computed on demand, "
        "not stored; take dense() and change that"
    )


def _forward(name: str) -> Callable[..., Any]:
    def operator(self: TensorLike, *others: Any) -> Any:
        values = [other.dense() if isinstance(other, TensorLike) else other for other in others]
        return getattr(self.dense(), name)(*values)

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
"""The methods behind the operators of a tensor."""


def _compare(name: str) -> Callable[..., Any]:
    """By element against tensors, arrays and numbers; by identity against anything else.

    So `seen in [...]` finds a Seen, as its hash does; the == of a tensor has no truth value.
    """
    by_element = _forward(name)

    def operator(self: TensorLike, other: Any) -> Any:
        is_numeric = isinstance(other, Tensor | int | float) and not isinstance(other, bool)
        if is_numeric or type(other).__module__ == "numpy":
            return by_element(self, other)
        return (self is other) == (name == "__eq__")

    return operator


# Python looks operators up on the class, so `__getattr__` does not see them.
for _name in OPERATORS:
    _operator = _compare(_name) if _name in ("__eq__", "__ne__") else _forward(_name)
    setattr(TensorLike, _name, _operator)
