"""Type checks at run time, reproducible random numbers, and the fixtures that all tests share."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import hypothesis
import jaxtyping
import pytest
import torch
from jaxtyping import install_import_hook

if TYPE_CHECKING:
    from playwright.sync_api import Browser

install_import_hook("limelight", "beartype.beartype")

hypothesis.settings.register_profile(
    "limelight",
    deadline=None,  # the speed of a shared machine varies
    derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("limelight")


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _own_event_loop(request: pytest.FixtureRequest) -> Iterator[None]:
    """Playwright leaves its event loop running; only the tests of a page may see it."""
    loop = asyncio._get_running_loop()
    if "browser" not in request.fixturenames:
        asyncio._set_running_loop(None)
    yield
    asyncio._set_running_loop(loop or asyncio._get_running_loop())


@pytest.fixture
def untyped() -> Iterator[None]:
    """Without type checks at run time, so that wrong types raise our own errors as for callers."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One real browser for all tests of a process: a second would collide with its event loop."""
    names = ("chromium", "chromium-browser", "google-chrome")
    program = next((path for name in names if (path := shutil.which(name))), None)
    if program is None:
        pytest.fail("no Chromium on this machine: `make test` installs it")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield browser
        browser.close()
