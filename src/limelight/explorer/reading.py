"""Reading a text or a picture with a model: the recording that every panel is drawn from."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from torch import Tensor

from limelight.errors import OptionError
from limelight.explorer.pausing import pausing
from limelight.explorer.schemas import MAX_TOKENS, TextTooLongError
from limelight.explorer.worker import Job
from limelight.models.loading.pretrained import Model
from limelight.models.vision import VisionEncoder
from limelight.ops.lens.sources import Recomputed
from limelight.ops.lens.spec import Lens
from limelight.seeing.look import look
from limelight.seeing.recording.offload import MEMORY_LIMIT
from limelight.seeing.recording.recording import Recording

SHORT_TEXT = 64
"""Tokens up to which every link of a text is recorded."""


class Footprint(NamedTuple):
    """Bytes that a recording takes."""

    memory: int
    disk: int


def read(model: Model, source: str | Tensor, job: Job) -> Recording:
    """What a model attends to in a text, or in a picture `h w 3` of bytes.

    Reports each layer as it begins.
    """
    if isinstance(source, str) and isinstance(model, VisionEncoder):
        raise OptionError(f"{_name(model)} reads pictures: drop an image file on the page")
    if not isinstance(source, str) and not isinstance(model, VisionEncoder):
        raise OptionError(
            f"{_name(model)} reads texts: for pictures, start `limelight explore` with "
            "--model and the path of a vision transformer"
        )
    count = count_tokens(model, source)
    if count > MAX_TOKENS < model.config.context:
        raise TextTooLongError(f"the text has {count:,} tokens, at most {MAX_TOKENS:,} are read")

    def report(layer: int) -> None:
        job.report({"layer": layer, "layers": model.config.layers})

    with pausing(job, report), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the page shows how much was read
        return look(source, model, _lens(count))


def _lens(count: int) -> Lens:
    """The strongest links, statistics along the axes, and a map of each head.

    For a short text all links, so that none is recomputed to find those worth a look.
    """
    top = count if 0 < count <= SHORT_TEXT else 8
    return Lens(top=top, entropy=True, distance=True, received=True, map=(96, 96))


def _name(model: Model) -> str:
    return model.name or type(model).__name__


def count_tokens(model: Model, source: str | Tensor) -> int:
    """The number of tokens of a text; 0 if it is not known beforehand."""
    if not isinstance(source, str) or model.tokens is None:
        return 0
    return len(model.tokens.encode(source).ids)


def expected_footprint(model: Model, source: str | Tensor) -> Footprint:
    """The footprint of the queries, keys and values of a text, before it is read."""
    config = model.config
    width = (config.heads + 2 * config.kv_heads) * config.head_size
    return _footprint(0, 4 * config.layers * count_tokens(model, source) * width)


def footprint(recording: Recording) -> Footprint:
    """The footprint of a recording: its statistics, and its queries, keys and values."""
    memory = sum(8 * flow.x.numel() for flow in recording.flows)
    qkv = 0
    for seen in recording.layers:
        memory += sum(tensor.nbytes for tensor in _tensors(seen.statistics))
        if isinstance(seen.source, Recomputed):
            problem = seen.source.problem
            qkv += sum(each.nbytes for each in (problem.query, problem.key, problem.value))
    return _footprint(memory, qkv)


def _footprint(memory: int, qkv: int) -> Footprint:
    """Queries, keys and values of a long text are kept on disk: see `seeing.recording.offload`."""
    return Footprint(memory, qkv) if qkv > MEMORY_LIMIT else Footprint(memory + qkv, 0)


def _tensors(statistics: Iterable[object]) -> Iterator[Tensor]:
    for statistic in statistics:
        if isinstance(statistic, Tensor):
            yield statistic
        elif isinstance(statistic, tuple):
            yield from _tensors(statistic)
