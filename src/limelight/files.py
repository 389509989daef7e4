"""Files: written whole or not at all, read within bounds, and errors that name them."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import stat
import tomllib
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from limelight.errors import FileError, OptionError

PARTIAL = ".partial-"
"""Prefix of the names of files and folders still being written, which are never read."""

JSON_LIMIT, TOML_LIMIT = 1 << 28, 1 << 20
"""Bytes of the largest file that is read: the tokenizers of large models take some 30 MB."""
_MAX_DEPTH = 64
"""Levels of nested tables and lists; our own settings have at most 5."""
_LONG_KEY = re.compile(rf"""(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')\s*\.\s*){{{_MAX_DEPTH}}}""")


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
    path = check_path(path)
    temporary = _temporary_beside(path)
    try:
        mode = temporary.stat().st_mode
        yield temporary
        # Some libraries replace it with a file of their own, which only its owner may read.
        temporary.chmod(mode)
        temporary.replace(path)
    except OSError as error:
        raise FileError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def check_writable(path: str | Path) -> None:
    """Raise unless a file can be written there: called before a long computation."""
    path = check_path(path)
    try:
        if stat.S_ISDIR(path.stat().st_mode):
            raise FileError(f"{path}: cannot be written: it is a folder")
    except FileNotFoundError:
        pass
    except OSError as error:  # a name that is too long, among others
        raise FileError(f"{path}: cannot be written: {error.strerror}") from error
    _temporary_beside(path).unlink()


def check_path(path: str | Path) -> Path:
    """The path as a `Path`, if it can name a file."""
    if not isinstance(path, str | os.PathLike):
        raise OptionError(f"a path must be a text or a Path, found {path!r}")
    try:
        encoded = os.fsencode(path)
    except UnicodeEncodeError:
        encoded = b"\0"
    if b"\0" in encoded:
        raise OptionError(f"{path!r} cannot be the name of a file")
    return Path(path)


@contextmanager
def read_from(path: Path) -> Generator[None]:
    """Within the block, an OptionError becomes a FileError that names this file."""
    try:
        yield
    except OptionError as error:
        raise FileError(f"{path}: {error}") from error


def is_file(path: Path) -> bool:
    """Whether the path is a regular file; False for a name that no file can have.

    >>> is_file(Path("x" * 300))
    False
    """
    try:
        return path.is_file()
    except OSError:
        return False


def is_folder(path: Path) -> bool:
    """Whether the path is a folder; False for a name that no folder can have."""
    try:
        return path.is_dir()
    except OSError:
        return False


def read_text(path: Path, limit: int = JSON_LIMIT) -> str:
    """The UTF-8 text of a regular file of at most `limit` bytes.

    A pipe or a device may never end, so it is refused before anything is read. A file may be larger
    than memory, so no more than the limit is read of it.
    """
    try:
        # Opening a pipe would wait for a writer.
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        try:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise FileError(f"{path}: {_kind(status.st_mode)}, expected a regular file")
            with os.fdopen(handle, "rb", closefd=False) as file:
                raw = file.read(limit + 1)
        finally:
            os.close(handle)
    except FileNotFoundError:
        raise FileError(f"{path}: no such file") from None
    except OSError as error:
        raise FileError(f"{path}: cannot be read: {error.strerror or error}") from error
    if len(raw) > limit:
        raise FileError(f"{path}: holds {status.st_size} bytes, expected at most {limit}")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FileError(f"{path}: not UTF-8 text: {error}") from error


def read_json(path: Path) -> dict[str, Any]:
    """The object of a JSON file.

    Raises:
        FileError: if it is not a regular file, too large, not JSON, or nested too deeply.
    """
    value = _read_json(path)
    if not isinstance(value, dict):
        raise FileError(f"{path}: holds a {type(value).__name__}, expected a JSON object")
    return cast("dict[str, Any]", value)


def read_json_list(path: Path) -> list[Any]:
    """The list of a JSON file; raises as `read_json` does."""
    value = _read_json(path)
    if not isinstance(value, list):
        raise FileError(f"{path}: holds a {type(value).__name__}, expected a JSON list")
    return cast("list[Any]", value)


def _read_json(path: Path) -> object:
    try:
        value: object = json.loads(read_text(path))
    except (RecursionError, ValueError) as error:
        if isinstance(error, FileError):
            raise
        raise FileError(f"{path}: not JSON: {_reason(error)}") from error
    _check_depth(path, value)
    return value


def read_toml(path: Path) -> dict[str, Any]:
    """The table of a TOML file; raises as `read_json` does."""
    text = read_text(path, TOML_LIMIT)
    # tomllib takes quadratic time for a key of many parts.
    if _LONG_KEY.search(text):
        raise FileError(f"{path}: a key has more than {_MAX_DEPTH} parts")
    try:
        value = tomllib.loads(text)
    except (RecursionError, ValueError) as error:
        raise FileError(f"{path}: not TOML: {_reason(error)}") from error
    _check_depth(path, value)
    return value


def sha256(path: Path) -> str:
    """The digest of a file's bytes."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise FileError(f"{path}: cannot be read: {error.strerror}") from error


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "its lists and tables are nested too deeply"
    return str(error).partition(";")[0]  # Python's advice on long numbers is not for users


def _check_depth(path: Path, value: object) -> None:
    # Breadth first: recursion would fail on the very values that are refused here.
    level: list[object] = [value]
    for _ in range(_MAX_DEPTH):
        inner: list[object] = []
        for holder in level:
            if isinstance(holder, dict):
                inner += cast("dict[str, object]", holder).values()
            elif isinstance(holder, list):
                inner += cast("list[object]", holder)
        level = [member for member in inner if isinstance(member, dict | list)]
        if not level:
            return
    raise FileError(f"{path}: its lists and tables are nested more than {_MAX_DEPTH} deep")


def _kind(mode: int) -> str:
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
    return kinds.get(stat.S_IFMT(mode), "a device")


def _temporary_beside(path: Path) -> Path:
    """A new empty file in the same folder, with the suffix by which libraries choose a format."""
    # Not made from the name of `path`, which may be as long as the file system allows.
    suffix = path.suffix if len(path.suffix) < 16 else ""
    temporary = path.parent / f"{PARTIAL}{secrets.token_hex(8)}{suffix}"
    try:
        os.close(os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666))
    except OSError as error:
        raise FileError(f"{path}: cannot be written: {error.strerror}") from error
    return temporary
