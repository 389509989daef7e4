"""Two processes under torchrun train to the same weights as one process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from small_runs import TEXT, entries, settings, write_toml

import limelight as ll
from limelight.errors import OptionError
from limelight.training.loop import train


def torchrun(toml: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
         "-m", "limelight", "train", str(toml)],
        cwd=toml.parent, capture_output=True, text=True, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert process.returncode == 0, process.stderr[-3000:]


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_processes_reach_the_loss_of_one(tmp_path: Path, parallel: str) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    model = {"preset": "gpt2", "layers": 2, "heads": 2, "width": 32, "context": 16}
    same = {"steps": 12, "batch": 8, "save_every": 6, "evaluate_every": 6, "model": model}
    train(settings(tmp_path / "one", **same), base=tmp_path)
    toml = tmp_path / "two.toml"
    parallel_settings = settings(tmp_path / "two", **same, parallel=parallel, accumulate=2)
    write_toml(toml, parallel_settings.as_table())
    torchrun(toml)
    one, two = entries(tmp_path / "one"), entries(tmp_path / "two")
    assert [e["step"] for e in one] == [e["step"] for e in two]
    for alone, together in zip(one, two, strict=True):
        assert together.keys() == alone.keys()
        for name in alone:
            assert together[name] == pytest.approx(alone[name], rel=1e-4), (alone, together)
    weights = ll.load(tmp_path / "one" / "step-00000012").state_dict()
    shared = ll.load(tmp_path / "two" / "step-00000012").state_dict()
    for name, weight in weights.items():
        assert torch.allclose(shared[name], weight, atol=2e-4), name
    # One process continues where two stopped.
    assert train(parallel_settings, base=tmp_path, resume=True).held_out.loss == pytest.approx(
        one[-1]["held_out_loss"], rel=1e-4
    )


def test_a_batch_that_does_not_divide_evenly_raises(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    with pytest.raises(OptionError, match=r"batch must be a multiple of .* = 3, found 4"):
        train(settings(tmp_path / "run", accumulate=3), base=tmp_path)


@pytest.mark.soak
def test_a_stopped_process_fails_the_run_after_the_timeout(tmp_path: Path) -> None:
    """The default timeout of PyTorch is half an hour."""
    (tmp_path / "text.txt").write_text(TEXT)
    toml = tmp_path / "run.toml"
    endless = settings(tmp_path / "run", steps=10**6, save_every=10**6, keep=1, timeout=20.0)
    write_toml(toml, endless.as_table())
    common = {**os.environ, "OMP_NUM_THREADS": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost",
              "MASTER_PORT": "29611"}  # fmt: skip
    command = [sys.executable, "-m", "limelight", "train", str(toml)]
    processes = [
        subprocess.Popen(
            command, cwd=tmp_path, env={**common, "RANK": str(rank)}, stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        log = tmp_path / "run" / "log.jsonl"
        while not log.is_file() or not log.stat().st_size:
            assert all(process.poll() is None for process in processes)
            time.sleep(0.1)
        os.kill(processes[1].pid, signal.SIGSTOP)
        _, stderr = processes[0].communicate(timeout=120)
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert processes[0].returncode == 2, stderr
    assert "process 0 of 2 lost the others" in stderr
    assert "did not respond for 20 s (the setting timeout)" in stderr
