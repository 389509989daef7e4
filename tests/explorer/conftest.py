"""A real server in a process of its own, and a real browser to look at it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SENTENCE = "The animal didn't cross the street because it was too tired."


class Server:
    """`limelight explore` as a person starts it."""

    def __init__(self, *options: str) -> None:
        command = [str(Path(sys.executable).with_name("limelight")), "explore", *options]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "OMP_NUM_THREADS": "2"},
        )  # fmt: skip
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"http://\S+", line)
        if found is None:
            self.process.kill()
            pytest.fail(f"no address: {line!r} {self.process.communicate()[1]}")
        self.url = found[0]

    def ask(self, path: str, **body: Any) -> httpx.Response:
        return httpx.post(self.url.partition("?")[0] + path, json=body, timeout=120)

    def stop(self) -> str:
        """End it as Ctrl-C does; what it had to complain about."""
        self.process.send_signal(signal.SIGINT)
        return self.process.communicate(timeout=30)[1]


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    started = Server("--port", "0", "--no-open", "--model", "minilm", "smollm2")
    yield started
    assert started.process.poll() is None, "the server has died"
    assert "Traceback" not in started.stop()


@pytest.fixture
def opened(browser: Browser, server: Server) -> Iterator[Callable[..., Page]]:
    """Opens the page; afterwards no error was printed and no request had left."""
    complaints: list[str] = []
    requests: list[str] = []
    pages: list[Page] = []

    def open_(end: str = "", **options: Any) -> Page:
        options = {"viewport": {"width": 1440, "height": 1000}, "accept_downloads": True} | options
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
        page.goto(server.url + end)
        page.locator("#app[data-ready]").wait_for()
        pages.append(page)
        return page

    yield open_
    for page in pages:
        page.close()
    assert complaints == []
    own = (server.url, "data:", "blob:")
    assert [url for url in requests if not url.startswith(own)] == []
