"""The linear map of every layer: PyTorch's module, fast also for one token at a time."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from limelight.checks import check_same_device
from limelight.errors import DtypeError, OptionError
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
        check_input(input, self.weight)
        return project(input, self.weight, self.bias)


def check_input(x: Tensor, weight: Tensor) -> None:
    """Raise unless `x` has the device and the type of the weight; autocast allows other types."""
    check_same_device("x", x, weight, "the layer")
    if x.dtype != weight.dtype and not torch.is_autocast_enabled(x.device.type):
        raise DtypeError(f"x is {x.dtype}, expected {weight.dtype} as the layer")
