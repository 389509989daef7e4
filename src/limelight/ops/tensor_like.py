"""What lets an object that can compute a tensor stand where tools expect that tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree


class TensorLike:
    """Becomes its `dense()` tensor when a tool treats it as one.

    Functions of torch and numpy, indexing, arithmetic and the methods of a tensor all work; each
    use computes the dense tensor anew, so keep the result where it is used more than once.
    """

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
        return len(self.dense())

    def __getattr__(self, name: str) -> Any:
        # Reached only for what the class itself does not have: a tensor's own methods.
        if name.startswith("_") or not hasattr(Tensor, name):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(self.dense(), name)


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
