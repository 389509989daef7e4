"""Pointing at the page's heat map."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page


def settled(page: Page) -> None:
    """Wait until the chosen head is unpacked and drawn."""
    page.locator("article:not([aria-busy])").first.wait_for(state="attached")


def tip_at_pixel(page: Page, row: int, column: int, rows: int, columns: int) -> str:
    """The tip of a cell where the cells are one image."""
    settled(page)
    box = page.locator("svg.heatmap image").bounding_box()
    assert box is not None
    x = box["x"] + (column + 0.5) * box["width"] / columns
    page.mouse.move(x, box["y"] + (row + 0.5) * box["height"] / rows)
    return page.locator(".tip").inner_text()


def tip_at(page: Page, row: int, column: int, columns: int) -> str:
    """Point at a cell and read its tip."""
    settled(page)
    page.locator("svg.heatmap .cells rect").nth(row * columns + column).hover(force=True)
    return page.locator(".tip").inner_text()
