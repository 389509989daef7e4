"""Reading within bounds and writing atomically: huge, deeply nested and endless files, modes."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from limelight import files
from limelight.errors import FileError
from limelight.files import check_writable, read_json, read_toml, writing


def pipe(path: Path) -> None:
    os.mkfifo(path)


def text(content: str) -> Callable[[Path], Any]:
    return lambda path: path.write_text(content)


@pytest.mark.parametrize(
    ("read", "make", "words"),
    [
        (read_json, pipe, "a pipe, expected a regular file"),
        (read_toml, pipe, "a pipe, expected a regular file"),
        (read_json, lambda path: path.symlink_to("/dev/zero"), "a device, expected a regular"),
        (read_json, Path.mkdir, "a folder, expected a regular file"),
        (read_json, text("[" * 200_000), "nested too deeply"),
        (read_json, text('{"a":' * 100 + "1" + "}" * 100), "nested more than 64 deep"),
        (read_json, text('{"size": ' + "9" * 6000 + "}"), "not JSON: Exceeds the limit"),
        (read_json, text("[]"), "holds a list, expected a JSON object"),
        (read_json, lambda path: path.write_bytes(b"\xff"), "not UTF-8 text"),
        (read_toml, text(".".join("a" * 50_000) + " = 1"), "a key has more than 64 parts"),
        (read_toml, text("[" + ".".join("a" * 50_000) + "]"), "a key has more than 64 parts"),
        (read_toml, text("a = " + "[" * 50_000), "nested too deeply"),
        (read_toml, text("a = " + "9" * 6000), "not TOML: Exceeds the limit"),
        (read_toml, text("#" * (2 << 20)), "holds 2097152 bytes, expected at most 1048576"),
    ],
)
def test_a_file_out_of_bounds_is_refused(
    tmp_path: Path, read: Callable[[Path], Any], make: Callable[[Path], Any], words: str
) -> None:
    make(tmp_path / "file")
    with pytest.raises(FileError, match=words):
        read(tmp_path / "file")


def test_a_written_file_follows_the_umask_which_is_not_changed(tmp_path: Path) -> None:
    """A thread that creates files at the same time keeps its umask."""
    before = os.umask(0o027)
    done = threading.Event()
    modes: set[int] = set()

    def create_others() -> None:
        while not done.is_set():
            (tmp_path / "other").unlink(missing_ok=True)
            (tmp_path / "other").write_text("")
            modes.add(stat.S_IMODE((tmp_path / "other").stat().st_mode))

    thread = threading.Thread(target=create_others)
    thread.start()
    try:
        for _ in range(300):
            with writing(tmp_path / "file.txt") as temporary:
                temporary.write_text("")
    finally:
        done.set()
        thread.join()
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file.txt").stat().st_mode) == 0o640
    assert modes == {0o640}


def test_the_longest_names_can_be_written_and_longer_ones_are_refused(tmp_path: Path) -> None:
    longest = tmp_path / ("x" * 251 + ".txt")
    check_writable(longest)
    with writing(longest) as temporary:
        temporary.write_text("whole")
    assert longest.read_text() == "whole"
    with pytest.raises(FileError, match="cannot be written: File name too long"):
        check_writable(tmp_path / ("x" * 300))
    assert not files.is_file(tmp_path / ("x" * 300))
    assert not files.is_folder(tmp_path / ("x" * 300))


def test_a_file_written_by_safetensors_has_the_usual_mode(tmp_path: Path) -> None:
    """Its writer creates a file of its own that only the owner may read."""
    (tmp_path / "plain").touch()
    with writing(tmp_path / "x.safetensors") as temporary:
        save_file({"x": torch.ones(2)}, temporary)
    assert (tmp_path / "x.safetensors").stat().st_mode == (tmp_path / "plain").stat().st_mode
