"""Pages in a real browser that may neither log an error nor request anything from elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page


@contextmanager
def watched_pages(
    browser: Browser, viewport: tuple[int, int], origins: tuple[str, ...]
) -> Iterator[Callable[..., Page]]:
    """A function that opens a URL and waits for the element `ready` on the page.

    Args:
        browser: where pages are opened.
        viewport: their width and height, unless `open_page` is given another.
        origins: what the URLs that a page may request begin with.
    """
    errors: list[str] = []
    requests: list[str] = []
    pages: list[Page] = []

    def record(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            errors.append(message.text)

    def open_page(url: str, ready: str, **options: Any) -> Page:
        size = {"width": viewport[0], "height": viewport[1]}
        page = browser.new_page(**{"viewport": size, "accept_downloads": True} | options)
        page.set_default_timeout(60_000)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", record)
        page.on("request", lambda request: requests.append(request.url))
        page.goto(url)
        page.locator(ready).first.wait_for(state="attached")
        pages.append(page)
        return page

    yield open_page
    for page in pages:
        page.close()
    assert errors == []
    assert [url for url in requests if not url.startswith((*origins, "data:", "blob:"))] == []
