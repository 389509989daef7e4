"""The models by the names given at start, and the recordings made with them."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from limelight.errors import FileError, LimelightError, OptionError
from limelight.explorer.asks import MOST_TOKENS
from limelight.explorer.work import Turn
from limelight.models.loading.pretrained import Model, load
from limelight.ops.calls import AttentionCall, intercept
from limelight.ops.lens.sources import Recomputed
from limelight.ops.lens.spec import Lens
from limelight.seeing.look import look
from limelight.seeing.recording.recording import Recording

LENS = Lens(top=8, entropy=True, distance=True, received=True, map=(96, 96))
"""What the page is drawn from: the strongest links, strips along the axes, a map of each head."""


NAMED = ("minilm", "smollm2")
"""Models that come as packages."""


class TooLongError(LimelightError):
    """A text of more tokens than are looked at."""


MOST_BYTES = 400_000_000
"""Of the recordings kept; the newest stays whatever its size."""
MOST_KEPT = 48


class Library:
    """Loads each model once, when it is first asked for; keeps the recordings used last.

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
        """Load the first model; what is wrong with it is said when it is asked for."""
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

    def recording(self, name: str, text: str, turn: Turn) -> Recording:
        """What the model attends to in the text; made once, while it is kept."""
        shown = self._shown
        if shown is not None and (shown.model or "recording", shown.text) == (name, text):
            return shown
        key = name, text
        if key not in self._kept:
            self._kept[key] = self._look(self.model(name), text, turn)
            self._drop()
        self._kept.move_to_end(key)
        return self._kept[key]

    def _look(self, model: Model, text: str, turn: Turn) -> Recording:
        if model.tokens is not None:
            count = len(model.tokens.encode(text).ids)
            if count > MOST_TOKENS < model.config.context:
                raise TooLongError(
                    f"the text has {count:,} tokens, at most {MOST_TOKENS:,} are read"
                )

        def between(call: AttentionCall) -> object:
            turn.pause()
            return call.attend()

        with intercept(between), warnings.catch_warnings():  # pyright: ignore[reportArgumentType]
            warnings.simplefilter("ignore", UserWarning)  # the page says how much was read
            return look(text, model, LENS)

    def _drop(self) -> None:
        """Forget the recordings not used for longest, until the rest fits."""
        sizes = {key: recording_bytes(kept) for key, kept in self._kept.items()}
        while len(self._kept) > 1 and (
            len(self._kept) > MOST_KEPT or sum(sizes.values()) > MOST_BYTES
        ):
            key, _ = self._kept.popitem(last=False)
            del sizes[key]


def recording_bytes(recording: Recording) -> int:
    """Bytes of the queries, keys, values, flows and maps that a recording holds on to."""
    size = sum(8 * flow.x.numel() for flow in recording.flows)
    for seen in recording.layers:
        if isinstance(seen.source, Recomputed):
            problem = seen.source.problem
            for tensor in (problem.query, problem.key, problem.value):
                size += tensor.numel() * tensor.element_size()
        if seen.statistics.map is not None:
            size += 8 * seen.statistics.map.mean.numel()
    return size
