"""The C++ kernels; their callers are in `limelight.ops`."""

from collections.abc import Sequence

from torch import Tensor

REVISION: int

def isa() -> str: ...
def runnable() -> list[str]: ...
def threads() -> int: ...
def attend_plain(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    program: Sequence[int],
    scale: float | None,
    refuse_gradients: bool,
    /,
) -> Tensor | None: ...
def forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    slopes: Tensor | None,
    sinks: Tensor | None,
    row_lse: Tensor | None,
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
    sinks: Tensor | None,
    row_lse: Tensor | None,
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
    grad_sinks: Tensor | None,
) -> None: ...
def lens_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    slopes: Tensor | None,
    sinks: Tensor | None,
    row_lse: Tensor | None,
    tables: Sequence[Tensor],
    program: Sequence[int],
    scale: float,
    softcap: float,
    dropout: float,
    seed: int,
    out: Tensor,
    lse: Tensor,
    row_stats: dict[str, Tensor | int],
    pooled_stats: dict[str, Tensor | int] | None,
) -> None: ...
def skinny_gemm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out: Tensor,
    rows: int,
    outputs: int,
    channels: int,
) -> None:
    """Write x·weightᵀ + bias."""

def activation(
    kind: str, x: Tensor, grad: Tensor | None, out: Tensor, rows: int, width: int
) -> None:
    """Write the activation of x, or with grad its gradient."""

def sum_squares(gradients: Sequence[Tensor]) -> float:
    """Add up the squares of all numbers of all tensors."""

def adamw(
    parameters: Sequence[tuple[Tensor, Tensor, Tensor, Tensor, int]],
    learning_rate: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    weight_decay: float,
    grad_scale: float,
) -> None:
    """Take a step of AdamW over (weight, gradient, mean, square, step), gradients times scale."""
