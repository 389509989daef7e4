"""Weights that a Hugging Face model computes by itself and can return: `output_attentions`.

Models off the attention interface compute softmax in code of their own. While such a model is
watched, its dense weights are requested, recorded, and removed from its output again where the
caller did not request them.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from torch import Tensor, nn

from limelight.seeing.watching.huggingface import is_own_attention
from limelight.seeing.watching.stacks import is_cross

_BY_WINDOW = ("led", "longformer")
"""Families whose encoders return a weight for each place in a window, not for each token."""

_SAMPLING = "Deformable"
"""In the names of modules whose weights belong to sampled points, not to tokens."""

FAILED = (
    "limelight.watch requested the attention weights of {} (output_attentions=True), which "
    "computes attention by itself. If it runs without this option and fails with it, its attention "
    "cannot be seen."
)

Record = Callable[[str, int, Tensor], None]
"""Takes the label of a stack, a layer and its weights, `b h i j`."""


@contextmanager
def requesting_weights(model: nn.Module, record: Record) -> Generator[None]:
    """Within the block, models that compute attention by themselves return their weights."""
    hooks: list[Any] = []
    depth = 0
    requested_here = False
    """whether a model is running whose weights the caller did not request"""
    requested_by_caller = False

    def enter(part: nn.Module, args: Any, options: dict[str, Any]) -> Any:
        nonlocal depth, requested_by_caller, requested_here
        depth += 1
        if depth > 1 or not _takes_the_option(type(part)):
            return None
        config = getattr(part, "config", None)
        default = getattr(config, "output_attentions", False)
        requested_by_caller = bool(options.get("output_attentions", default))
        requested_here = not requested_by_caller
        return args, {**options, "output_attentions": True}

    def leave(part: nn.Module, _args: Any, options: dict[str, Any], output: Any) -> Any:
        nonlocal depth, requested_here
        cached = options.get("past_key_values") is not None
        depth -= 1
        if depth or output is None:  # inside another, or it failed
            return None
        requested_here = False
        if not hasattr(output, "keys"):
            return None
        by_window = getattr(getattr(part, "config", None), "model_type", "") in _BY_WINDOW
        by_point = any(_SAMPLING in type(module).__name__ for module in part.modules())
        for label, layers in _fields(output):
            if (by_window and label in ("self", "encoder")) or (by_point and is_cross(label)):
                continue
            for layer, weights in enumerate(layers):
                if _are_weights(weights, cached=cached or is_cross(label)):
                    record(label, layer, weights)
        if requested_by_caller:
            return None
        remaining = {
            name: value for name, value in output.items() if not name.endswith("attentions")
        }
        return type(output)(**remaining)

    for part in _models(model):
        if computes_own_attention(part):
            hooks.append(part.register_forward_pre_hook(enter, with_kwargs=True))
            hooks.append(part.register_forward_hook(leave, with_kwargs=True, always_call=True))
    try:
        yield
    except Exception as error:
        if requested_here:
            error.add_note(FAILED.format(type(model).__name__))
        raise
    finally:
        for hook in hooks:
            hook.remove()


def computes_own_attention(model: nn.Module) -> bool:
    """Whether some module inside computes attention with a softmax of its own."""
    kinds = {type(part) for part in model.modules()}
    return any(is_own_attention(kind, sys.modules.get(kind.__module__)) for kind in kinds)


def _models(model: nn.Module) -> list[nn.Module]:
    library = sys.modules.get("transformers")
    if library is None:
        return []
    return [part for part in model.modules() if isinstance(part, library.PreTrainedModel)]


@cache
def _takes_the_option(kind: type[nn.Module]) -> bool:
    parameters = inspect.signature(kind.forward).parameters.values()
    return any(
        parameter.name == "output_attentions" or parameter.kind is inspect.Parameter.VAR_KEYWORD
        for parameter in parameters
    )


def _fields(output: Any, prefix: str = "") -> Iterator[tuple[str, list[Any]]]:
    """The weights in an output and in those nested in it: a label, and the weights by layer."""
    for name, value in list(output.items()):
        if name.endswith("attentions") and isinstance(value, list | tuple):
            side = name.removesuffix("attentions").removesuffix("_")
            yield ".".join(filter(None, (prefix, side))) or "self", list(value)
        elif hasattr(value, "items"):
            yield from _fields(value, f"{prefix}.{name}".strip("."))


def _are_weights(value: object, *, cached: bool) -> bool:
    """Whether this is `b h i j` with rows that sum to 1, or to 0 where a row sees nothing.

    In self-attention i = j unless there is a cache.
    """
    if not isinstance(value, Tensor) or value.ndim != 4 or not value.is_floating_point():
        return False
    if not cached and value.shape[2] != value.shape[3]:
        return False
    sums = value.detach().float().sum(-1)
    return bool(((sums - 1).abs().lt(1e-2) | sums.eq(0)).all()) and bool((value >= 0).all())
