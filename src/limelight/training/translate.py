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
    """The most likely next word at each step (greedy), for each text in its order.

    Texts are written together, as many as `rows` of about the same length.

    Args:
        model: a trained encoder–decoder with its tokenizer.
        texts: the sources.
        max_tokens: how long a translation may become; the model's context unless given.
        rows: texts that are written together.
    """
    if not isinstance(model, Transformer):
        raise OptionError(
            f"model must be an encoder–decoder, found a {type(model).__name__.lower()}"
        )
    most = model.config.context - 1 if max_tokens is None else max_tokens
    order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
    translations: dict[int, str] = {}
    for at in range(0, len(order), rows):
        places = order[at : at + rows]
        answers = generate(model, [texts[place] for place in places], max_tokens=most)
        translations.update(zip(places, (answer.text for answer in answers), strict=True))
    return [translations[place] for place in range(len(texts))]


def load_translator(path: str | Path) -> Transformer:
    """The encoder–decoder of a checkpoint, or of the newest checkpoint of a run's folder."""
    model = load(path)
    if not isinstance(model, Transformer):
        raise OptionError(
            f"{path}: holds a {type(model).__name__.lower()}, expected an encoder–decoder"
        )
    return model
