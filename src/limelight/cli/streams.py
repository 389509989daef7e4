"""The input and output of commands: standard streams, text files, messages safe for a terminal."""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
import unicodedata
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from limelight.errors import FileError

TEXT_LIMIT = 1 << 28
"""The largest text in bytes; no tokenizer handles more in reasonable time."""


def one_line(message: str) -> str:
    r"""A message with control and invisible characters escaped: file names may hold any character.

    >>> one_line("a\x1b[2Jb\nc")
    'a\\x1b[2Jb\\nc'
    """
    return "".join(
        character.encode("unicode_escape").decode()
        if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")
        else character
        for character in message
    )


def parse_token(token: str) -> int | str:
    """The index or the text of a token; an index has at most nine digits.

    >>> parse_token("-2"), parse_token("it"), parse_token("--2"), parse_token("1234567890")
    (-2, 'it', '--2', '1234567890')
    """
    return int(token) if re.fullmatch(r"-?\d{1,9}", token) else token


def read_stdin() -> str:
    """The UTF-8 text of standard input.

    Raises:
        FileError: if it is closed, or not UTF-8.
    """
    if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison]
        raise FileError("standard input is closed, expected text")
    try:
        return _text("standard input", sys.stdin.buffer.read(TEXT_LIMIT + 1))
    except OSError as error:
        raise FileError(f"standard input cannot be read: {error.strerror}") from error


def _text(name: str, raw: bytes) -> str:
    """Decode what was read of a file, at most one byte more than TEXT_LIMIT.

    That byte shows that the file is too long, or a device without an end. A byte order mark is
    dropped, and lines end in line feeds.
    """
    if len(raw) > TEXT_LIMIT:
        raise FileError(f"{name}: holds more than {TEXT_LIMIT} bytes, the largest text accepted")
    try:
        return raw.decode("utf-8").removeprefix("\ufeff").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise FileError(f"{name}: not UTF-8 text: {error}") from error


def read_input(file: Path) -> str:
    """The UTF-8 text of a file, or of standard input for "-"; a pipe is read to its end."""
    if str(file) == "-":
        return read_stdin()
    try:
        with file.open("rb") as opened:
            return _text(str(file), opened.read(TEXT_LIMIT + 1))
    except OSError as error:
        raise FileError(f"{file}: cannot be read: {error.strerror}") from error


@contextmanager
def exit_on(name: str) -> Generator[None]:
    """Turn a signal into SystemExit within the block, so that half-written files are removed.

    At its end standard output is flushed, so that a failure to write it is an error here rather
    than a message of the interpreter at exit.
    """

    def end(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    previous = signal.signal(getattr(signal, name), end)
    try:
        try:
            yield
        except OSError as error:
            # Files are written by `writing`, which names them: this comes from a print.
            if error.filename is None and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise _unwritten(error) from error
            raise
        finally:
            _flush()
    finally:
        signal.signal(getattr(signal, name), previous)


def _flush() -> None:
    output = sys.stdout
    if output is None:  # pyright: ignore[reportUnnecessaryComparison]
        return
    try:
        output.flush()
    except OSError as error:
        # The interpreter would flush again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), output.fileno())
        if isinstance(error, BrokenPipeError):  # the reader closed the pipe
            raise SystemExit(1) from None
        raise _unwritten(error) from error


def _unwritten(error: OSError) -> FileError:
    return FileError(f"standard output cannot be written: {error.strerror}")
