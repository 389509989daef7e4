"""`look`: what every layer and head of a model attends to in a text or a picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard, overload

import torch
from torch import Tensor, nn

from limelight.checks import shape_text
from limelight.errors import OptionError
from limelight.fields import check_value
from limelight.files import check_path, is_file, is_folder
from limelight.models.decoder import Decoder
from limelight.models.encoder import Encoder
from limelight.models.loading.pretrained import Model, load
from limelight.models.transformer import Transformer
from limelight.models.vision import VisionEncoder
from limelight.ops.lens.spec import Lens
from limelight.seeing.choice import LENS
from limelight.seeing.foreign_models import look_with_foreign_model
from limelight.seeing.own_models import (
    StackName,
    check_stack,
    look_at_packed,
    look_with_own_model,
    warn_if_truncated,
)
from limelight.seeing.pictures import is_ours, is_picture, look_at_picture
from limelight.seeing.recording.recording import Recording

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Input = str | Sequence[int] | Tensor
"""A text, or the token ids of one: `n`."""


Image = Any
"""A picture: PIL's, an array or a tensor."""


@overload
def look(
    text: Input | Image, model: str | Path | nn.Module = ..., lens: Lens = ..., *,
    target: str | None = ..., layers: Sequence[int] | None = ...,
    heads: Sequence[int] | None = ..., tokenizer: PreTrainedTokenizerBase | None = ...,
    patch: int | None = ..., stack: StackName | None = ...,
) -> Recording: ...  # fmt: skip
@overload
def look(
    text: Sequence[str], model: str | Path | nn.Module = ..., lens: Lens = ..., *,
    target: str | None = ..., layers: Sequence[int] | None = ...,
    heads: Sequence[int] | None = ..., tokenizer: PreTrainedTokenizerBase | None = ...,
) -> Iterator[Recording]: ...  # fmt: skip
def look(
    text: Input | Sequence[str] | Image,
    model: str | Path | nn.Module = "minilm",
    lens: Lens = LENS,
    *,
    target: str | None = None,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    patch: int | None = None,
    stack: StackName | None = None,
) -> Recording | Iterator[Recording]:
    """Run a model on a text or a picture and record what every layer and head attends to.

    A text longer than the model's context is cut; a warning and `recording.made` say how much was
    taken. A list of texts is read in packed batches, without padding, and gives an iterator
    of recordings; with `Lens(..., keep=False)` these hold statistics only.

    Args:
        text: what to read: a text, the token ids of one (`n`), or a list of texts. For a vision
            transformer a picture: PIL's, an array `h w 3` of uint8, which is resized to what the
            model expects and normalised, or a tensor `3 h w` of floats, which is taken as it is.
        model: a name or path for `load`, a loaded model, a Hugging Face model, or any module that
            takes token ids `b n`.
        lens: what to record of the weights.
        target: for a model that reads a source and writes a target: the target. What is recorded
            then is how the target's tokens look at the source's; without a target, how the source's
            tokens look at one another.
        layers: the layers to record, by number; all unless given.
        heads: the heads to record, by number; all unless given.
        tokenizer: of the Hugging Face model.
        patch: the side of the patches that the model cuts a picture into, in pixels, where it does
            not say so itself.
        stack: of a model that reads a source and writes a target, what to record instead:
            "encoder", how the source's tokens look at one another; "decoder", how those of the
            target do, as the model is given them; "cross", how the target's look at the source's.

    >>> import limelight as ll
    >>> rec = ll.look("The animal didn't cross the street because it was too tired.")
    >>> word, weight = rec.top(layer=3, head=1, token="it")[0]
    >>> word, round(weight, 3)
    ('animal', 0.677)
    >>> [len(rec.tokens) for rec in ll.look(["one text", "another text, longer"])]
    [4, 6]
    """
    check_value("lens", lens, Lens)
    check_value("stack", stack, StackName | None)
    if is_picture(text):
        if isinstance(model, str | Path) and is_ours(model):
            model = _loaded(str(model), _files(check_path(model)))
        return look_at_picture(text, model, lens, layers, heads, patch)
    if isinstance(model, str | Path):
        model = _loaded(str(model), _files(check_path(model)))
    if isinstance(model, VisionEncoder):
        raise OptionError(
            f"a VisionEncoder reads pictures (PIL's, an array or a tensor), found "
            f"{type(text).__name__}"
        )
    if not isinstance(text, str | Tensor) and _are_texts(text):
        return _look_at_all(text, model, lens, target, layers, heads, tokenizer, stack)
    source = _input(text)
    if isinstance(model, Encoder | Decoder | Transformer):
        recording = look_with_own_model(model, source, target, lens, layers, heads, stack)
    else:
        recording = look_with_foreign_model(
            model, source, target, lens, layers, heads, tokenizer, stack
        )
    warn_if_truncated(recording, stacklevel=3)
    return recording


def _are_texts(text: object) -> TypeGuard[Sequence[str]]:
    return isinstance(text, Sequence) and len(text) > 0 and isinstance(text[0], str)


def _input(text: object) -> str | Tensor:
    """A text, or token ids as a tensor `n`; a LimelightError for anything else."""
    if isinstance(text, str):
        if not text.strip():
            raise OptionError("text is empty: there is nothing to attend to")
        return text
    try:
        ids = torch.as_tensor(text)
    except (TypeError, ValueError, RuntimeError):
        ids = torch.empty(0)
    if ids.ndim != 1 or not len(ids) or ids.dtype not in (torch.int64, torch.int32):
        kind = shape_text(text) if isinstance(text, Tensor) else type(text).__name__
        raise OptionError(f"text must be a str, a list of them or token ids (n), found {kind}")
    return ids.long()


def _look_at_all(
    texts: Sequence[str],
    model: nn.Module,
    lens: Lens,
    target: str | None,
    layers: Sequence[int] | None,
    heads: Sequence[int] | None,
    tokenizer: PreTrainedTokenizerBase | None,
    stack: StackName | None,
) -> Iterator[Recording]:
    """A recording of each text, in their order."""
    sources = [_input(text) for text in texts]
    if isinstance(model, Encoder | Decoder):
        check_stack(model, target, stack)
        return look_at_packed(model, sources, lens, layers, heads)
    if target is not None:
        raise OptionError("texts with targets are looked at one by one: look(text, target=...)")
    if isinstance(model, Transformer):
        check_stack(model, None, stack)
        return (look_with_own_model(model, source, None, lens, layers, heads) for source in sources)
    return (
        look_with_foreign_model(model, source, None, lens, layers, heads, tokenizer, stack)
        for source in sources
    )


@lru_cache(maxsize=2)
def _loaded(name: str, _files: tuple[tuple[str, int, int, int], ...]) -> Model:
    """The model, cached until its files change: a notebook looks with the same one many times."""
    return load(name)


def _files(path: Path) -> tuple[tuple[str, int, int, int], ...]:
    """The state of a model's files, which changes when one of them does; empty for a name."""
    # Two levels only: the path may be a large folder that holds no model.
    files = [*path.glob("*"), *path.glob("*/*")] if is_folder(path) else [path]
    states = ((str(file), file.stat()) for file in sorted(files) if is_file(file))
    return tuple((name, stat.st_mtime_ns, stat.st_size, stat.st_ino) for name, stat in states)
