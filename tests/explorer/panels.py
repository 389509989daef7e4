"""Helpers for tests of the panels."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from playwright.sync_api import Page


OpenPage = Callable[..., "Page"]


def wait_drawn(page: Page, panel: str) -> None:
    page.locator(f"#stage > .{panel}[data-drawn]").wait_for()


def wait_until(page: Page, expression: str) -> None:
    """Poll an expression; `page.wait_for_function` is no use, as the page's policy forbids eval."""
    for _ in range(600):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(100)
    pytest.fail(f"not within a minute: {expression}")


def decimals(value: torch.Tensor | float) -> str:
    """A number as the page prints it: three decimals, a minus sign, and no negative zero."""
    text = f"{float(value):.3f}"
    return text.replace("-", "") if float(text) == 0 else text.replace("-", "−")


def wait_story(page: Page, text: str) -> None:
    """Wait until the sentence below the tokens contains a text."""
    page.locator(".story", has_text=text).first.wait_for()
