"""`limelight embed`: one vector for each line of a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from torch import Tensor


def embed(
    file: Annotated[Path, typer.Argument(help="Text, one sentence per line; - reads stdin.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help=".npy or .parquet; FILE.npy unless given.")
    ] = None,
    model: Annotated[str, typer.Option(help="minilm, or a folder with an encoder.")] = "minilm",
) -> None:
    """Turn each line of a text file into a vector."""
    from limelight.errors import OptionError
    from limelight.models.encoder import Encoder
    from limelight.models.loading.pretrained import load

    target = _target(file, output)
    texts = _lines(file)
    encoder = load(model)
    if not isinstance(encoder, Encoder):
        raise OptionError(
            f"model {model!r} must be an encoder, found a {type(encoder).__name__.lower()}"
        )
    vectors = encoder.embed(texts)
    if target.suffix == ".npy":
        _write_npy(vectors, target)
    else:
        _write_parquet(texts, vectors, target)
    print(f"{target}: {vectors.shape[0]} × {vectors.shape[1]}")


def _target(file: Path, output: Path | None) -> Path:
    """The file to write, checked before anything is computed."""
    from limelight.errors import OptionError, UnavailableError
    from limelight.files import check_writable

    if output is None:
        if str(file) == "-":
            raise OptionError("--output must be given if the text comes from stdin")
        output = file.with_suffix(".npy")
    if output.suffix not in (".npy", ".parquet"):
        raise OptionError(f"--output must end in .npy or .parquet, found {output.name!r}")
    if output.suffix == ".parquet":
        try:
            import pyarrow  # noqa: F401  # pyright: ignore[reportUnusedImport]
        except ImportError as error:
            raise UnavailableError(
                "pyarrow is not installed: pip install limelight[tables]"
            ) from error
    check_writable(output)
    return output


def _lines(file: Path) -> list[str]:
    from limelight.cli.streams import read_input
    from limelight.errors import FileError

    text = read_input(file)
    # Only line feeds end a line, so that rows match the line numbers of other tools.
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    if not lines:
        raise FileError(f"{file}: holds no text")
    return lines


def _write_npy(vectors: Tensor, target: Path) -> None:
    import numpy as np

    from limelight.files import writing

    with writing(target) as temporary:
        np.save(temporary, vectors.numpy())


def _write_parquet(texts: list[str], vectors: Tensor, target: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from limelight.files import writing

    values = pa.array(vectors.numpy().reshape(-1))
    rows = pa.FixedSizeListArray.from_arrays(values, vectors.shape[1])
    with writing(target) as temporary:
        pq.write_table(pa.table({"text": texts, "embedding": rows}), temporary)
