"""`limelight heads`: what every head of a model does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer


def heads(
    model: Annotated[str, typer.Argument(help="minilm, smollm2, or the path of a model.")],
    corpus: Annotated[
        list[Path] | None, typer.Option(help="Text files to read: one or several.")
    ] = None,
    more: Annotated[
        list[Path] | None, typer.Argument(help="Further files of the corpus.", show_default=False)
    ] = None,
    each: Annotated[bool, typer.Option("--each", help="Also list every head.")] = False,
    ablate: Annotated[
        str | None,
        typer.Option(
            help="Also ablate the top 5 heads of this role, such as induction, and 5 random ones "
            "20 times: a decoder's loss on repeated tokens.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the probes.")] = 0,
    save: Annotated[
        Path | None,
        typer.Option(
            help="Write the grid (with --ablate, the losses) or all numbers: .png, .svg, .json, ..."
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
) -> None:
    """Find what every head does: position, copying, syntax and more.

    A head gets a role only if it beats the role's chance level by a stated margin on texts and
    words that it was not chosen by.
    """
    from limelight.cli.results import output
    from limelight.errors import OptionError
    from limelight.files import check_writable
    from limelight.insight import heads as insight
    from limelight.insight.ablation import ablate_role, check_ablatable
    from limelight.models.loading.pretrained import load

    if save is not None:
        check_writable(save)
    if more and not corpus:
        raise OptionError(f"{more[0]}: one model at a time; files to read come after --corpus")
    texts = None if not corpus else _pieces(_checked([*corpus, *(more or ())]))
    if ablate is not None:
        insight.find_role(ablate)  # before the heads are measured, which takes minutes
    loaded = load(model)
    if ablate is not None:
        check_ablatable(loaded)
    result = insight.heads(loaded, texts, seed=seed)
    tables = [result.table(), *([result.head_table()] if each else [])]
    if ablate is None:
        output(result, tables, save=save, json=json)
        return
    ablation = ablate_role(loaded, result, ablate, seed=seed)
    output(ablation, [*tables, ablation.table()], save=save, json=json)


def _checked(files: list[Path]) -> list[Path]:
    from limelight.errors import FileError

    for file in files:
        if not file.is_file():
            raise FileError(f"--corpus {file}: no such file")
    return files


def _pieces(files: list[Path]) -> Iterator[str]:
    """The text in pieces of whole lines, read lazily: a file may be larger than memory."""
    from limelight.errors import FileError

    for file in files:
        try:
            with file.open(encoding="utf-8") as lines:
                piece = ""
                for line in lines:
                    piece += line
                    if len(piece) > 2000:
                        yield piece
                        piece = ""
                yield piece
        except UnicodeDecodeError as error:
            raise FileError(f"--corpus {file}: not UTF-8 text") from error
