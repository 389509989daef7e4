"""The models by the names given at start, and the recordings made with them."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from limelight.errors import FileError, LimelightError, OptionError
from limelight.explorer.schemas import MAX_TOKENS
from limelight.explorer.worker import Job
from limelight.models.loading.pretrained import Model, load
from limelight.ops.calls import AttentionCall, intercept
from limelight.ops.lens.sources import Recomputed
from limelight.ops.lens.spec import Lens
from limelight.seeing.look import look
from limelight.seeing.recording.recording import Recording
from limelight.seeing.recording.shelf import ROOM

LENS = Lens(top=8, entropy=True, distance=True, received=True, map=(96, 96))
"""What the page is drawn from: the strongest links, strips along the axes, a map of each head."""


NAMED = ("minilm", "smollm2")
"""Models that come as packages."""


class TextTooLongError(LimelightError):
    """A text of more tokens than are looked at."""


class Footprint(NamedTuple):
    """Bytes."""

    memory: int
    disk: int


MAX_FOOTPRINT = Footprint(400_000_000, 2_000_000_000)
"""Of the recordings kept; the newest stays whatever its size."""
MAX_RECORDINGS = 48


class ModelStore:
    """Loads each model once, on first use; keeps the recordings used last.

    Used by the worker's thread only.
    """

    def __init__(
        self, models: Sequence[str | Path | Model], shown: Recording | None = None
    ) -> None:
        self._models: dict[str, Model | str] = {}
        self._paths: dict[str, str] = {}
        for model in models:
            path = str(model) if isinstance(model, str | Path) else ""
            if path and path not in NAMED and not Path(path).exists():
                named = ", ".join(map(repr, NAMED))
                raise FileError(f"{path}: no such file or folder, and not one of the names {named}")
            name = path or model.name or type(model).__name__  # pyright: ignore[reportAttributeAccessIssue]
            # Of a path the page need only know the last part.
            short = Path(name).name or name
            name = name if short in self._models else short
            self._models[name] = path or model  # pyright: ignore[reportArgumentType]
            self._paths[name] = path
        self._kept: OrderedDict[tuple[str, str], Recording] = OrderedDict()
        self._shown = shown
        if shown is not None:
            self._models.setdefault(shown.model or "recording", "")

    @property
    def names(self) -> list[str]:
        """What the page may call the models by."""
        return list(self._models)

    @property
    def shown(self) -> dict[str, str] | None:
        """The recording that the page opens with, where one was given."""
        if self._shown is None:
            return None
        return {"model": self._shown.model or "recording", "text": self._shown.text}

    def kind(self, name: str) -> str:
        """What the page can do with a model: encoder, decoder, transformer or recording."""
        if self._models.get(name) == "":
            return "recording"
        return type(self.model(name)).__name__.lower()

    def warm(self) -> None:
        """Load the first model; an error is reported by the first request that uses it."""
        with suppress(LimelightError):
            self.model(self.names[0])

    def path(self, name: str) -> str:
        """What Python calls a model by: its name, or the path it was given by."""
        self._check(name)
        model = self._models[name]
        return self._paths.get(name) or (model if isinstance(model, str) else name)

    def _check(self, name: str) -> None:
        if name not in self._models:
            known = ", ".join(self._models)
            raise OptionError(f"there is no model {name!r}: this server has {known}")

    def model(self, name: str) -> Model:
        """A model by its name, loaded once."""
        self._check(name)
        model = self._models[name]
        if model == "":
            raise OptionError(f"{name!r} came as a recording: its model is not here")
        if isinstance(model, str):
            model = self._models[name] = load(model)
        return model

    def has(self, name: str, text: str) -> bool:
        """Whether a recording is at hand, so that it need not be made."""
        return (name, text) in self._kept

    def recording(self, name: str, text: str, job: Job) -> Recording:
        """What the model attends to in the text; made once, while it is kept.

        Reports the share of the layers that is done.
        """
        shown = self._shown
        if shown is not None and (shown.model or "recording", shown.text) == (name, text):
            return shown
        key = name, text
        if key not in self._kept:
            self._kept[key] = self._look(self.model(name), text, job)
            self._drop(Footprint(0, 0))
        self._kept.move_to_end(key)
        return self._kept[key]

    def _look(self, model: Model, text: str, job: Job) -> Recording:
        config, count, done = model.config, 0, 0
        if model.tokens is not None:
            count = len(model.tokens.encode(text).ids)
            if count > MAX_TOKENS < model.config.context:
                raise TextTooLongError(
                    f"the text has {count:,} tokens, at most {MAX_TOKENS:,} are read"
                )

        # Space is freed before it is needed, or two long texts would be kept at once.
        size = (config.heads + 2 * config.kv_heads) * config.head_size
        self._drop(_split(0, 4 * config.layers * count * size))

        def between(call: AttentionCall) -> object:
            nonlocal done
            job.report({"layer": done, "layers": config.layers})
            job.pause()
            done += 1
            return call.attend()

        with intercept(between), warnings.catch_warnings():  # pyright: ignore[reportArgumentType]
            warnings.simplefilter("ignore", UserWarning)  # the page says how much was read
            return look(text, model, LENS)

    def _drop(self, more: Footprint) -> None:
        """Forget the recordings not used for longest, until the rest and `more` fit."""
        sizes = {key: footprint(kept) for key, kept in self._kept.items()}
        least = 0 if any(more) else 1

        def fits() -> bool:
            memory, disk = map(sum, zip(more, *sizes.values(), strict=True))
            return (
                memory <= MAX_FOOTPRINT.memory
                and disk <= MAX_FOOTPRINT.disk
                and len(sizes) <= MAX_RECORDINGS
            )

        while len(self._kept) > least and not fits():
            key, _ = self._kept.popitem(last=False)
            del sizes[key]


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
    """Queries, keys and values of a long text lie on disk: see `seeing.recording.shelf`."""
    return Footprint(memory, call) if call > ROOM else Footprint(memory + call, 0)


def _tensors(statistics: Iterable[object]) -> Iterator[Tensor]:
    for each in statistics:
        if isinstance(each, Tensor):
            yield each
        elif isinstance(each, tuple):
            yield from _tensors(each)
