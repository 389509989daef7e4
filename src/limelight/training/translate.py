"""Translating with a trained encoder–decoder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from limelight.errors import OptionError
from limelight.models.generation.generate import generate
from limelight.models.loading.pretrained import load
from limelight.models.transformer import Transformer


def translate(
    model: Transformer, texts: Sequence[str], *, max_tokens: int | None = None, rows: int = 64
) -> list[str]:
    """Translate texts greedily: the likeliest token at each step.

    Args:
        model: a trained encoder–decoder with its tokenizer.
        texts: the sources.
        max_tokens: how many tokens a translation has at most; one less than the model's context
            unless given.
        rows: the size of a batch, which holds texts of about the same length.

    Returns:
        The translations, in the order of the texts.
    """
    if not isinstance(model, Transformer):
        raise OptionError(
            f"model must be an encoder–decoder, found a {type(model).__name__.lower()}"
        )
    limit = model.config.context - 1 if max_tokens is None else max_tokens
    order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
    translations: dict[int, str] = {}
    for at in range(0, len(order), rows):
        indices = order[at : at + rows]
        results = generate(model, [texts[index] for index in indices], max_tokens=limit)
        translations.update(zip(indices, (result.text for result in results), strict=True))
    return [translations[index] for index in range(len(texts))]


def load_translator(path: str | Path) -> Transformer:
    """The encoder–decoder of a checkpoint, or of the newest checkpoint of a run's folder."""
    model = load(path)
    if not isinstance(model, Transformer):
        raise OptionError(
            f"{path}: holds a {type(model).__name__.lower()}, expected an encoder–decoder"
        )
    return model
