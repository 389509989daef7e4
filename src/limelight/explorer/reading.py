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
"""Tokens of a text of which every link is kept."""


class Footprint(NamedTuple):
    """Bytes."""

    memory: int
    disk: int


def read(model: Model, source: str | Tensor, job: Job) -> Recording:
    """What a model attends to in a text, or in a picture `h w 3` of bytes.

    Reports the share of the layers that is done.
    """
    if isinstance(source, str) and isinstance(model, VisionEncoder):
        raise OptionError(f"{_name(model)} reads pictures: drop an image file on the page")
    if not isinstance(source, str) and not isinstance(model, VisionEncoder):
        raise OptionError(
            f"{_name(model)} reads texts: for pictures start `limelight explore` "
            "with --model PATH of a vision transformer"
        )
    count = count_tokens(model, source)
    if count > MAX_TOKENS < model.config.context:
        raise TextTooLongError(f"the text has {count:,} tokens, at most {MAX_TOKENS:,} are read")

    def report(layer: int) -> None:
        job.report({"layer": layer, "layers": model.config.layers})

    with pausing(job, report), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the page says how much was read
        return look(source, model, _lens(count))


def _lens(count: int) -> Lens:
    """The strongest links, strips along the axes, a map of each head.

    Of a short text all links: none need be computed again to find those worth a look.
    """
    top = count if 0 < count <= SHORT_TEXT else 8
    return Lens(top=top, entropy=True, distance=True, received=True, map=(96, 96))


def _name(model: Model) -> str:
    return model.name or type(model).__name__


def count_tokens(model: Model, source: str | Tensor) -> int:
    """The tokens of a text; 0 where they cannot be counted beforehand."""
    if not isinstance(source, str) or model.tokens is None:
        return 0
    return len(model.tokens.encode(source).ids)


def expected_footprint(model: Model, source: str | Tensor) -> Footprint:
    """What the queries, keys and values of a text will take."""
    config = model.config
    size = (config.heads + 2 * config.kv_heads) * config.head_size
    return _split(0, 4 * config.layers * count_tokens(model, source) * size)


def footprint(recording: Recording) -> Footprint:
    """What a recording holds on to: its links and maps, and queries, keys and values."""
    memory = sum(8 * flow.x.numel() for flow in recording.flows)
    call = 0
    for seen in recording.layers:
        memory += sum(tensor.nbytes for tensor in _tensors(seen.statistics))
        if isinstance(seen.source, Recomputed):
            problem = seen.source.problem
            call += sum(each.nbytes for each in (problem.query, problem.key, problem.value))
    return _split(memory, call)


def _split(memory: int, call: int) -> Footprint:
    """Queries, keys and values of a long text lie on disk: see `seeing.recording.offload`."""
    return Footprint(memory, call) if call > MEMORY_LIMIT else Footprint(memory + call, 0)


def _tensors(statistics: Iterable[object]) -> Iterator[Tensor]:
    for each in statistics:
        if isinstance(each, Tensor):
            yield each
        elif isinstance(each, tuple):
            yield from _tensors(each)
