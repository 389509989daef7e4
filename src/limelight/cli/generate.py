"""`limelight generate`: text from a language model, as it is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from limelight.models.generation.beam import Beam
    from limelight.models.generation.reader import Writer
    from limelight.models.generation.sampling import Sampling


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
    json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
) -> None:
    """Continue a prompt with a language model, token by token.

    The prompt is continued as it is; with --chat it becomes a question to the assistant. An
    encoder–decoder writes its own text to the prompt, which is not repeated before it.
    """
    from limelight.models.decoder import Decoder
    from limelight.models.generation.beam import Beam
    from limelight.models.generation.generate import check_options, stream
    from limelight.models.generation.generate import generate as write
    from limelight.models.generation.sampling import Sampling

    # Options are checked before the model is loaded.
    drawing = Sampling(temperature, top_k, top_p, repetition_penalty)
    how = drawing if beams == 1 else _beam(beams, drawing, seed)
    stops = stop or []
    check_options(max_tokens=max_tokens, how=how, stop=stops, seed=seed)
    writer = _writer(model)
    asked = _asked(writer, prompt) if chat else prompt
    if json:
        from json import dumps

        answer = write(writer, asked, max_tokens=max_tokens, how=how, stop=stops, seed=seed)
        found = {"prompt": asked, "text": answer.text, "ids": answer.ids, "ended": answer.ended}
        print(dumps(found, ensure_ascii=False))
        return
    # Asked for before anything is printed: a prompt that does not fit the model is refused here.
    pieces = (
        iter([write(writer, asked, max_tokens=max_tokens, how=how, stop=stops).text])
        if isinstance(how, Beam)
        else stream(writer, asked, max_tokens=max_tokens, how=how, stop=stops, seed=seed)
    )
    if isinstance(writer, Decoder) and not chat:
        print(prompt, end="", flush=True)
    for piece in pieces:
        print(piece, end="", flush=True)
    print()


def _beam(beams: int, drawing: Sampling, seed: int | None) -> Beam:
    """Beams follow the likeliest continuations: what says how to draw has no meaning there."""
    from dataclasses import fields

    from limelight.errors import OptionError
    from limelight.models.generation.beam import Beam

    given = [one.name for one in fields(drawing) if getattr(drawing, one.name) != one.default]
    given += [] if seed is None else ["seed"]
    if given:
        options = ", ".join("--" + name.replace("_", "-") for name in given)
        raise OptionError(f"--beams {beams} draws nothing: it goes without {options}")
    return Beam(beams)


def _writer(model: str) -> Writer:
    from limelight.errors import OptionError
    from limelight.models.encoder import Encoder
    from limelight.models.loading.pretrained import load

    found = load(model)
    if isinstance(found, Encoder):
        raise OptionError(f"model {model!r} is an encoder, which writes no text")
    return found


def _asked(writer: Writer, prompt: str) -> str:
    from limelight.errors import UnavailableError

    if writer.tokens is None:
        raise UnavailableError("this model came without a tokenizer")
    return writer.tokens.chat([{"role": "user", "content": prompt}])
