"""A real server in its own process, and a real browser that opens its page."""

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

import limelight as ll
from limelight.seeing.recording.recording import Recording
from watched_pages import watched_pages

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SENTENCE = "The animal didn't cross the street because it was too tired."


class Server:
    """`limelight explore` as a user starts it."""

    def __init__(self, *options: str) -> None:
        command = [str(Path(sys.executable).with_name("limelight")), "explore", *options]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "OMP_NUM_THREADS": "2"},
        )  # fmt: skip
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        url = re.search(r"http://\S+", line)
        if url is None:
            self.process.kill()
            pytest.fail(f"no address: {line!r} {self.process.communicate()[1]}")
        self.url = url[0]

    def post(self, path: str, **body: Any) -> httpx.Response:
        return httpx.post(self.url.partition("?")[0] + path, json=body, timeout=120)

    def stop(self) -> str:
        """Stop it as Ctrl-C does, and return what it wrote to stderr."""
        self.process.send_signal(signal.SIGINT)
        return self.process.communicate(timeout=30)[1]


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    running = Server("--port", "0", "--no-open", "--model", "minilm", "smollm2")
    yield running
    assert running.process.poll() is None, "the server has died"
    assert "Traceback" not in running.stop()


@pytest.fixture
def open_page(browser: Browser, server: Server) -> Iterator[Callable[..., Page]]:
    """Opens the page; it must neither print an error nor send a request to another server."""
    with watched_pages(browser, (1440, 1000), (server.url,)) as open_watched:

        def open_explorer(fragment: str = "", **options: Any) -> Page:
            return open_watched(server.url + fragment, "#app[data-ready]", **options)

        yield open_explorer


@pytest.fixture(scope="session")
def rec() -> Recording:
    return ll.look(SENTENCE)
