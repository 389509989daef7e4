"""What lets an object that can compute a tensor stand where tools expect that tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree


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

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        plain = pytree.tree_map_only(
            TensorLike, lambda one: one.dense(), (args, dict(kwargs or {}))
        )
        return func(*plain[0], **plain[1])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        array = self.dense().cpu().numpy()
        return array if dtype is None else array.astype(dtype)

    def __dlpack__(self, **options: Any) -> Any:
        return self.dense().__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.dense().__dlpack_device__()

    def __getitem__(self, index: Any) -> Tensor:
        return self.dense()[index]

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
    return getattr(stands.dense(), name)(*args, **options)


def _forward(name: str) -> Callable[..., Any]:
    def operator(self: TensorLike, *others: Any) -> Any:
        plain = [one.dense() if isinstance(one, TensorLike) else one for one in others]
        return getattr(self.dense(), name)(*plain)

    return operator


# Python looks operators up on the class, so `__getattr__` does not see them.
for _name in (
    "add",
    "radd",
    "sub",
    "rsub",
    "mul",
    "rmul",
    "truediv",
    "matmul",
    "lt",
    "le",
    "gt",
    "ge",
):
    setattr(TensorLike, f"__{_name}__", _forward(f"__{_name}__"))
del _name
