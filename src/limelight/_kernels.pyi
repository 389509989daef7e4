"""The C++ kernels; their callers are in `limelight.ops`."""

from collections.abc import Sequence

from torch import Tensor

def isa() -> str: ...
def runnable() -> list[str]: ...
def threads() -> int: ...
def quick(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    program: Sequence[int],
    scale: float | None,
    refuse_gradients: bool,
) -> Tensor | None: ...
def forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    slopes: Tensor | None,
    tables: Sequence[Tensor],
    program: Sequence[int],
    scale: float,
    softcap: float,
    dropout: float,
    seed: int,
    out: Tensor,
    lse: Tensor,
) -> None: ...
def backward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    slopes: Tensor | None,
    tables: Sequence[Tensor],
    program: Sequence[int],
    scale: float,
    softcap: float,
    dropout: float,
    seed: int,
    out: Tensor,
    lse: Tensor,
    grad_out: Tensor,
    grad_lse: Tensor | None,
    grad_query: Tensor,
    grad_key: Tensor,
    grad_value: Tensor,
    grad_bias: Tensor | None,
    grad_slopes: Tensor | None,
) -> None: ...
def look(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    slopes: Tensor | None,
    tables: Sequence[Tensor],
    program: Sequence[int],
    scale: float,
    softcap: float,
    dropout: float,
    seed: int,
    out: Tensor,
    lse: Tensor,
    notes: dict[str, Tensor | int],
    survey: dict[str, Tensor | int] | None,
) -> None: ...
def few_rows(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out: Tensor,
    rows: int,
    outputs: int,
    channels: int,
) -> None:
    """Write x·weightᵀ + bias."""

def bend(curve: str, x: Tensor, grad: Tensor | None, out: Tensor, rows: int, width: int) -> None:
    """Write the curve of x, or with grad its gradient."""

def sum_squares(gradients: Sequence[Tensor]) -> float:
    """Add up the squares of all numbers of all tensors."""

def adamw(
    learned: Sequence[tuple[Tensor, Tensor, Tensor, Tensor, int]],
    rate: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    decay: float,
    scale: float,
) -> None:
    """Take a step of AdamW over (weight, gradient, first, second, step), gradients times scale."""

def multiply_add(threads: int) -> float:
    """Multiply-adds in registers for some milliseconds; how many operations, two each, it took."""

def read_memory(tensor: Tensor, threads: int) -> None:
    """Read every byte of a tensor."""
