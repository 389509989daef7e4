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
"""How files and folders that are still being written begin; they are never read."""

JSON_LIMIT, TOML_LIMIT = 1 << 28, 1 << 20
"""Bytes of the largest file that is read: the tokenizers of large models take some 30 MB."""
_DEEPEST = 64
"""Tables and lists inside one another; no settings of ours go beyond 5."""
_LONG_KEY = re.compile(rf"""(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')\s*\.\s*){{{_DEEPEST}}}""")


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
    temporary = _beside(path)
    try:
        mode = temporary.stat().st_mode
        yield temporary
        # Some libraries put a file of their own in its place, which only its owner may read.
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
    _beside(path).unlink()


def check_path(path: str | Path) -> Path:
    """The path, if it is one: what else a caller may give has no file."""
    if not isinstance(path, str | os.PathLike):
        raise OptionError(f"a path must be a text or a Path, found {path!r}")
    try:
        written = os.fsencode(path)
    except UnicodeEncodeError:
        written = b"\0"
    if b"\0" in written:
        raise OptionError(f"{path!r} cannot be the name of a file")
    return Path(path)


@contextmanager
def read_from(path: Path) -> Generator[None]:
    """Within it, a value that is refused is one of this file, which the error then names."""
    try:
        yield
    except OptionError as error:
        raise FileError(f"{path}: {error}") from error


def is_file(path: Path) -> bool:
    """Whether there is a regular file; a name that no file can have is none.

    >>> is_file(Path("x" * 300))
    False
    """
    try:
        return path.is_file()
    except OSError:
        return False


def is_folder(path: Path) -> bool:
    """Whether there is a folder of this name."""
    try:
        return path.is_dir()
    except OSError:
        return False


def read_text(path: Path, limit: int = JSON_LIMIT) -> str:
    """The UTF-8 text of a regular file of at most `limit` bytes.

    A pipe or a device may never end, and a file may be larger than memory: both are refused
    before anything is read.
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
        FileError: where it is no regular file, too large, not JSON, or nested too deeply.
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
    # The library takes quadratic time for a key of many parts.
    if _LONG_KEY.search(text):
        raise FileError(f"{path}: a key has more than {_DEEPEST} parts")
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
    # Breadth first, without recursion, which depth would end.
    level: list[object] = [value]
    for _ in range(_DEEPEST):
        inner: list[object] = []
        for holder in level:
            if isinstance(holder, dict):
                inner += cast("dict[str, object]", holder).values()
            elif isinstance(holder, list):
                inner += cast("list[object]", holder)
        level = [member for member in inner if isinstance(member, dict | list)]
        if not level:
            return
    raise FileError(f"{path}: its lists and tables are nested more than {_DEEPEST} deep")


def _kind(mode: int) -> str:
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
    return kinds.get(stat.S_IFMT(mode), "a device")


def _beside(path: Path) -> Path:
    """A new empty file in the same folder, with the ending that libraries go by."""
    # Short, whatever the length of the name: that one may be as long as the disk allows.
    ending = path.suffix if len(path.suffix) < 16 else ""
    temporary = path.parent / f"{PARTIAL}{secrets.token_hex(8)}{ending}"
    try:
        os.close(os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666))
    except OSError as error:
        raise FileError(f"{path}: cannot be written: {error.strerror}") from error
    return temporary
