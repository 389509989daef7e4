"""`limelight info`."""

from __future__ import annotations

import re
from typing import Annotated

import typer


def info(
    model: Annotated[
        str,
        typer.Argument(help="minilm, smollm2, a folder, a checkpoint, or a GGUF file."),
    ],
    json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Show a model's architecture and where each setting comes from.

    Only the description is read, not the weights, so this is quick for a model of any size.
    """
    from limelight.models.loading.describe import describe

    about = describe(model)
    if json:
        from json import dumps

        print(dumps(about.as_dict(), ensure_ascii=False, indent=2))
        return
    from limelight.cli.streams import one_line

    formats = ", ".join(f"{count} {kind}" for kind, count in about.formats.items())
    same = about.model_type == re.sub(r"\W", "", about.family).lower()
    called = "" if same else f", called {one_line(about.model_type)}"
    print(f"{one_line(about.name)}: {about.family} {about.config.kind}{called}")
    print(f"  {one_line(about.path)}")
    print(f"  {about.parameters:,} parameters in {about.tensors} tensors ({formats})")
    plain = about.as_dict()["config"]
    values = {name: _short(plain[name]["value"]) for name in plain}
    first, second = max(map(len, values)), max(map(len, values.values()))
    for name, value in values.items():
        print(f"  {name:<{first}}  {value:<{second}}  {plain[name]['source']}")


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, dict):
        return str(next(iter(value.values()), ""))
    text = str(value)
    return text if len(text) <= 24 else text[:23] + "…"
