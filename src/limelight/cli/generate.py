"""`limelight generate`: text from a language model, as it is written."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from limelight.models.generation.beam import Beam
    from limelight.models.generation.generate import Written
    from limelight.models.generation.reader import Writer
    from limelight.models.generation.sampling import Sampling
    from limelight.seeing.recording.recording import Link


def generate(
    model: Annotated[
        str,
        typer.Argument(help="smollm2, a checkpoint or the folder of its run, or a GGUF file."),
    ],
    prompt: Annotated[str, typer.Argument(help="The text to continue, or to translate.")],
    max_tokens: Annotated[int, typer.Option(help="How many tokens to write at most.")] = 64,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token.")] = 0.0,
    top_k: Annotated[int | None, typer.Option(help="Draw among the k likeliest only.")] = None,
    top_p: Annotated[float, typer.Option(help="Draw among the likeliest that reach p.")] = 1.0,
    repetition_penalty: Annotated[float, typer.Option(help="Above 1: repeat less.")] = 1.0,
    beams: Annotated[int, typer.Option(help="Follow so many continuations at once.")] = 1,
    stop: Annotated[
        list[str] | None, typer.Option(help="End before this text (repeatable).")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Makes drawing repeatable.")] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Ask by the model's chat template.")] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show what each new token attended to.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
) -> None:
    """Continue a prompt with a language model, token by token.

    The prompt is continued as it is; with --chat it becomes a question to the assistant. An
    encoder–decoder writes its own text to the prompt, which is not repeated before it.

    With --watch the tokens that each new token looked at most stand under the text, each with the
    head that gave it most.
    """
    from limelight.errors import OptionError
    from limelight.models.decoder import Decoder
    from limelight.models.generation.beam import Beam
    from limelight.models.generation.generate import check_options
    from limelight.models.generation.generate import generate as write
    from limelight.models.generation.sampling import Sampling
    from limelight.seeing.stream import stream

    # Options are checked before the model is loaded.
    drawing = Sampling(temperature, top_k, top_p, repetition_penalty)
    how = drawing if beams == 1 else _beam(beams, drawing, seed)
    stops = stop or []
    check_options(max_tokens=max_tokens, how=how, stop=stops, seed=seed)
    if watch and isinstance(how, Beam):
        raise OptionError(
            f"--watch goes without --beams {beams}: which beam is best is known only at the end"
        )
    writer = _writer(model)
    request = _chat_prompt(writer, prompt) if chat else prompt
    if watch:
        shown = "" if chat or not isinstance(writer, Decoder) else prompt
        _write_watched(writer, request, shown, max_tokens, drawing, stops, seed, json)
        return
    if json:
        from json import dumps

        answer = write(writer, request, max_tokens=max_tokens, how=how, stop=stops, seed=seed)
        document = {
            "prompt": request,
            "text": answer.text,
            "ids": answer.ids,
            "ended": answer.ended,
        }
        print(dumps(document, ensure_ascii=False))
        return
    # Before anything is printed: a prompt that does not fit the model is refused here.
    pieces = (
        iter([write(writer, request, max_tokens=max_tokens, how=how, stop=stops).text])
        if isinstance(how, Beam)
        else stream(writer, request, max_tokens=max_tokens, how=how, stop=stops, seed=seed)
    )
    if isinstance(writer, Decoder) and not chat:
        print(prompt, end="", flush=True)
    for piece in pieces:
        print(piece, end="", flush=True)
    print()


WATCHED = 3
"""Links that are shown of each new token."""


def _write_watched(
    writer: Writer,
    prompt: str,
    shown: str,
    max_tokens: int,
    how: Sampling,
    stop: list[str],
    seed: int | None,
    json: bool,
) -> None:
    """Print the text as it is written, then a line for each new token."""
    from limelight.insight.top_keys import top_keys
    from limelight.ops.lens.spec import Lens
    from limelight.seeing.stream import write_seen

    pairs = write_seen(
        writer, prompt, lens=Lens(top=8, keep=False),
        max_tokens=max_tokens, how=how, stop=stop, seed=seed,
    )  # fmt: skip
    written: list[Written] = []
    seen: list[tuple[str, list[Link]]] = []
    if not json:
        print(shown, end="", flush=True)
    for piece, recording in pairs:
        if not json:
            print(piece.text, end="", flush=True)
        written.append(piece)
        seen.append((recording.queries[0].text, top_keys(recording, WATCHED)))
    if json:
        _print_json(prompt, written, seen)
    else:
        print()
        _print_seen(seen)


def _print_seen(seen: list[tuple[str, list[Link]]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from limelight.labels import visible

    arrow = "←" if (sys.stdout.encoding or "").lower().startswith("utf") else "<-"
    table = Table(box=None, show_header=False, padding=(0, 1), pad_edge=False)
    for token, links in seen:
        answers = (
            f"{visible(link.key_token, 18)} {link.weight:.2f} ({link.layer}.{link.head})"
            for link in links
        )
        table.add_row(Text(visible(token, 18), style="bold"), arrow, *map(Text, answers))
    console = Console(highlight=False, markup=False, emoji=False)
    console.print("\nWhat each token attended to (layer.head):", style="dim")
    console.print(table)


def _print_json(prompt: str, written: list[Written], seen: list[tuple[str, list[Link]]]) -> None:
    from json import dumps

    answer = {
        "prompt": prompt,
        "text": "".join(piece.text for piece in written),
        "ids": [piece.token for piece in written],
        "ended": written[-1].ended if written else "length",
        "attended": [
            {"token": token, "links": [link._asdict() for link in links]} for token, links in seen
        ],
    }
    print(dumps(answer, ensure_ascii=False))


def _beam(beams: int, drawing: Sampling, seed: int | None) -> Beam:
    """Beams follow the likeliest continuations: options of sampling do not apply."""
    from dataclasses import fields

    from limelight.errors import OptionError
    from limelight.models.generation.beam import Beam

    changed = [
        option.name for option in fields(drawing) if getattr(drawing, option.name) != option.default
    ]
    changed += [] if seed is None else ["seed"]
    if changed:
        options = ", ".join("--" + name.replace("_", "-") for name in changed)
        raise OptionError(f"--beams {beams} draws nothing: it goes without {options}")
    return Beam(beams)


def _writer(model: str) -> Writer:
    from limelight.errors import OptionError
    from limelight.models.decoder import Decoder
    from limelight.models.loading.pretrained import load
    from limelight.models.transformer import Transformer

    loaded = load(model)
    if not isinstance(loaded, Decoder | Transformer):
        raise OptionError(f"model {model!r} is an encoder, which writes no text")
    return loaded


def _chat_prompt(writer: Writer, prompt: str) -> str:
    from limelight.errors import UnavailableError

    if writer.tokens is None:
        raise UnavailableError("this model came without a tokenizer")
    return writer.tokens.chat([{"role": "user", "content": prompt}])
