"""`look` with models that are not limelight's own: Hugging Face's, and any other module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from limelight.errors import OptionError
from limelight.ops.lens.spec import Lens
from limelight.seeing.recording.recording import Recording
from limelight.seeing.watching.watch import watch

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def look_with_foreign_model(
    model: nn.Module,
    text: str | Tensor,
    target: str | None,
    lens: Lens,
    layers: Sequence[int] | None,
    heads: Sequence[int] | None,
    tokenizer: PreTrainedTokenizerBase | None,
    stack: str | None = None,
) -> Recording:
    """What a module attends to while it reads a text, or token ids `n`, through `watch`."""
    if not isinstance(model, nn.Module):
        raise OptionError(
            f"model must be a name, a path or a torch.nn.Module, found {type(model).__name__}"
        )
    inputs, taken = _inputs(model, text, tokenizer)
    watched_stack, runner = None, model
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        watched_stack = "self" if target is None or stack == "encoder" else stack or "cross"
        if target is None and stack not in (None, "encoder"):
            raise OptionError(f"stack={stack!r} needs a target: what the model writes")
        if watched_stack == "self":
            runner = model.get_encoder()  # pyright: ignore[reportCallIssue]
        else:
            assert target is not None
            inputs["labels"] = _target_ids(target, tokenizer).to(inputs["input_ids"].device)
    elif target is not None:
        raise OptionError(f"a {type(model).__name__} does not take a target")
    elif stack is not None:
        raise OptionError(f"a {type(model).__name__} does not take a stack")
    training = model.training
    model.eval()
    try:
        with torch.no_grad(), watch(runner, lens, layers=layers, heads=heads) as watched:
            runner(**inputs) if "input_ids" in inputs else runner(inputs["tokens"])
    finally:
        model.train(training)
    if watched_stack not in watched.stacks:
        watched_stack = None
    recording = watched.recording(
        tokenizer, text=text if isinstance(text, str) else None, stack=watched_stack
    )
    made = {**recording.made, "taken": taken}
    return replace(recording, made=made, model=type(model).__name__)


def _inputs(
    model: nn.Module, text: str | Tensor, tokenizer: PreTrainedTokenizerBase | None
) -> tuple[dict[str, Any], str]:
    """The module's inputs, and in words how much of the text they hold."""
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    hugging_face = hasattr(model, "main_input_name")
    if isinstance(text, Tensor):
        name = "input_ids" if hugging_face else "tokens"
        return {name: text[None].to(device)}, f"all {len(text)} tokens"
    if tokenizer is None:
        what = "Hugging Face model" if hugging_face else type(model).__name__
        raise OptionError(f"a {what} needs its tokenizer= to read a text, or token ids for one")
    encoded: Any = tokenizer(text, return_tensors="pt", verbose=False)
    total = encoded["input_ids"].shape[1]
    taken = f"all {total} tokens"
    limit = min(tokenizer.model_max_length, _context(getattr(model, "config", None), tokenizer))
    if total > limit:
        encoded = tokenizer(text, return_tensors="pt", truncation=True, max_length=limit)
        taken = f"the first {limit} of {total} tokens"
    inputs = {name: tensor.to(device) for name, tensor in encoded.items()}
    return inputs if hugging_face else {"tokens": inputs["input_ids"]}, taken


def _context(config: Any, tokenizer: PreTrainedTokenizerBase) -> int:
    """How many tokens a model has positions for."""
    size = getattr(config, "max_position_embeddings", None)
    return size if isinstance(size, int) and size > 0 else int(tokenizer.model_max_length)


def _target_ids(target: str, tokenizer: PreTrainedTokenizerBase | None) -> Tensor:
    if tokenizer is None:
        raise OptionError("a Hugging Face model needs its tokenizer= to read a target")
    encoded: Any = tokenizer(text_target=target, return_tensors="pt")
    return encoded["input_ids"]
