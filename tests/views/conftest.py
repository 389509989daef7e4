"""Recordings to draw, and a real browser to draw them in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from limelight.seeing.recording.recording import Recording
from views.hostile_tokens import HOSTILE

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SENTENCE = "The animal didn't cross the street because it was too tired."


@pytest.fixture(scope="session")
def sentence() -> Recording:
    import limelight as ll

    return ll.look(SENTENCE)


@pytest.fixture(scope="session")
def hostile() -> Recording:
    """Two layers of two heads over tokens that mean harm."""
    torch.manual_seed(0)
    weights = torch.rand(2, 2, len(HOSTILE), len(HOSTILE)).softmax(-1)
    return Recording.of_weights(list(weights), HOSTILE, model="<b>model</b>")


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[Callable[..., Page]]:
    """Opens a recording's page; afterwards no error was printed and no request had left."""
    complaints: list[str] = []
    requests: list[str] = []
    pages: list[Page] = []

    def open_(recording: Recording | str, **options: Any) -> Page:
        path = tmp_path / f"{len(pages)}.html"
        if isinstance(recording, str):
            path.write_text(recording, encoding="utf-8")
        else:
            recording.save(path)
        options = {"viewport": {"width": 1300, "height": 900}, "accept_downloads": True} | options
        page = browser.new_page(**options)
        page.set_default_timeout(60_000)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "console",
            lambda said: (
                complaints.append(said.text) if said.type in ("error", "warning") else None
            ),
        )
        page.on("request", lambda request: requests.append(request.url))
        page.goto(path.as_uri())
        page.locator("[data-ready]").first.wait_for(state="attached")
        pages.append(page)
        return page

    yield open_
    for page in pages:
        page.close()
    assert complaints == []
    assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []
