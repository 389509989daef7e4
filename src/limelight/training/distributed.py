"""One process, or several started by torchrun that train one model together."""

from __future__ import annotations

import os
import re
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import Tensor, nn

from limelight.errors import LimelightError
from limelight.models.loading.pretrained import Model
from limelight.models.transformer import Transformer
from limelight.training.settings import Parallel

_LOST = re.compile("timed out|timeout|closed by peer|reset by peer", re.IGNORECASE)
"""Gloo has no error type of its own, neither for a timeout nor for a peer that is gone."""


@dataclass(frozen=True)
class Group:
    """The processes that train one model; a single one by default."""

    rank: int = 0
    size: int = 1

    @property
    def is_leader(self) -> bool:
        """Whether this process writes files and reports progress: rank 0."""
        return self.rank == 0

    def all_reduce(self, values: Tensor) -> Tensor:
        """The sum over all processes."""
        if self.size > 1:
            values = values.clone()
            torch.distributed.all_reduce(values)
        return values

    def broadcast(self, text: str) -> str:
        """The leader's text, in every process."""
        if self.size == 1:
            return text
        # As bytes: the object collectives of torch would unpickle what they receive.
        raw = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
        length = torch.tensor(len(raw))
        torch.distributed.broadcast(length, src=0)
        if not self.is_leader:
            raw = torch.empty(int(length), dtype=torch.uint8)
        torch.distributed.broadcast(raw, src=0)
        return bytes(raw.tolist()).decode()

    def barrier(self) -> None:
        """Wait until every process has reached this point."""
        if self.size > 1:
            torch.distributed.barrier()


@contextmanager
def process_group(timeout: float = 300.0) -> Generator[Group]:
    """The group that torchrun started this process in, or a group of one.

    A process that waits longer than `timeout` seconds for the others raises.
    """
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        yield Group()
        return
    torch.distributed.init_process_group("gloo", timeout=timedelta(seconds=timeout))
    try:
        yield Group(torch.distributed.get_rank(), torch.distributed.get_world_size())
    except RuntimeError as error:
        if not _LOST.search(str(error)):
            raise
        raise LimelightError(
            f"process {os.environ['RANK']} of {os.environ['WORLD_SIZE']} lost the others: one of "
            f"them ended, or did not respond for {timeout:g} s (the setting timeout); the last "
            "checkpoint is intact"
        ) from error
    finally:
        torch.distributed.destroy_process_group()


def parallelize(model: Model, group: Group, how: Parallel) -> nn.Module:
    """The model as the group trains it: gradients are averaged over its processes.

    ddp keeps a full replica in every process; fsdp shards every block over the processes and
    gathers it when it runs.
    """
    if group.size == 1:
        return model
    if how == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (group.size,))
    stacks = [model.encoder, model.decoder] if isinstance(model, Transformer) else [model.stack]
    for stack in stacks:
        for block in stack.blocks:
            fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def full_tensor(tensor: Tensor) -> Tensor:
    """The tensor gathered from the shards of all processes, which must all call this."""
    from torch.distributed.tensor import DTensor

    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def shard_like(value: Tensor, like: Tensor) -> Tensor:
    """This process's shard of `value`, sharded as `like` is."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(like, DTensor):
        return value
    return distribute_tensor(value, like.device_mesh, like.placements)
