"""A run that is killed and taken up again writes the log of a run that never stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from small_runs import STEPS, TEXT, entries, settings, write_toml

import limelight as ll
from limelight.errors import FileError, LimelightError, OptionError
from limelight.files import PARTIAL
from limelight.training.folder import RunFolder, atomic_folder
from limelight.training.log import read_log
from limelight.training.loop import mean_loss, train


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text(TEXT)
    return tmp_path


def start(toml: Path) -> subprocess.Popen[bytes]:
    with toml.with_suffix(".err").open("wb") as errors:
        return subprocess.Popen(
            [sys.executable, "-m", "limelight", "train", str(toml), "--resume"],
            cwd=toml.parent,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env={**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())},
        )


def kill_when(toml: Path, ready: Any) -> None:
    """Start it, and kill -9 as soon as `ready()`; it must not have ended by itself."""
    process = start(toml)
    while not ready():
        assert process.poll() is None, toml.with_suffix(".err").read_text()
        time.sleep(0.0005)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL


def test_killed_at_several_moments_it_comes_to_the_same_numbers(place: Path) -> None:
    train(settings(place / "whole"), base=place)
    run = RunFolder(place / "killed")
    toml = place / "killed.toml"
    write_toml(toml, settings(run.path).as_table())

    def writing() -> bool:
        return any(run.path.glob(f"{PARTIAL}step-*/model.safetensors"))

    def further_than(step: int) -> bool:
        return bool(run.steps()) and run.steps()[-1] > step

    # before the first checkpoint; during the write of one; some time after one
    kill_when(toml, lambda: (run.path / "log.jsonl").is_file())
    caught = 0
    for _ in range(3):
        kill_when(toml, writing)
        caught += any(run.path.glob(f"{PARTIAL}*"))
        if caught:
            break
    assert caught, "no kill fell into the write of a checkpoint"
    before = run.steps()[-1] if run.steps() else 0
    kill_when(toml, lambda: further_than(before + 8))
    assert run.steps()[-1] < STEPS
    for step in run.steps():
        ll.load(run.checkpoint(step))  # whatever has the name of a checkpoint is whole
    assert start(toml).wait() == 0, toml.with_suffix(".err").read_text()
    assert entries(run.path) == entries(place / "whole")
    whole = ll.load(place / "whole" / f"step-{STEPS:08d}").state_dict()
    taken_up = ll.load(run.checkpoint(STEPS)).state_dict()
    assert all(torch.equal(whole[name], taken_up[name]) for name in whole)
    assert not any(run.path.glob(f"{PARTIAL}*"))


def test_the_log_the_curve_and_the_newest_checkpoints_are_there(place: Path) -> None:
    result = train(settings(place / "run", steps=12), base=place)
    run = RunFolder(place / "run")
    assert run.steps() == [8, 12]
    assert result.checkpoint == run.checkpoint(12)
    assert (run.path / "curve.png").read_bytes().startswith(b"\x89PNG")
    log = read_log(run.path / "log.jsonl")
    assert [e["step"] for e in log if "loss" in e] == [3, 4, 6, 8, 9, 12]
    assert log[-1]["held_out_loss"] == result.held_out.loss
    written = ll.generate(ll.load(result.checkpoint), "12 squared", max_tokens=5)
    assert len(written.text) == len(written.ids) == 5  # a token is a character of the text
    assert set(written.text) <= set(TEXT)


def test_a_checkpoint_is_plain_data(place: Path) -> None:
    """JSON and safetensors, read here without limelight: nothing is pickled under any name."""
    checkpoint = train(settings(place / "run", steps=2), base=place).checkpoint
    contents: dict[str, Any] = {}
    for file in checkpoint.iterdir():
        if file.suffix == ".json":
            contents[file.name] = json.loads(file.read_text(encoding="utf-8"))
        else:
            contents[file.name] = load_file(file)
    assert sorted(contents) == [
        "limelight.json", "model.safetensors", "optimizer.safetensors", "state.json",
        "tokenizer.json",
    ]  # fmt: skip
    assert contents["state.json"]["step"] == 2
    for name in contents["model.safetensors"]:
        assert f"{name}.exp_avg" in contents["optimizer.safetensors"]


def test_a_run_is_not_written_over_and_not_taken_up_as_another(place: Path) -> None:
    first = settings(place / "run", steps=4)
    train(first, base=place)
    with pytest.raises(FileError, match="already holds a run at step 4: give --resume"):
        train(first, base=place)
    with pytest.raises(OptionError, match="was started with batch = 4, found 8"):
        train(settings(place / "run", steps=4, batch=8), base=place, resume=True)
    again = train(settings(place / "run", steps=4, keep=1), base=place, resume=True)
    assert again.held_out.loss == read_log(place / "run" / "log.jsonl")[-1]["held_out_loss"]
    (place / "text.txt").write_text(TEXT + "more")
    with pytest.raises(OptionError, match=r"the data of the run in .* has changed"):
        train(first, base=place, resume=True)


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_offered(place: Path) -> None:
    run = settings(place / "run", steps=8)
    train(run, base=place)
    newest, before = (place / "run" / f"step-{step:08d}" for step in (8, 4))
    whole = {file: file.read_bytes() for file in newest.iterdir()}
    for file, content in whole.items():
        flipped = bytearray(content)
        flipped[len(flipped) // 2] ^= 1
        file.write_bytes(flipped)
        words = rf"{file}: .*; step 4 is whole: remove {newest} and --resume"
        with pytest.raises(FileError, match=words):
            train(run, base=place, resume=True)
        file.write_bytes(content)
    (newest / "model.safetensors").write_bytes(b"")
    (before / "optimizer.safetensors").unlink()
    with pytest.raises(FileError, match="no earlier checkpoint is whole"):
        train(run, base=place, resume=True)


def test_only_checkpoints_that_can_exist_need_space(place: Path) -> None:
    train(settings(place / "run", steps=4, keep=1_000_000), base=place)
    with pytest.raises(FileError, match="has no space for 1000001 checkpoints"):
        train(settings(place / "big", steps=10**9, keep=1_000_000), base=place)
    assert not any((place / "big").glob(f"{PARTIAL}*"))


def test_a_disk_that_fills_up_while_a_checkpoint_is_written(place: Path) -> None:
    """The limit on file size stands for the disk; it comes after the space was checked."""
    toml = place / "run.toml"
    write_toml(toml, settings(place / "run", steps=8).as_table())
    code = (
        "import resource, sys, limelight.training.loop as loop\n"
        "once, steps = loop._save, []\n"
        "def save(*arguments):\n"
        "    if steps: resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))\n"
        "    steps.append(1)\n"
        "    once(*arguments)\n"
        "loop._save = save\n"
        f"sys.argv = ['limelight', 'train', {str(toml)!r}]; from limelight.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=place, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "model.safetensors: cannot be written: " in done.stderr
    assert "File too large" in done.stderr
    assert RunFolder(place / "run").steps() == [4]
    assert not any((place / "run").glob(f"{PARTIAL}*"))
    ll.load(place / "run")


@pytest.mark.parametrize(
    "line", ['{"step": "x"}', '{"step": 1, "loss": []}', "[" * 100_000, '{"step": 1e999}', "[]"]
)
def test_a_log_with_a_foreign_line_is_refused(tmp_path: Path, line: str) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text('{"step": 1}\n' + line + '\n{"step": 2}\n')
    with pytest.raises(FileError, match="line 2 is not an entry of a log"):
        read_log(log)
    log.write_bytes(b"\xff\n")
    with pytest.raises(FileError, match="not UTF-8"):
        read_log(log)


def test_a_folder_that_cannot_be_written_is_said_before_training(place: Path) -> None:
    for folder in ("/proc/nothing-here", "/dev/null/run"):
        with pytest.raises(FileError, match=r"cannot be written: .*; nothing was started"):
            train(settings(Path(folder)), base=place)


def test_a_full_disk_is_said_before_training(place: Path) -> None:
    """The limit on file size stands for the disk: the same call of the system fails."""
    toml = place / "run.toml"
    write_toml(toml, settings(place / "run").as_table())
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000));"
        f"sys.argv = ['limelight', 'train', {str(toml)!r}]; from limelight.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=place, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "has no space for 3 checkpoints of" in done.stderr
    assert "nothing was started" in done.stderr
    assert not read_log(place / "run" / "log.jsonl")


def test_two_trainings_do_not_share_a_folder(place: Path) -> None:
    with (
        RunFolder(place / "run").locked(),
        pytest.raises(FileError, match="another training is running in it"),
    ):
        train(settings(place / "run"), base=place)


def test_a_folder_that_cannot_be_finished_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> None:
        with atomic_folder(tmp_path / "step") as folder:
            (folder / "file").write_text("begun")
            raise OSError(28, "No space left on device")

    with pytest.raises(FileError, match="step: cannot be written: No space left on device"):
        fail()
    assert not list(tmp_path.iterdir())


def test_a_loss_that_is_not_finite_is_said() -> None:
    with pytest.raises(LimelightError, match=r"the loss became nan before step 5: try a lower"):
        mean_loss(torch.tensor([1.0, float("nan")]), 5)
