"""A run that is killed and resumed writes the log of a run that never stopped."""

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
def base(tmp_path: Path) -> Path:
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
    """Start a run and kill it as soon as `ready()`; it must not have ended by itself."""
    process = start(toml)
    while not ready():
        assert process.poll() is None, toml.with_suffix(".err").read_text()
        time.sleep(0.0005)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL


def test_a_killed_run_resumes_to_the_same_numbers(base: Path) -> None:
    train(settings(base / "whole"), base=base)
    run = RunFolder(base / "killed")
    toml = base / "killed.toml"
    write_toml(toml, settings(run.path).as_table())

    def writing() -> bool:
        return any(run.path.glob(f"{PARTIAL}step-*/model.safetensors"))

    def is_past(step: int) -> bool:
        return bool(run.steps()) and run.steps()[-1] > step

    # before the first checkpoint, during the write of one, and some time after one
    kill_when(toml, lambda: (run.path / "log.jsonl").is_file())
    caught = 0
    for _ in range(3):
        kill_when(toml, writing)
        caught += any(run.path.glob(f"{PARTIAL}*"))
        if caught:
            break
    assert caught, "no kill happened during the write of a checkpoint"
    before = run.steps()[-1] if run.steps() else 0
    kill_when(toml, lambda: is_past(before + 8))
    assert run.steps()[-1] < STEPS
    for step in run.steps():
        ll.load(run.checkpoint(step))  # every checkpoint is complete
    assert start(toml).wait() == 0, toml.with_suffix(".err").read_text()
    assert entries(run.path) == entries(base / "whole")
    whole = ll.load(base / "whole" / f"step-{STEPS:08d}").state_dict()
    resumed = ll.load(run.checkpoint(STEPS)).state_dict()
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    assert not any(run.path.glob(f"{PARTIAL}*"))


def test_a_run_writes_a_log_a_curve_and_its_newest_checkpoints(base: Path) -> None:
    result = train(settings(base / "run", steps=12), base=base)
    run = RunFolder(base / "run")
    assert run.steps() == [8, 12]
    assert result.checkpoint == run.checkpoint(12)
    assert (run.path / "curve.png").read_bytes().startswith(b"\x89PNG")
    log = read_log(run.path / "log.jsonl")
    assert [e["step"] for e in log if "loss" in e] == [3, 4, 6, 8, 9, 12]
    assert log[-1]["held_out_loss"] == result.held_out.loss
    written = ll.generate(ll.load(result.checkpoint), "12 squared", max_tokens=5)
    assert len(written.text) == len(written.ids) == 5  # one character per token
    assert set(written.text) <= set(TEXT)


def test_a_checkpoint_is_plain_data(base: Path) -> None:
    """JSON and safetensors, read without limelight: nothing is pickled."""
    checkpoint = train(settings(base / "run", steps=2), base=base).checkpoint
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


def test_a_run_is_not_overwritten_nor_resumed_with_other_settings(base: Path) -> None:
    first = settings(base / "run", steps=4)
    train(first, base=base)
    with pytest.raises(FileError, match="already holds a run at step 4: pass --resume"):
        train(first, base=base)
    with pytest.raises(OptionError, match="was started with batch = 4, found 8"):
        train(settings(base / "run", steps=4, batch=8), base=base, resume=True)
    again = train(settings(base / "run", steps=4, keep=1), base=base, resume=True)
    assert again.held_out.loss == read_log(base / "run" / "log.jsonl")[-1]["held_out_loss"]
    (base / "text.txt").write_text(TEXT + "more")
    with pytest.raises(OptionError, match=r"the data of the run in .* has changed"):
        train(first, base=base, resume=True)


def test_a_damaged_checkpoint_is_named_and_an_intact_one_suggested(base: Path) -> None:
    run = settings(base / "run", steps=8)
    train(run, base=base)
    newest, before = (base / "run" / f"step-{step:08d}" for step in (8, 4))
    whole = {file: file.read_bytes() for file in newest.iterdir()}
    for file, content in whole.items():
        flipped = bytearray(content)
        flipped[len(flipped) // 2] ^= 1
        file.write_bytes(flipped)
        message = rf"{file}: .*; step 4 is intact: remove {newest} and --resume"
        with pytest.raises(FileError, match=message):
            train(run, base=base, resume=True)
        file.write_bytes(content)
    (newest / "model.safetensors").write_bytes(b"")
    (before / "optimizer.safetensors").unlink()
    with pytest.raises(FileError, match="no earlier checkpoint is intact"):
        train(run, base=base, resume=True)


def test_space_is_needed_only_for_checkpoints_that_can_exist(base: Path) -> None:
    train(settings(base / "run", steps=4, keep=1_000_000), base=base)
    with pytest.raises(FileError, match="has no space for 1000001 checkpoints"):
        train(settings(base / "big", steps=10**9, keep=1_000_000), base=base)
    assert not any((base / "big").glob(f"{PARTIAL}*"))


def test_a_disk_that_fills_up_leaves_the_last_checkpoint(base: Path) -> None:
    """A limit on file size, set after the space was checked, simulates the full disk."""
    toml = base / "run.toml"
    write_toml(toml, settings(base / "run", steps=8).as_table())
    code = (
        "import resource, sys, limelight.training.loop as loop\n"
        "original, steps = loop._save, []\n"
        "def save(*arguments):\n"
        "    if steps: resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))\n"
        "    steps.append(1)\n"
        "    original(*arguments)\n"
        "loop._save = save\n"
        f"sys.argv = ['limelight', 'train', {str(toml)!r}]; from limelight.cli import main; main()"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], cwd=base, capture_output=True, text=True, check=False
    )
    assert process.returncode == 2, process.stderr
    assert "model.safetensors: cannot be written: " in process.stderr
    assert "File too large" in process.stderr
    assert RunFolder(base / "run").steps() == [4]
    assert not any((base / "run").glob(f"{PARTIAL}*"))
    ll.load(base / "run")


@pytest.mark.parametrize(
    "line", ['{"step": "x"}', '{"step": 1, "loss": []}', "[" * 100_000, '{"step": 1e999}', "[]"]
)
def test_a_log_with_an_invalid_line_is_refused(tmp_path: Path, line: str) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text('{"step": 1}\n' + line + '\n{"step": 2}\n')
    with pytest.raises(FileError, match="line 2 is not an entry of a log"):
        read_log(log)
    log.write_bytes(b"\xff\n")
    with pytest.raises(FileError, match="not UTF-8"):
        read_log(log)


def test_a_folder_that_cannot_be_written_is_reported_before_training(base: Path) -> None:
    for folder in ("/proc/nothing-here", "/dev/null/run"):
        with pytest.raises(FileError, match=r"cannot be written: .*; nothing was started"):
            train(settings(Path(folder)), base=base)


def test_a_full_disk_is_reported_before_training(base: Path) -> None:
    """A limit on file size simulates the full disk: the same system call fails."""
    toml = base / "run.toml"
    write_toml(toml, settings(base / "run").as_table())
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000));"
        f"sys.argv = ['limelight', 'train', {str(toml)!r}]; from limelight.cli import main; main()"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], cwd=base, capture_output=True, text=True, check=False
    )
    assert process.returncode == 2
    assert "has no space for 3 checkpoints of" in process.stderr
    assert "nothing was started" in process.stderr
    assert not read_log(base / "run" / "log.jsonl")


def test_two_runs_cannot_share_a_folder(base: Path) -> None:
    with (
        RunFolder(base / "run").locked(),
        pytest.raises(FileError, match="another training run is using it"),
    ):
        train(settings(base / "run"), base=base)


def test_a_folder_that_fails_half_way_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> None:
        with atomic_folder(tmp_path / "step") as folder:
            (folder / "file").write_text("begun")
            raise OSError(28, "No space left on device")

    with pytest.raises(FileError, match="step: cannot be written: No space left on device"):
        fail()
    assert not list(tmp_path.iterdir())


def test_a_loss_that_is_not_finite_raises() -> None:
    with pytest.raises(LimelightError, match=r"the loss became nan before step 5: try a lower"):
        mean_loss(torch.tensor([1.0, float("nan")]), 5)
