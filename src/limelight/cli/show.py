"""`limelight show`: what a model attends to in a text."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol, runtime_checkable

import typer

if TYPE_CHECKING:
    from limelight.models.loading.pretrained import Model
    from limelight.seeing.recording.recording import Link, Recording
    from limelight.seeing.windows import Reading

EXAMPLE = "The animal didn't cross the street because it was too tired."


@runtime_checkable
class Report(Protocol):
    """Shows the current activity, and its progress if known."""

    def __call__(self, activity: str, done: int = 0, total: int | None = None) -> None: ...


def show(
    text: Annotated[
        str | None,
        typer.Argument(help="The text, or a picture's file; - reads stdin.", show_default=False),
    ] = None,
    file: Annotated[Path | None, typer.Option(help="Read the text from this file.")] = None,
    model: Annotated[str, typer.Option(help="minilm, smollm2, or the path of a model.")] = "minilm",
    layer: Annotated[int | None, typer.Option(help="Counted from 0.")] = None,
    head: Annotated[int | None, typer.Option(help="Counted from 0.")] = None,
    stride: Annotated[
        int | None,
        typer.Option(help="Read a long text in windows that start so many tokens apart."),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="The page to write.", show_default="attention.html")
    ] = None,
    png: Annotated[
        Path | None, typer.Option(help="Also draw the heat map: .png, .svg or .pdf.")
    ] = None,
    csv: Annotated[
        Path | None, typer.Option(help="Also write the recorded links, as .csv.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
) -> None:
    """Show what a model attends to in a text.

    Prints the most salient link and a heat map, and writes a page to explore.

    Without --layer and --head, the link shown is strong, reaches far, and is explained neither by a
    key that every token attends to nor by a head that always attends at the same offset: the
    largest (weight - what other tokens give to that key or at that offset) * log2(distance in
    words), background tokens left out.

    For a picture, --model is the folder of a Hugging Face vision transformer. What [CLS] attends to
    in the last layer, or in --layer and --head, is drawn over the picture as attention.png, and the
    patches with the largest rollout are listed.
    """
    if text is not None and _is_picture(text):
        _check_picture_options(file, stride, html, csv)
        _show_picture(Path(text), model, layer, head, png, json)
        return
    if html is None and not json:
        html = Path("attention.html")
    _check_files(html, png, csv)
    content = _read(text, file)

    from limelight.insight.salience import opening, salient

    loaded = _load(model)
    _check_numbers(loaded, layer, head)
    with _progress_bar(content) as report:
        reading = _record(loaded, content, stride, report)
        recording = reading.recording
        report("searching for salient links")
        link = salient(recording, layer, head)
        shown = opening(recording, layer, head) if link is None else link
        # Files first: they are complete even if the pipe is closed after the first line.
        paths = _write(recording, shown, html, png, csv, report)
    if json:
        _print_json(reading, link, shown, layer, head)
    else:
        _print(reading, link, shown, layer, head)
        for path in paths:
            print(f"Wrote {_printable(path)} ({path.stat().st_size / 1000:,.0f} kB).")


def _is_picture(text: str) -> bool:
    """Whether the argument is the path of an existing picture."""
    from limelight.cli.picture import SUFFIXES

    try:
        return text.lower().endswith(SUFFIXES) and Path(text).is_file()
    except OSError:  # a text too long to be a name
        return False


def _check_picture_options(
    file: Path | None, stride: int | None, html: Path | None, csv: Path | None
) -> None:
    from limelight.errors import OptionError

    options = {"--file": file, "--stride": stride, "--html": html, "--csv": csv}
    for option, value in options.items():
        if value is not None:
            raise OptionError(f"{option} is not for a picture: only --png names a file to write")


def _show_picture(
    path: Path, model: str, layer: int | None, head: int | None, png: Path | None, json: bool
) -> None:
    png = Path("attention.png") if png is None else png
    _check_files(None, png, None)

    from limelight.cli.picture import show_picture

    show_picture(path, model, layer, head, png, json)


def _printable(path: Path | str) -> str:
    """A path that is safe to print: it can hold any character but a zero byte."""
    from limelight.labels import visible

    return visible(str(path).encode("utf-8", "replace").decode(), 200)


def _check_files(html: Path | None, png: Path | None, csv: Path | None) -> None:
    """Raise for a file that cannot be written, before the model runs."""
    from limelight.errors import OptionError
    from limelight.files import check_writable

    for option, path, suffixes in (
        ("--html", html, (".html", ".htm")),
        ("--png", png, (".png", ".svg", ".pdf")),
        ("--csv", csv, (".csv",)),
    ):
        if path is None:
            continue
        if path.suffix.lower() not in suffixes:
            name = _printable(path.name)
            raise OptionError(f"{option} must end in {' or '.join(suffixes)}, found {name!r}")
        try:
            if not path.absolute().parent.is_dir():
                folder = _printable(path.parent)
                raise OptionError(f"{option} {_printable(path)}: there is no folder {folder}")
            check_writable(path)
        except OSError as error:
            raise OptionError(f"{option} {_printable(path)}: {error.strerror}") from error


def _read(text: str | None, file: Path | None) -> str:
    """The text of the argument, the file or standard input; the example on a bare terminal."""
    import sys

    from limelight.cli.streams import read_input, read_stdin
    from limelight.errors import OptionError

    if text is not None and file is not None:
        raise OptionError("expected TEXT or --file, found both")
    if file is not None:
        return read_input(file)
    if text == "-" or (text is None and (sys.stdin is None or not sys.stdin.isatty())):
        return read_stdin()
    # Bytes that are not UTF-8 arrive from the system as lone surrogates.
    if text is not None and any("\ud800" <= character <= "\udfff" for character in text):
        raise OptionError("TEXT is not UTF-8: convert it first")
    return EXAMPLE if text is None else text


def _load(name: str) -> Model:
    from limelight.errors import OptionError
    from limelight.models.loading.pretrained import load

    try:
        return load(name)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise OptionError(f"--model {_printable(name)}: cannot be read: {reason}") from error


def _check_numbers(model: Model, layer: int | None, head: int | None) -> None:
    """Raise unless the model has this layer and head, before a long text is read."""
    from limelight.errors import OptionError

    for name, number, size in (
        ("layer", layer, model.config.layers),
        ("head", head, model.config.heads),
    ):
        if number is not None and not 0 <= number < size:
            raise OptionError(
                f"{name} must be one of those recorded (0 to {size - 1}), found {number}"
            )


@contextmanager
def _progress_bar(content: str) -> Generator[Report]:
    """A progress bar while a long text is read."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeRemainingColumn())
    # Without a terminal, a bar would leave an empty line before an error.
    hidden = len(content) < 2000 or not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task("", total=None)

        def report(activity: str, done: int = 0, total: int | None = None) -> None:
            # Set directly, because update() takes None as "unchanged".
            bar.tasks[0].total = total
            bar.update(task, description=activity, completed=done)

        yield report


def _record(model: Model, content: str, stride: int | None, report: Report) -> Reading:
    from limelight.seeing.windows import read

    activity = "reading, layer by layer"
    report(activity)
    return read(model, content, stride, progress=lambda done, total: report(activity, done, total))


def _write(
    recording: Recording,
    shown: Link,
    html: Path | None,
    png: Path | None,
    csv: Path | None,
    report: Report,
) -> list[Path]:
    from limelight.views import save
    from limelight.views.table import write_csv

    for path in (html, png):
        if path is not None:
            report(f"writing {_printable(path.name)}")
            save(recording, path, shown.layer, shown.head)
    if csv is not None:
        report(f"writing {_printable(csv.name)}")
        write_csv(recording, csv)
    return [path for path in (html, png, csv) if path is not None]


def _print(
    reading: Reading, link: Link | None, shown: Link, layer: int | None, head: int | None
) -> None:
    from rich.console import Console

    from limelight.insight.salience import rule, salient_links
    from limelight.views import terminal
    from limelight.views.overview import overview

    console = Console(highlight=False, markup=False, emoji=False)
    recording = reading.recording
    console.print(terminal.sentence(recording, link, shown), style="bold")
    if link is not None and None in (layer, head):
        console.print(f"Chosen by {rule(layer, head)}.", style="dim")
    for line in _remarks(reading):
        console.print(line)
    console.print()
    mark = None if link is None else link.query
    console.print(terminal.heat_map(recording, shown.layer, shown.head, mark=mark))
    console.print("\nWorth a look:", style="bold")
    if (numbers := overview(recording)) is not None:
        console.print(terminal.quotes(recording, salient_links(recording, 8)))
        console.print(terminal.overview(recording, numbers))
    else:
        console.print(terminal.links(recording, salient_links(recording, 6)))
    console.print("\nAll heads, by their strongest link:", style="bold")
    console.print(terminal.all_heads(recording, (shown.layer, shown.head)))
    console.print()


def _remarks(reading: Reading) -> list[str]:
    """How much of the text was read, and whether the model understands it."""
    remarks: list[str] = []
    count = len(reading.windows)
    if count > 1:
        size = max(last - first for first, last in reading.windows)
        reason = f": the model was trained on {reading.trained}" if reading.trained else ""
        part = "" if reading.taken == reading.total else f"The first {reading.taken:,} of "
        remarks.append(
            f"{part}{reading.total:,} tokens in {count} windows of up to {size:,}{reason}."
        )
        if reading.taken < reading.total:
            remarks.append("A recording of more would not fit into memory.")
    elif reading.taken < reading.total:
        remarks.append(
            f"The first {reading.taken:,} of {reading.total:,} tokens: the model reads no more at "
            "once. --stride N reads all of them, in windows that start N tokens apart."
        )
    if reading.unknown * 5 >= reading.total:
        remarks.append(
            f"{reading.unknown} of {reading.total} tokens are unknown to this model ([UNK]): it "
            "does not know this script, and its attention means little."
        )
    if reading.recording.nonfinite:
        remarks.append(reading.recording.nonfinite)
    return remarks


def _print_json(
    reading: Reading, link: Link | None, shown: Link, layer: int | None, head: int | None
) -> None:
    from json import dumps

    from limelight.insight.salience import rule
    from limelight.views.table import as_json

    recording = reading.recording
    small = len(recording.queries) * len(recording.tokens) <= 1 << 20
    weights = recording.weights(shown.layer, shown.head).nan_to_num() if small else None
    document = as_json(recording) | {
        "window": {
            "total": reading.total,
            "taken": reading.taken,
            "windows": [list(window) for window in reading.windows],
        },
        "remarks": _remarks(reading),
        # null if no link goes beyond neighbouring words: then nothing was chosen by the rule
        "link": None if link is None else link._asdict(),
        "rule": None if link is None else rule(layer, head),
        "layer": shown.layer,
        "head": shown.head,
        # null for a text of more than about a thousand tokens
        "weights": None if weights is None else weights.tolist(),
    }
    # ASCII, so that no token can reach a terminal as a control sequence.
    print(dumps(document, allow_nan=False))
