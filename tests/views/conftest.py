"""Recordings to draw, and a browser to draw them in."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from limelight.seeing.recording.recording import Recording
from views.hostile_tokens import HOSTILE
from watched_pages import watched_pages

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SENTENCE = "The animal didn't cross the street because it was too tired."


@pytest.fixture(scope="session")
def sentence() -> Recording:
    import limelight as ll

    return ll.look(SENTENCE)


@pytest.fixture(scope="session")
def hostile() -> Recording:
    """Two layers of two heads over hostile tokens."""
    torch.manual_seed(0)
    weights = torch.rand(2, 2, len(HOSTILE), len(HOSTILE)).softmax(-1)
    return Recording.of_weights(list(weights), HOSTILE, model="<b>model</b>")


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[Callable[..., Page]]:
    """Opens the page of a recording; fails if it prints an error or sends a request."""
    numbers = itertools.count()
    with watched_pages(browser, (1300, 900), ("file:",)) as open_page:

        def open_recording(recording: Recording | str, **options: Any) -> Page:
            path = tmp_path / f"{next(numbers)}.html"
            if isinstance(recording, str):
                path.write_text(recording, encoding="utf-8")
            else:
                recording.save(path)
            return open_page(path.as_uri(), "[data-ready]", **options)

        yield open_recording
