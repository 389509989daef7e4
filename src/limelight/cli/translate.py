"""`limelight translate`: texts through a trained encoder–decoder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def translate(
    checkpoint: Annotated[
        Path, typer.Argument(help="A checkpoint of an encoder-decoder, or the folder of its run.")
    ],
    text: Annotated[
        list[str] | None,
        typer.Argument(help="What to translate; without it, each line of standard input."),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(help="Also write the attention to the text: .html or .safetensors."),
    ] = None,
) -> None:
    """Translate texts, one line each."""
    from limelight.errors import OptionError
    from limelight.files import check_writable
    from limelight.views import check_ending

    texts = list(text) if text else _lines()
    if save is not None and len(texts) != 1:
        raise OptionError(f"--save records one text, found {len(texts)}")
    # Checked before the model runs.
    if save is not None:
        check_ending(save)
        check_writable(save)

    from limelight.training.translate import load_translator
    from limelight.training.translate import translate as run

    model = load_translator(checkpoint)
    for source, translation in zip(texts, run(model, texts), strict=True):
        # One line per text, although a translation may contain line breaks.
        print(" ".join(translation.splitlines()))
        if save is not None:
            from limelight.seeing.look import look

            look(source, model, target=translation).save(save)


def _lines() -> list[str]:
    from limelight.cli.streams import read_stdin

    return [line for line in read_stdin().split("\n") if line.strip()]
