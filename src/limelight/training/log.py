"""The log of a run: one JSON object per line, in the order of the steps."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, cast

from limelight.errors import FileError
from limelight.fields import check_value
from limelight.files import read_text, writing


class Log:
    """Appends to `log.jsonl`.

    A run that resumes after a step repeats what followed that step's checkpoint. Those lines are
    dropped: all of later steps, and the evaluation of the step itself.
    """

    def __init__(self, path: Path, *, after: int) -> None:
        before = read_log(path) if after else []
        entries = [e for e in before if e["step"] < after or (e["step"] == after and "loss" in e)]
        with writing(path) as temporary:
            temporary.write_text("".join(_line(entry) for entry in entries), encoding="utf-8")
        self._path = path
        self._file = path.open("a", encoding="utf-8")

    def write(self, entry: dict[str, Any]) -> None:
        """Append a line, flushed to the file."""
        try:
            self._file.write(_line(entry))
            self._file.flush()
        except OSError as error:
            raise FileError(f"{self._path}: cannot be written: {error.strerror}") from error

    def fsync(self) -> None:
        """Make sure that all lines survive a power failure."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_log(path: Path) -> list[dict[str, Any]]:
    """The entries of a log; an incomplete last line, as a killed run leaves it, is left out."""
    if not path.exists():
        return []
    entries: list[dict[str, Any]] = []
    lines = read_text(path).splitlines(keepends=True)
    for number, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line)
            check_value("it", entry, dict)
            if "step" not in entry:
                raise ValueError("it has no step")
            for name, value in entry.items():
                check_value(name, value, int if name == "step" else float)
        except (ValueError, RecursionError) as error:
            if number == len(lines):
                break
            raise FileError(f"{path}: line {number} is not an entry of a log: {error}") from error
        entries.append(cast("dict[str, Any]", entry))
    return entries


def _line(entry: dict[str, Any]) -> str:
    return json.dumps(entry) + "\n"
