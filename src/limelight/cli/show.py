"""`limelight show`: what a model attends to in a text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from limelight.seeing.recording import Link, Recording
    from limelight.seeing.windows import Window

EXAMPLE = "The animal didn't cross the street because it was too tired."


def show(
    text: Annotated[
        str | None, typer.Argument(help="The text; - reads standard input.", show_default=False)
    ] = None,
    file: Annotated[Path | None, typer.Option(help="Read the text from this file.")] = None,
    model: Annotated[str, typer.Option(help="minilm, smollm2, or the path of a model.")] = "minilm",
    layer: Annotated[int | None, typer.Option(help="Counted from 0.")] = None,
    head: Annotated[int | None, typer.Option(help="Counted from 0.")] = None,
    stride: Annotated[
        int | None,
        typer.Option(help="Look at a long text in windows that begin so many tokens apart."),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="The page to write.", show_default="attention.html")
    ] = None,
    png: Annotated[
        Path | None, typer.Option(help="Also draw the heat map: .png, .svg or .pdf.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
) -> None:
    """Show what a model attends to in a text: the most telling link, a heat map, and a page.

    Without --layer and --head the link is chosen that is strong, reaches far, and goes to a
    token that is not looked at by everyone: greatest (weight − what the token gets on average)
    × log2(distance in words), sinks and punctuation set apart.
    """
    _check_endings(html, png)
    words = _read(text, file)

    from limelight.models.pretrained import load
    from limelight.seeing.windows import look_in_windows
    from limelight.views import save

    found = look_in_windows(load(model), words, stride)
    best, link = _best(found, layer, head)
    if json:
        _print_json(best, link, len(found))
    else:
        html = html or Path("attention.html")
        _print(best, link, found, chosen=layer is None or head is None)
    for path in (html, png):
        if path is not None:
            save(best.recording, path, link.layer, link.head)
            if not json:
                typer.echo(f"Wrote {path} ({path.stat().st_size / 1000:,.0f} kB).")


def _check_endings(html: Path | None, png: Path | None) -> None:
    """Say what is wrong with a file name before the model runs, not after."""
    from limelight.shapes import OptionError

    for option, path, known in (
        ("--html", html, (".html", ".htm")),
        ("--png", png, (".png", ".svg", ".pdf")),
    ):
        if path is not None and path.suffix.lower() not in known:
            raise OptionError(f"{option} must end in {' or '.join(known)}, found {path.name!r}")
        if path is not None and not path.absolute().parent.is_dir():
            raise OptionError(f"{option} {path}: there is no folder {path.parent}")


def _read(text: str | None, file: Path | None) -> str:
    """The text from where the person said it is."""
    import sys

    from limelight.shapes import OptionError

    if text is not None and file is not None:
        raise OptionError("give a TEXT or --file, found both")
    if file is not None:
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise OptionError(f"--file {file}: cannot be read: {reason}") from error
    if text == "-" or (text is None and not sys.stdin.isatty()):
        return sys.stdin.read()
    return EXAMPLE if text is None else text


def _best(found: list[Window], layer: int | None, head: int | None) -> tuple[Window, Link]:
    """The window with the most telling link, and that link."""
    from limelight.views.telling import opening, telling

    links = [opening(window.recording, layer, head) for window in found]
    values = [telling(one.recording, link) for one, link in zip(found, links, strict=True)]
    place = values.index(max(values))
    return found[place], links[place]


def _said(recording: Recording, link: Link) -> str:
    from limelight.views.labels import visible
    from limelight.views.telling import telling

    if telling(recording, link) == 0:
        return f"Layer {link.layer} head {link.head}: no link beyond neighbouring words."
    asker = visible(recording.queries[link.query].text, 40)
    answer = visible(recording.tokens[link.key].text, 40)
    return f'Layer {link.layer} head {link.head} ties "{asker}" to "{answer}" ({link.weight:.3f}).'


def _print(best: Window, link: Link, found: list[Window], *, chosen: bool) -> None:
    from rich.console import Console

    from limelight.views import terminal
    from limelight.views.telling import RULE

    console = Console(highlight=False, markup=False, emoji=False)
    recording = best.recording
    console.print(_said(recording, link), style="bold")
    if chosen:
        console.print(f"Chosen by {RULE}.", style="dim")
    for line in _extent(best, found):
        console.print(line)
    console.print()
    console.print(terminal.heat_map(recording, link.layer, link.head, mark=link.query))
    console.print("\nStrongest links:", style="bold")
    console.print(terminal.strongest_links(recording, 6))
    console.print("\nAll heads, by their strongest weight:", style="bold")
    console.print(terminal.all_heads(recording, (link.layer, link.head)))
    console.print()


def _extent(best: Window, found: list[Window]) -> list[str]:
    """How much of the text was looked at, where that is not all of it in one piece."""
    if len(found) > 1:
        return [
            f"{best.total:,} tokens in {len(found)} windows; shown: "
            f"tokens {best.first:,} to {best.last - 1:,}."
        ]
    if best.last < best.total:
        return [
            f"The first {best.last:,} of {best.total:,} tokens: the model takes no more at once. "
            "--stride N looks at all of them, in windows that begin N tokens apart."
        ]
    return []


def _print_json(best: Window, link: Link, windows: int) -> None:
    from json import dumps

    from limelight.views.telling import RULE

    recording = best.recording
    strongest = [one._asdict() for one in recording.strongest(10).links]
    found = {
        "model": recording.model,
        "text": recording.text,
        "tokens": [token.text for token in recording.tokens],
        "window": {
            "first": best.first,
            "last": best.last,
            "total": best.total,
            "windows": windows,
        },
        "link": {
            **link._asdict(),
            "asks": recording.queries[link.query].text,
            "answers": recording.tokens[link.key].text,
        },
        "rule": RULE,
        "strongest": strongest,
        "weights": recording.weights(link.layer, link.head).tolist(),
    }
    # ASCII, so that no token can reach a terminal as anything but text
    typer.echo(dumps(found))
