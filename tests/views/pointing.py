"""Pointing at the page's heat map."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page


def said_at(page: Page, row: int, column: int, columns: int) -> str:
    """Point at a cell and read what is said about it."""
    page.locator("svg.heatmap .cells rect").nth(row * columns + column).hover(force=True)
    return page.locator(".tip").inner_text()
