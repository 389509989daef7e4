"""Watching a model that is already loaded."""

from __future__ import annotations

import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from limelight.errors import OptionError, UnavailableError
from limelight.fields import checked
from limelight.ops.calls import intercept
from limelight.ops.lens.spec import Lens
from limelight.ops.torch_calls import torch_calls_of
from limelight.ops.uncompiled import uncompiled_module
from limelight.seeing.choice import LENS
from limelight.seeing.watching.huggingface import switched
from limelight.seeing.watching.returned import requesting_weights
from limelight.seeing.watching.watched import Watched


@checked
@contextmanager
def watch(
    model: nn.Module,
    lens: Lens = LENS,
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
) -> Generator[Watched]:
    """Record what a model, any `nn.Module`, attends to while the block runs.

    Every call of `F.scaled_dot_product_attention`, `nn.MultiheadAttention`, limelight's own layers
    and Hugging Face's attention interface inside the model is seen, however the model is run: a
    forward pass, a prompt, each generated token, with gradients or without. Within the block these
    calls run on limelight's kernels; after it they run as before, even if the block raised.

        with ll.watch(model, ll.Lens(top=8)) as watched:
            model(x)
        watched.order                        # "blocks.0.attn", "blocks.1.attn", ...
        watched.seen("blocks.3.attn")        # what a module saw
        watched.recording(tokenizer)         # for the views

    Hugging Face models off that interface compute with a softmax of their own and can return their
    weights: these are recorded, dense, and the recording says so. When the block ends, a warning
    names the attention that could not be seen.

    Args:
        model: a module that is not scripted. One that is compiled by `torch.compile`, in whole or
            in part, runs uncompiled within the block: the same numbers, more slowly.
        lens: what to record of the weights.
        layers: the layers to record, by number; all unless given.
        heads: the heads to record, by number; all unless given.

    >>> import torch, limelight as ll
    >>> model = torch.nn.TransformerEncoder(
    ...     torch.nn.TransformerEncoderLayer(16, 4, batch_first=True), 2
    ... ).eval()
    >>> with torch.no_grad(), ll.watch(model) as watched:
    ...     _ = model(torch.randn(1, 5, 16))
    >>> watched.order
    ['layers.0.self_attn', 'layers.1.self_attn']
    >>> watched.seen("layers.1.self_attn").shape
    torch.Size([1, 4, 5, 5])
    """
    _check_model(model)
    model = uncompiled_module(model)
    watched = Watched(model, lens, layers, heads)

    def begin(module: nn.Module, path: str, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        watched.inputs.begin(module, path, args, options)
        watched.unseen.begin(module, path, args, options)

    tracking = watched.sites.tracking(begin, mode=torch_calls_of(model))
    returned = requesting_weights(model, watched.record_weights)
    with switched(model), returned, tracking, intercept(watched.record, locate=watched.locate):
        yield watched
    if unseen := watched.unseen.description():
        warnings.warn(
            f"watch did not see {unseen}: {type(model).__name__} computes it by itself",
            RuntimeWarning,
            stacklevel=3,
        )


def _check_model(model: object) -> None:
    if not isinstance(model, nn.Module):
        raise OptionError(f"model must be a torch.nn.Module, found {type(model).__name__}")
    for path, module in model.named_modules():
        name = f"the module {path!r}" if path else "the model"
        if isinstance(module, torch.jit.ScriptModule):
            raise UnavailableError(f"{name} is scripted or traced: watch the module it was made of")
