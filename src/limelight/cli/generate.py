"""`limelight generate`: text from a language model, printed as it is generated."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from limelight.models.generation.batch import GenerativeModel
    from limelight.models.generation.beam import Beam
    from limelight.models.generation.generate import Generated, GeneratedToken
    from limelight.models.generation.sampling import Sampling
    from limelight.seeing.recording.recording import Link

LINKS = 3
"""Links that --watch shows for each new token."""


def generate(
    model: Annotated[
        str,
        typer.Argument(help="smollm2, a checkpoint or the folder of its run, or a GGUF file."),
    ],
    prompt: Annotated[str, typer.Argument(help="The text to continue, or to translate.")],
    max_tokens: Annotated[int, typer.Option(help="How many tokens to generate at most.")] = 64,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token.")] = 0.0,
    top_k: Annotated[int | None, typer.Option(help="Draw among the k likeliest only.")] = None,
    top_p: Annotated[float, typer.Option(help="Draw among the likeliest that reach p.")] = 1.0,
    repetition_penalty: Annotated[float, typer.Option(help="Above 1: repeat less.")] = 1.0,
    beams: Annotated[int, typer.Option(help="The width of a beam search.")] = 1,
    stop: Annotated[
        list[str] | None, typer.Option(help="End before this text (repeatable).")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Makes sampling reproducible.")] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Apply the model's chat template.")] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show what each new token attended to.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Continue a prompt with a language model, token by token.

    The prompt is continued as it is; with --chat it becomes a message to the assistant. An
    encoder–decoder takes the prompt as its source and prints the target alone.

    With --watch a table follows the text: the tokens that each new token attended to most, each
    with the head that gave it the largest weight.
    """
    from limelight.errors import OptionError
    from limelight.models.decoder import Decoder
    from limelight.models.generation.beam import Beam
    from limelight.models.generation.generate import check_options
    from limelight.models.generation.generate import generate as generate_text
    from limelight.models.generation.sampling import Sampling

    # Options are checked before the model is loaded.
    sampling = Sampling(temperature, top_k, top_p, repetition_penalty)
    how = sampling if beams == 1 else _beam(beams, sampling, seed)
    options: dict[str, Any] = {
        "max_tokens": max_tokens, "how": how, "stop": stop or [], "seed": seed,
    }  # fmt: skip
    check_options(**options)
    if watch and isinstance(how, Beam):
        raise OptionError(
            f"--watch does not work with --beams {beams}: which beam is best is known only at the "
            "end"
        )
    loaded = _load(model)
    request = _chat_prompt(loaded, prompt) if chat else prompt
    # What the output begins with: the text that it continues.
    shown = prompt if isinstance(loaded, Decoder) and not chat else ""
    if watch:
        _generate_watched(loaded, request, shown, options, json=json)
    elif json:
        _print_json(request, generate_text(loaded, request, **options))
    else:
        _print_text(loaded, request, shown, options)


def _beam(beams: int, sampling: Sampling, seed: int | None) -> Beam:
    """A beam search, which samples nothing: raises for options of sampling."""
    from dataclasses import fields

    from limelight.errors import OptionError
    from limelight.models.generation.beam import Beam

    changed = [
        option.name
        for option in fields(sampling)
        if getattr(sampling, option.name) != option.default
    ]
    changed += [] if seed is None else ["seed"]
    if changed:
        options = ", ".join("--" + name.replace("_", "-") for name in changed)
        raise OptionError(f"--beams {beams} samples nothing: leave out {options}")
    return Beam(beams)


def _load(model: str) -> GenerativeModel:
    from limelight.errors import OptionError
    from limelight.models.decoder import Decoder
    from limelight.models.loading.pretrained import load
    from limelight.models.transformer import Transformer

    loaded = load(model)
    if not isinstance(loaded, Decoder | Transformer):
        raise OptionError(f"model {model!r} is an encoder, which generates no text")
    return loaded


def _chat_prompt(model: GenerativeModel, prompt: str) -> str:
    from limelight.errors import UnavailableError

    if model.tokens is None:
        raise UnavailableError("this model came without a tokenizer")
    return model.tokens.chat([{"role": "user", "content": prompt}])


def _print_text(model: GenerativeModel, prompt: str, shown: str, options: dict[str, Any]) -> None:
    """Print the text as it is generated; that of a beam search at its end."""
    from limelight.models.generation.beam import Beam
    from limelight.models.generation.generate import generate as generate_text
    from limelight.seeing.stream import stream

    # Before anything is printed: a prompt that does not fit the model raises here.
    pieces = (
        iter([generate_text(model, prompt, **options).text])
        if isinstance(options["how"], Beam)
        else stream(model, prompt, **options)
    )
    print(shown, end="", flush=True)
    for piece in pieces:
        print(piece, end="", flush=True)
    print()


def _generate_watched(
    model: GenerativeModel, prompt: str, shown: str, options: dict[str, Any], *, json: bool
) -> None:
    """Print the text as it is generated, then what each token attended to; or both as JSON."""
    from limelight.insight.top_keys import top_keys
    from limelight.models.generation.generate import Generated
    from limelight.ops.lens.spec import Lens
    from limelight.seeing.stream import write_seen

    pairs = write_seen(model, prompt, lens=Lens(top=8, keep=False), **options)
    tokens: list[GeneratedToken] = []
    attended: list[tuple[str, list[Link]]] = []
    if not json:
        print(shown, end="", flush=True)
    for token, recording in pairs:
        if not json:
            print(token.text, end="", flush=True)
        tokens.append(token)
        attended.append((recording.queries[0].text, top_keys(recording, LINKS)))
    if json:
        text = "".join(token.text for token in tokens)
        ended = (tokens[-1].ended if tokens else None) or "length"
        _print_json(prompt, Generated(text, [token.token for token in tokens], ended), attended)
    else:
        print()
        _print_attended(attended)


def _print_attended(attended: list[tuple[str, list[Link]]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from limelight.labels import visible

    arrow = "←" if (sys.stdout.encoding or "").lower().startswith("utf") else "<-"
    table = Table(box=None, show_header=False, padding=(0, 1), pad_edge=False)
    for token, links in attended:
        cells = (
            f"{visible(link.key_token, 18)} {link.weight:.2f} ({link.layer}.{link.head})"
            for link in links
        )
        table.add_row(Text(visible(token, 18), style="bold"), arrow, *map(Text, cells))
    console = Console(highlight=False, markup=False, emoji=False)
    console.print("\nWhat each token attended to (layer.head):", style="dim")
    console.print(table)


def _print_json(
    prompt: str, result: Generated, attended: list[tuple[str, list[Link]]] | None = None
) -> None:
    from json import dumps

    document: dict[str, Any] = {
        "prompt": prompt,
        "text": result.text,
        "ids": result.ids,
        "ended": result.ended,
    }
    if attended is not None:
        document["attended"] = [
            {"token": token, "links": [link._asdict() for link in links]}
            for token, links in attended
        ]
    print(dumps(document, ensure_ascii=False))
