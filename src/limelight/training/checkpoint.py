"""Checkpoints: everything a run needs to resume as if it had never stopped.

    limelight.json           the model's config, as `ll.load` reads it
    model.safetensors        its weights
    tokenizer.json
    optimizer.safetensors    NAME.exp_avg and NAME.exp_avg_sq for each weight NAME
    state.json               the step, the settings, digests of the data and of the files above

The batch and the dropout of a step are functions of the seed and the step, so there is no
generator state and no position in the data to store. Nothing is pickled. Weights are stored
unsharded, so a run can resume with another number of processes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from limelight.errors import FileError, OptionError
from limelight.files import read_json, sha256
from limelight.models.loading.pretrained import OWN, Model, own_tokens, save
from limelight.models.loading.weights import Safetensors, read_fitting, save_safetensors
from limelight.models.tokens import Tokens
from limelight.training.distributed import Group, full_tensor, shard_like
from limelight.training.folder import RunFolder, atomic_folder, remove_atomically
from limelight.training.settings import Settings

_MOMENTS = ("exp_avg", "exp_avg_sq")
_MAY_CHANGE = ("folder", "evaluate_every", "keep", "parallel", "timeout")
"""Settings that may change on resuming: they do not affect what is learned."""


def expected_sizes(model: nn.Module) -> list[int]:
    """Upper bounds in bytes of the two large files of a checkpoint; the first includes the rest."""
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    names = sum(len(name) + 200 for name, _ in model.named_parameters())
    return [weights + names + 2_000_000, 2 * weights + 2 * names]


def write_checkpoint(
    run: RunFolder,
    model: Model,
    optimizer: AdamW,
    group: Group,
    *,
    step: int,
    settings: Settings,
    data: str,
) -> None:
    """Write the checkpoint of a step, then remove all but the newest `settings.keep`.

    Every process must call this: each may hold a shard of the weights. The leader writes.
    """
    weights = {name: full_tensor(p.detach()) for name, p in model.named_parameters()}
    moments: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        state = optimizer.state[parameter]
        moments.update({f"{name}.{moment}": full_tensor(state[moment]) for moment in _MOMENTS})
    if group.is_leader:
        with atomic_folder(run.checkpoint(step)) as folder:
            save(_copy(model, weights), folder)
            save_safetensors(moments, folder / "optimizer.safetensors", {"format": "pt"})
            state = {
                "format": 1, "step": step, "settings": settings.as_table(), "data": data,
                "files": {file.name: sha256(file) for file in sorted(folder.iterdir())},
            }  # fmt: skip
            state["sha256"] = _digest(state)
            (folder / "state.json").write_text(json.dumps(state, indent=2), encoding="utf-8")
        for old in run.steps()[: -settings.keep]:
            remove_atomically(run.checkpoint(old))
    group.barrier()


def newest_checkpoint(run: RunFolder) -> Path | None:
    """The newest checkpoint, its checksums verified, or None if there is none.

    Raises:
        FileError: naming the damaged file, and the newest checkpoint that is intact.
    """
    steps = run.steps()
    if not steps:
        return None
    newest = run.checkpoint(steps[-1])
    try:
        check_intact(newest)
    except FileError as error:
        step = next((step for step in reversed(steps[:-1]) if _is_intact(run, step)), None)
        advice = (
            "no earlier checkpoint is intact: train into another folder"
            if step is None
            else f"step {step} is intact: remove {newest} and --resume to continue from there"
        )
        raise FileError(f"{error}; {advice}") from error
    return newest


def check_intact(folder: Path) -> None:
    """Raise unless every file of a checkpoint has the digest it was written with."""
    path = folder / "state.json"
    state = read_json(path)
    if state.get("format") != 1 or not isinstance(state.get("step"), int):
        raise FileError(f"{path}: not the state of a run in format 1")
    if state.pop("sha256", None) != _digest(state):
        raise FileError(f"{path}: damaged: its sha256 does not match its contents")
    for name, expected in state["files"].items():
        digest = sha256(folder / name)
        if digest != expected:
            raise FileError(
                f"{folder / name}: damaged: has sha256 {digest[:12]}…, expected {expected[:12]}…"
            )


def _is_intact(run: RunFolder, step: int) -> bool:
    try:
        check_intact(run.checkpoint(step))
    except FileError:
        return False
    return True


def _digest(state: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def check_resumed(folder: Path, settings: Settings, data: str) -> int:
    """The step of a checkpoint; raises if settings or data differ from those of its run."""
    state = read_json(folder / "state.json")
    changed = _differences(state.get("settings", {}), json.loads(json.dumps(settings.as_table())))
    if changed:
        name, (before, now) = next(iter(changed.items()))
        raise OptionError(
            f"the run in {folder.parent} was started with {name} = {before!r}, found {now!r}; "
            "change it back, or train into another folder"
        )
    if state.get("data") != data:
        raise OptionError(
            f"the data of the run in {folder.parent} has changed since it was started"
        )
    return int(state["step"])


def read_tokens(folder: Path) -> Tokens:
    """The tokenizer of a checkpoint."""
    tokens = own_tokens(folder)
    if tokens is None:
        raise FileError(f"{folder / OWN}: has no tokens, which a run needs")
    return tokens


def read_checkpoint(folder: Path, model: nn.Module, optimizer: AdamW, step: int) -> None:
    """Load weights and moments into a model and its optimizer, sharded as the model is."""
    weights = Safetensors(folder / "model.safetensors")
    moments = Safetensors(folder / "optimizer.safetensors")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            stored = read_fitting(weights, name, parameter.shape)
            parameter.copy_(shard_like(stored, parameter))
            state: dict[str, Tensor] = {"step": torch.tensor(float(step))}
            for moment in _MOMENTS:
                stored = read_fitting(moments, f"{name}.{moment}", parameter.shape)
                state[moment] = shard_like(stored, parameter)
            optimizer.state[parameter] = state


def _copy(model: Model, weights: Mapping[str, Tensor]) -> Model:
    """An unsharded model with these weights."""
    with torch.device("meta"):
        copy = type(model)(model.config)  # pyright: ignore[reportArgumentType]
    copy.load_state_dict(dict(weights), assign=True)
    copy.tokens, copy.name = model.tokens, model.name
    return copy


def _differences(before: Any, now: Any, where: str = "") -> dict[str, tuple[Any, Any]]:
    if not isinstance(before, dict) or not isinstance(now, dict):
        return {} if before == now else {where: (before, now)}
    differences: dict[str, tuple[Any, Any]] = {}
    for name in sorted({*before, *now}):
        if not where and name in _MAY_CHANGE:
            continue
        path = f"{where}.{name}" if where else name
        differences.update(_differences(before.get(name), now.get(name), path))
    return differences
