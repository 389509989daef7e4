"""The training loop."""

from __future__ import annotations

import math
import time
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW

from limelight.errors import FileError, LimelightError, OptionError
from limelight.models.decoder import Decoder
from limelight.models.loading.pretrained import Model, load
from limelight.models.transformer import Transformer
from limelight.rng import generator_for
from limelight.training.checkpoint import (
    check_resumed,
    expected_sizes,
    newest_checkpoint,
    read_checkpoint,
    read_tokens,
    write_checkpoint,
)
from limelight.training.corpus import Corpus
from limelight.training.curve import draw_curve
from limelight.training.data import Task
from limelight.training.distributed import Group, parallelize, process_group
from limelight.training.evaluate import Bleu, HeldOut, bleu, evaluate, in_precision, token_loss
from limelight.training.folder import RunFolder
from limelight.training.log import Log, read_log
from limelight.training.optimise import (
    learning_rate_at,
    make_optimizer,
    optimizer_step,
    set_learning_rate,
)
from limelight.training.pairs import TranslationTask
from limelight.training.progress import NoProgress, Progress, progress_bar
from limelight.training.settings import Settings


@dataclass(frozen=True)
class TrainingResult:
    """The result of a run."""

    checkpoint: Path
    held_out: HeldOut
    bleu: Bleu | None
    """of an encoder–decoder"""
    seconds: float
    """of training, with evaluations and checkpoints, since the run started or resumed"""
    is_leader: bool = True
    """whether this process is its group's leader"""


@dataclass(frozen=True)
class Run:
    """Everything that the training loop works on."""

    settings: Settings
    folder: RunFolder
    group: Group
    task: Task
    data: str
    """the digest of the data"""
    model: Model
    trained: nn.Module
    """the model as wrapped for parallel training"""
    optimizer: AdamW


def train(
    settings: Settings, *, base: Path | None = None, resume: bool = False, quiet: bool = True
) -> TrainingResult:
    """Train a model from settings, or resume a run that was stopped.

    Args:
        settings: the run.
        base: the folder that the data's relative paths start from; the current one unless given.
        resume: continue from the newest checkpoint, or start if there is none.
        quiet: show no progress.

    Returns:
        The final checkpoint and its evaluation.
    """
    with process_group(settings.timeout) as group:
        folder = RunFolder(settings.folder)
        with folder.locked() if group.is_leader else nullcontext():
            run, start = _set_up(settings, folder, group, base or Path(), resume=resume)
            # No barrier at the end: the leader may translate for longer than the timeout.
            return _run(run, start, quiet=quiet or not group.is_leader)


def _set_up(
    settings: Settings, folder: RunFolder, group: Group, base: Path, *, resume: bool
) -> tuple[Run, int]:
    """Check and build everything, so that errors a user can fix occur before the first step."""
    rows, shards = settings.batch, settings.accumulate * group.size
    if rows % shards:
        raise OptionError(
            f"batch must be a multiple of accumulate × processes = {shards}, found {rows}"
        )
    corpus = Corpus(settings, base)
    before = folder.steps()
    if before and not resume:
        raise FileError(
            f"folder {folder.path} already holds a run at step {before[-1]}: "
            "pass --resume to continue it, or choose another folder"
        )
    newest = newest_checkpoint(folder)
    start = 0 if newest is None else check_resumed(newest, settings, corpus.digest)
    tokens = corpus.train_tokenizer(group) if newest is None else read_tokens(newest)
    task = corpus.task(tokens)
    torch.manual_seed(settings.seed)
    model = _make_model(settings, task)
    if group.is_leader:
        folder.check_space(expected_sizes(model), _new_checkpoints(settings, start, len(before)))
    trained = parallelize(model, group, settings.parallel)
    optimizer = make_optimizer(model, settings.optimizer)
    if newest is not None:
        read_checkpoint(newest, model, optimizer, start)
    run = Run(settings, folder, group, task, corpus.digest, model, trained, optimizer)
    return run, start


def _new_checkpoints(settings: Settings, start: int, before: int) -> int:
    """How many checkpoints this run adds at most to those that its folder already holds."""
    saved = range(start + 1, settings.steps + 1)
    count = settings.steps // settings.save_every - start // settings.save_every
    count += bool(saved and settings.steps % settings.save_every)
    # One more than are kept: the oldest is removed once the newest is complete.
    return max(min(count, settings.keep + 1 - before), min(count, 1))


def _make_model(settings: Settings, task: Task) -> Model:
    config = settings.config(vocabulary=len(task.tokens))
    model = Transformer(config) if config.kind == "transformer" else Decoder(config)
    model.tokens = task.tokens
    model.name = Path(settings.folder).name
    return model.train()


def _run(run: Run, start: int, *, quiet: bool) -> TrainingResult:
    settings, folder = run.settings, run.folder
    with _progress(settings.steps, start, quiet) as progress:
        parameters = sum(p.numel() for p in run.model.parameters())
        progress.print(
            f"{parameters:,} parameters, {len(run.task.tokens):,} tokens in the vocabulary, "
            f"{run.task.size:,} tokens to train on"
            + (f"; resuming from step {start}" if start else "")
        )
        log = Log(folder.path / "log.jsonl", after=start) if run.group.is_leader else None
        began = time.perf_counter()
        try:
            held_out = _run_steps(run, start, log, progress)
            seconds = time.perf_counter() - began
            score = _finish(run, log, progress)
            return TrainingResult(
                folder.checkpoint(settings.steps), held_out, score, seconds, run.group.is_leader
            )
        finally:
            if log is not None:
                log.close()


def _run_steps(run: Run, start: int, log: Log | None, progress: Progress) -> HeldOut:
    """Run every step from `start` on; returns the last evaluation."""
    settings = run.settings
    losses: list[Tensor] = []
    tokens, since = 0, time.perf_counter()
    # Evaluation follows the checkpoint: a run resumed there has not evaluated it yet.
    due = start and _evaluates_at(start, settings)
    held_out = _evaluate(run, start, log, progress) if due else None
    for step in range(start, settings.steps):
        rate = learning_rate_at(step, settings.steps, settings.optimizer)
        loss, predicted = _step(run, step, rate)
        losses.append(loss)
        tokens += predicted
        done = step + 1
        saves, evaluates = done % settings.save_every == 0, _evaluates_at(done, settings)
        if saves or evaluates or done % settings.log_every == 0:
            # Not at every step: all_reduce makes the processes wait for one another.
            mean = mean_loss(run.group.all_reduce(torch.stack(losses)), done)
            speed = round(tokens / max(time.perf_counter() - since, 1e-9), 1)
            if log is not None:
                log.write({"step": done, "loss": mean, "rate": rate, "tokens_per_second": speed})
            progress.update(done, mean, speed)
            if saves or done == settings.steps:
                _save(run, done, log)
            if evaluates:
                held_out = _evaluate(run, done, log, progress)
            losses, tokens, since = [], 0, time.perf_counter()
    assert held_out is not None  # the last step is always evaluated
    return held_out


def _evaluates_at(step: int, settings: Settings) -> bool:
    return step % settings.evaluate_every == 0 or step == settings.steps


def _step(run: Run, step: int, rate: float) -> tuple[Tensor, int]:
    """One step: this process's share of the batch's mean loss, and the batch's token count."""
    settings, group, model = run.settings, run.group, run.trained
    batch = run.task.batch(settings.seed, step, settings.batch)
    if run.model.config.dropout:
        torch.manual_seed(generator_for(settings.seed, step, group.rank).initial_seed())
    run.optimizer.zero_grad(set_to_none=True)
    total: Tensor | None = None
    for part in range(settings.accumulate):
        shard = batch.shard(part * group.size + group.rank, settings.accumulate * group.size)
        last = part + 1 == settings.accumulate
        deferred = isinstance(model, DistributedDataParallel) and not last
        with cast("Any", model).no_sync() if deferred else nullcontext():
            with in_precision(settings.precision):
                logits = model(**shard.inputs)
            loss = token_loss(logits, shard, settings.optimizer.label_smoothing)
            # DDP and FSDP average gradients over processes; those of our shards are to be summed.
            (loss * group.size if group.size > 1 else loss).backward()
        loss = loss.detach()
        total = loss if total is None else total + loss
    set_learning_rate(run.optimizer, rate)
    optimizer_step(run.optimizer, settings.optimizer.clip_norm)
    assert total is not None
    return total, batch.predicted


def mean_loss(losses: Tensor, step: int) -> float:
    """The mean of the losses up to a step; raises if it is not finite."""
    mean = losses.mean().item()
    if not math.isfinite(mean):
        raise LimelightError(
            f"the loss became {mean} before step {step}: try a lower "
            "optimizer.learning_rate or more optimizer.warmup_steps; the last checkpoint is intact"
        )
    return mean


def _evaluate(run: Run, step: int, log: Log | None, progress: Progress) -> HeldOut:
    settings = run.settings
    held_out = evaluate(
        run.trained if settings.parallel == "fsdp" else run.model, run.task, run.group,
        rows=max(settings.batch, 64), precision=settings.precision,
    )  # fmt: skip
    if log is not None:
        log.write({"step": step, "held_out_loss": held_out.loss, "perplexity": held_out.perplexity})
    progress.print(
        f"step {step}: held-out loss {held_out.loss:.4f}, perplexity {held_out.perplexity:.2f}"
    )
    return held_out


def _save(run: Run, step: int, log: Log | None) -> None:
    if log is not None:
        log.fsync()
    write_checkpoint(
        run.folder, run.model, run.optimizer, run.group,
        step=step, settings=run.settings, data=run.data,
    )  # fmt: skip


def _finish(run: Run, log: Log | None, progress: Progress) -> Bleu | None:
    """BLEU of an encoder–decoder, and the loss curve."""
    settings, score = run.settings, None
    if log is None:
        return None
    if isinstance(run.task, TranslationTask):
        # The saved model, which is the one that users load.
        saved = load(run.folder.checkpoint(settings.steps))
        assert isinstance(saved, Transformer)
        pairs, max_tokens = (
            run.task.held_out_pairs,
            min(settings.data.max_tokens, saved.config.context - 1),
        )
        score = bleu(saved, pairs, max_tokens=max_tokens)
        log.write({"step": settings.steps, "bleu": score.score, "copying": score.copying})
        progress.print(
            f"BLEU {score.score:.1f} on {len(pairs)} held-out pairs "
            f"(copying the source: {score.copying:.1f})"
        )
    entries = read_log(run.folder.path / "log.jsonl")
    draw_curve(entries, run.folder.path / "curve.png", run.model.name or "training")
    return score


@contextmanager
def _progress(steps: int, start: int, quiet: bool) -> Generator[Progress]:
    if quiet:
        yield NoProgress()
    else:
        with progress_bar(steps, start) as progress:
            yield progress
