"""Damaged files of every kind we read: a LimelightError, or an answer; never another error."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import limelight as ll
from limelight.errors import LimelightError

TEXT = "The animal didn't cross the street."
WORDS = [b"null", b"-1", b"1e999", b'"x"', b"[]", b"{}", b"NaN", b"99999999999999999999", b"\xff"]


def sources(folder: Path) -> dict[Path, Callable[[Path], Any]]:
    """A small file of each kind, and how it is read."""
    model = ll.Encoder(
        ll.Config(kind="encoder", vocabulary=40, width=16, layers=1, heads=2, context=16)
    )
    saved = folder / "model"
    ll.save(model, saved)
    recording = folder / "recording.safetensors"
    ll.look(TEXT).save(recording)
    readers: dict[Path, Callable[[Path], Any]] = {recording: ll.Recording.load}
    for path in saved.iterdir():
        if path.is_file():
            readers[path] = lambda changed: ll.load(changed.parent)
    settings = folder / "settings.toml"
    settings.write_text('[model]\nkind = "decoder"\nwidth = 16\nlayers = 1\nheads = 2\n')
    readers[settings] = _settings
    return readers


def _settings(path: Path) -> Any:
    from limelight.training.settings import Settings

    return Settings.from_file(path)


def damaged(rng: random.Random, content: bytes) -> bytes:
    """The content with bytes flipped, cut, repeated or replaced by words that parse."""
    changed = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        # Most of a file is numbers; its head is what a reader trusts.
        at = rng.randrange(min(len(changed), 2000) or 1) if rng.random() < 0.8 else 0
        match rng.randrange(5):
            case 0:
                changed[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                del changed[at : at + rng.randint(1, 64)]
            case 2:
                changed[at:at] = changed[at : at + rng.randint(1, 64)] * rng.randint(1, 3)
            case 3:
                changed[at : at + rng.randint(0, 8)] = rng.choice(WORDS)
            case _:
                del changed[rng.randrange(len(changed) or 1) :]
        if not changed:
            return b""
    return bytes(changed)


def mutated_json(rng: random.Random, content: bytes) -> bytes:
    """A document with one value replaced by another kind of value."""
    document = json.loads(content)
    place, steps = document, 0
    while isinstance(place, dict | list) and len(place) and steps < 8:
        key = rng.choice(list(place) if isinstance(place, dict) else range(len(place)))
        steps += 1
        if not isinstance(place[key], dict | list) or rng.random() < 0.3:
            place[key] = rng.choice([None, -1, 0, 2**70, "x", [], {}, True, 1e308, "9" * 5000])
            break
        place = place[key]
    return json.dumps(document).encode()


def check(
    seed: int, readers: dict[Path, Callable[[Path], Any]], contents: dict[Path, bytes]
) -> str:
    """One damaged file, read; returns its name. The file is whole again afterwards."""
    rng = random.Random(seed)
    path = rng.choice(sorted(readers))
    by_value = path.suffix == ".json" and rng.random() < 0.5
    path.write_bytes((mutated_json if by_value else damaged)(rng, contents[path]))
    try:
        with contextlib.suppress(LimelightError):
            readers[path](path)
    finally:
        path.write_bytes(contents[path])
