"""Files that appear whole or not at all, and errors that name them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from limelight.errors import FileError, OptionError


@contextmanager
def writing(path: str | Path) -> Generator[Path]:
    """A temporary path beside `path` that takes its place when the block ends without an error.

    >>> import tempfile, pathlib
    >>> target = pathlib.Path(tempfile.mkdtemp()) / "note.txt"
    >>> with writing(target) as temporary:
    ...     _ = temporary.write_text("whole")
    >>> target.read_text()
    'whole'
    """
    path = Path(path)
    temporary = _beside(path)
    try:
        yield temporary
        # mkstemp makes files that only their owner reads; a result is like any other file.
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(path)
    except OSError as error:
        raise FileError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def check_writable(path: str | Path) -> None:
    """Raise unless a file can be put there: for whoever computes long before there is one."""
    path = Path(path)
    if path.is_dir():
        raise FileError(f"{path}: cannot be written: it is a folder")
    _beside(path).unlink()


@contextmanager
def read_from(path: Path) -> Generator[None]:
    """Within it, a value that is refused is one of this file, which the error then names."""
    try:
        yield
    except OptionError as error:
        raise FileError(f"{path}: {error}") from error


def _beside(path: Path) -> Path:
    """A new empty file in the same folder, of the same kind."""
    try:
        handle, name = tempfile.mkstemp(
            dir=path.parent, prefix=f".{path.stem}.", suffix=path.suffix
        )
    except OSError as error:
        raise FileError(f"{path}: cannot be written: {error.strerror}") from error
    os.close(handle)
    return Path(name)
