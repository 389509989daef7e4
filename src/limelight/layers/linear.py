"""The linear map of every layer: PyTorch's module, fast also for one token at a time."""

from __future__ import annotations

from torch import Tensor, nn

from limelight.errors import OptionError
from limelight.ops.project import project


class Linear(nn.Linear):
    """Maps `… c` → `… o` by y = x·Wᵀ + b; weights and state dict are those of `nn.Linear`."""

    def __init__(self, channels: int, outputs: int, bias: bool = True) -> None:
        try:
            super().__init__(channels, outputs, bias)
        except (TypeError, RuntimeError) as error:
            reason = str(error).partition("\n")[0]
            raise OptionError(
                f"a matrix of {outputs} x {channels} cannot be made: {reason}"
            ) from None

    def forward(self, input: Tensor) -> Tensor:
        return project(input, self.weight, self.bias)
