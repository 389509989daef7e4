"""Standard input and output that are closed, full or not text; messages that hold control codes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import limelight as ll
from limelight.cli import main, streams
from limelight.cli.streams import one_line, read_input
from limelight.errors import FileError
from limelight.models.tokens import Tokens


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("decoder")
    model = ll.Decoder(ll.Config.gpt2(vocabulary=27, width=16, layers=1, heads=2, context=64))
    model.tokens = Tokens.characters("abcdefghijklmnopqrstuvwxyz")
    ll.save(model, folder)
    return folder


def limelight(*arguments: str | bytes | Path, **options: Any) -> subprocess.CompletedProcess[bytes]:
    command: list[Any] = [sys.executable, "-m", "limelight", *arguments]
    settings = {"stderr": subprocess.PIPE, "stdout": subprocess.PIPE, **options}
    return subprocess.run(command, check=False, timeout=120, **settings)


def assert_fails(process: subprocess.CompletedProcess[bytes], message: str) -> None:
    stderr = process.stderr.decode()
    assert process.returncode == 2, stderr
    assert message in stderr
    assert stderr.startswith("limelight: ")
    assert stderr.count("\n") == 1, stderr


def test_text_that_is_not_utf_8_is_refused(decoder: Path, tmp_path: Path) -> None:
    assert_fails(limelight("generate", decoder, b"ab\xffc"), "a text must be Unicode")
    process = limelight("embed", "-", "-o", tmp_path / "x.npy", input=b"ab\xff\n")
    assert_fails(process, "standard input: not UTF-8 text")
    assert not list(tmp_path.iterdir())


def test_a_byte_order_mark_and_crlf_are_removed(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\rthree\r\n")
    assert read_input(tmp_path / "x.txt") == "one\ntwo\rthree\n"


def test_an_endless_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "TEXT_LIMIT", 5000)
    with pytest.raises(FileError, match="/dev/zero: holds more than 5000 bytes"):
        read_input(Path("/dev/zero"))


def test_a_closed_standard_input_is_reported(tmp_path: Path) -> None:
    command = f"{sys.executable} -m limelight embed - -o {tmp_path / 'x.npy'} <&-"
    process = subprocess.run(["sh", "-c", command], capture_output=True, check=False)
    assert_fails(process, "standard input is closed, expected text")


def test_a_full_disk_behind_standard_output_is_reported(decoder: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        for options in ((), ("--json",)):
            process = limelight("generate", decoder, "abc", *options, stdout=full)
            assert_fails(process, "standard output cannot be written: No space left on device")


def test_names_that_are_too_long_or_hold_control_codes() -> None:
    assert_fails(limelight("generate", "x" * 300, "abc"), "no such file or folder")
    assert_fails(limelight("train", "x" * 300), "cannot be read: File name too long")
    process = limelight("generate", "a\x1b[2J\nb", "abc")
    assert_fails(process, "a\\x1b[2J b: no such file or folder")
    assert one_line("a\u202eb") == "a\\u202eb"


def test_a_terminated_command_leaves_no_half_written_file(tmp_path: Path) -> None:
    code = (
        "import sys, time\n"
        "import limelight.cli.app as commands\n"
        "from limelight.files import writing\n"
        "def write():\n"
        "    with writing('curve.png'):\n"
        "        print('begun', flush=True); time.sleep(60)\n"
        "commands.app.command('write')(write)\n"
        "sys.argv = ['limelight', 'write']\n"
        "from limelight.cli import main; main()\n"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        assert len(list(tmp_path.iterdir())) == 1
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(30) == 128 + signal.SIGTERM
    assert not list(tmp_path.iterdir())


def test_files_of_a_corpus_follow_the_option() -> None:
    process = limelight("heads", "minilm", "a.txt")
    assert_fails(process, "a.txt: one model at a time; files to read come after --corpus")
    process = limelight("heads", "minilm", "--corpus", __file__, "nothing.txt")
    assert_fails(process, "--corpus nothing.txt: no such file")


@pytest.mark.parametrize("token", ["9" * 5000, "--1", "-", ""])
def test_an_unknown_token_is_reported(
    token: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (
        ["cause", f"--token={token}"],
        ["why", "--layer=0", "--head=0", f"--query={token}"],
    ):
        monkeypatch.setattr("sys.argv", ["limelight", *command, "a b"])
        with pytest.raises(SystemExit) as exit_info:
            main()
        assert exit_info.value.code == 2
        assert "is not among the 4 tokens" in capsys.readouterr().err


def test_a_long_text_that_is_refused_leaves_one_line(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("word " * 2_000_000)
    process = limelight("show", "--file", tmp_path / "x.txt", "--html", tmp_path / "x.html")
    assert_fails(process, "text has 10,000,000 characters, expected at most 8,388,608")
