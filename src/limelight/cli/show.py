"""`limelight show`: what a model attends to in a text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from limelight.seeing.recording.recording import Link, Recording
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
    """Show what a model attends to in a text: the most salient link, a heat map, and a page.

    Without --layer and --head the link is chosen that is strong, reaches far, and is explained
    neither by a token that everyone looks at nor by a head that always looks as far back:
    greatest (weight - what other tokens give to that key or at that offset) * log2(distance in
    words), background tokens left out.
    """
    if html is None and not json:
        html = Path("attention.html")
    _check_files(html, png)
    words = _read(text, file)

    from limelight.insight.salience import opening, rule
    from limelight.models.loading.pretrained import load
    from limelight.seeing.windows import look_in_windows
    from limelight.views import save

    found = look_in_windows(load(model), words, stride)
    best, link = _best(found, layer, head)
    shown = opening(best.recording, layer, head) if link is None else link
    if json:
        _print_json(best, link, shown, len(found), rule(layer, head))
    else:
        _print(best, link, shown, found, rule(layer, head) if None in (layer, head) else None)
    for path in (html, png):
        if path is not None:
            save(best.recording, path, shown.layer, shown.head)
            if not json:
                print(f"Wrote {path} ({path.stat().st_size / 1000:,.0f} kB).")


def _check_files(html: Path | None, png: Path | None) -> None:
    """Say what is wrong with a file before the model runs, not after."""
    from limelight.errors import OptionError
    from limelight.files import check_writable

    for option, path, known in (
        ("--html", html, (".html", ".htm")),
        ("--png", png, (".png", ".svg", ".pdf")),
    ):
        if path is None:
            continue
        if path.suffix.lower() not in known:
            raise OptionError(f"{option} must end in {' or '.join(known)}, found {path.name!r}")
        if not path.absolute().parent.is_dir():
            raise OptionError(f"{option} {path}: there is no folder {path.parent}")
        check_writable(path)


def _read(text: str | None, file: Path | None) -> str:
    """The text from where the person said it is."""
    import sys

    from limelight.errors import OptionError

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


def _best(found: list[Window], layer: int | None, head: int | None) -> tuple[Window, Link | None]:
    """The window with the most salient link, and that link, where there is one."""
    from limelight.insight.salience import salience, salient

    links = [salient(window.recording, layer, head) for window in found]
    values = [
        0.0 if link is None else salience(window.recording, link)
        for window, link in zip(found, links, strict=True)
    ]
    place = values.index(max(values))
    return found[place], links[place]


def _said(recording: Recording, link: Link | None, shown: Link) -> str:
    from limelight.labels import visible

    where = f"Layer {shown.layer} head {shown.head}"
    if link is None:
        return f"{where}: no link beyond neighbouring words."
    asker = visible(recording.queries[link.query].text, 40)
    answer = visible(recording.tokens[link.key].text, 40)
    return f'{where} ties "{asker}" to "{answer}" ({link.weight:.3f}).'


def _print(
    best: Window, link: Link | None, shown: Link, found: list[Window], chosen_by: str | None
) -> None:
    from rich.console import Console

    from limelight.insight.salience import salient_links
    from limelight.views import terminal

    console = Console(highlight=False, markup=False, emoji=False)
    recording = best.recording
    console.print(_said(recording, link, shown), style="bold")
    if chosen_by is not None and link is not None:
        console.print(f"Chosen by {chosen_by}.", style="dim")
    for line in _extent(best, found):
        console.print(line)
    console.print()
    mark = None if link is None else link.query
    console.print(terminal.heat_map(recording, shown.layer, shown.head, mark=mark))
    console.print("\nWorth a look:", style="bold")
    console.print(terminal.links(recording, salient_links(recording, 6)))
    console.print("\nAll heads, by their strongest link:", style="bold")
    console.print(terminal.all_heads(recording, (shown.layer, shown.head)))
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


def _print_json(best: Window, link: Link | None, shown: Link, windows: int, rule: str) -> None:
    from json import dumps

    recording = best.recording
    told = None
    if link is not None:
        asks, answers = recording.queries[link.query].text, recording.tokens[link.key].text
        told = {**link._asdict(), "asks": asks, "answers": answers}
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
        # null where no link goes beyond neighbouring words: then nothing was chosen by the rule
        "link": told,
        "rule": None if link is None else rule,
        "strongest": [one._asdict() for one in recording.strongest(10).links],
        "layer": shown.layer,
        "head": shown.head,
        "weights": recording.weights(shown.layer, shown.head).tolist(),
    }
    # ASCII, so that no token can reach a terminal as anything but text
    print(dumps(found))
