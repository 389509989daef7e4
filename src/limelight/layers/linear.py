"""The linear map of every layer: PyTorch's module, quick also for one token at a time."""

from __future__ import annotations

from torch import Tensor, nn

from limelight.ops.project import project


class Linear(nn.Linear):
    """Maps `… c` → `… o` by y = x·Wᵀ + b; weights and state dict are those of `nn.Linear`."""

    def forward(self, input: Tensor) -> Tensor:
        return project(input, self.weight, self.bias)
