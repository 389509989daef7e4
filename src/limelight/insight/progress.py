"""A progress bar for long work."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

_Item = TypeVar("_Item")


def tracked(
    items: Iterable[_Item], title: str, total: int | None, *, progress: bool | None = None
) -> Iterator[_Item]:
    """The items one by one, with a progress bar on standard error while they are consumed.

    Args:
        items: what is iterated over.
        title: what the work is, in a word or two.
        total: how many there are, where that is known.
        progress: whether to show the bar; by default only in a terminal.
    """
    if not (sys.stderr.isatty() if progress is None else progress):
        yield from items
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        yield from bar.track(items, total=total, description=title)
