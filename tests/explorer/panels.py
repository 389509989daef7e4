"""Helpers for tests of the panels."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from playwright.sync_api import Page


Opened = Callable[..., "Page"]


def drawn(page: Page, panel: str) -> None:
    page.locator(f"#stage > .{panel}[data-drawn]").wait_for()


def until(page: Page, expression: str) -> None:
    """Wait for it, asked from outside: the page's policy evaluates no strings."""
    for _ in range(600):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(100)
    pytest.fail(f"not within a minute: {expression}")


def three(value: torch.Tensor | float) -> str:
    return f"{float(value):.3f}"


def signed(value: float) -> str:
    return f"{value:.3f}".replace("-", "−")
