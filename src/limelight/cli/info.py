"""`limelight info`: a model's architecture, from its files alone."""

from __future__ import annotations

import re
from typing import Annotated

import typer


def info(
    model: Annotated[
        str,
        typer.Argument(help="minilm, smollm2, a folder, a checkpoint, or a GGUF file."),
    ],
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
) -> None:
    """Show a model's architecture and where each setting comes from.

    The weights are not read, so this is fast for a model of any size.
    """
    from limelight.models.loading.describe import describe

    description = describe(model)
    if json:
        from json import dumps

        print(dumps(description.as_dict(), ensure_ascii=False, indent=2))
        return
    from limelight.cli.streams import one_line

    formats = ", ".join(f"{count} {kind}" for kind, count in description.formats.items())
    same = description.model_type == re.sub(r"\W", "", description.family).lower()
    called = "" if same else f", called {one_line(description.model_type)}"
    print(f"{one_line(description.name)}: {description.family} {description.config.kind}{called}")
    print(f"  {one_line(description.path)}")
    print(f"  {description.parameters:,} parameters in {description.tensors} tensors ({formats})")
    settings = description.as_dict()["config"]
    values = {name: _shortened(settings[name]["value"]) for name in settings}
    name_width, value_width = max(map(len, values)), max(map(len, values.values()))
    for name, value in values.items():
        print(f"  {name:<{name_width}}  {value:<{value_width}}  {settings[name]['source']}")


def _shortened(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, dict):
        return str(next(iter(value.values()), ""))
    text = str(value)
    return text if len(text) <= 24 else text[:23] + "…"
