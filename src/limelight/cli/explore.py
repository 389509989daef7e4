"""`limelight explore`: the web page for exploring attention, served on this machine."""

from __future__ import annotations

import os
from typing import Annotated

import typer


def explore(
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="A model to offer: minilm, smollm2, or the path of one (repeatable).",
            show_default="minilm and smollm2, where installed",
        ),
    ] = None,
    more: Annotated[
        list[str] | None, typer.Argument(help="Further models.", show_default=False)
    ] = None,
    port: Annotated[int, typer.Option(help="0 takes any free port.")] = 8765,
    host: Annotated[
        str, typer.Option(help="Any other address requires the token in the printed URL.")
    ] = "127.0.0.1",
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open a browser.")] = False,
) -> None:
    """Explore attention in the browser while you type."""
    # Threads that spin while they wait take the cores from the browser, and on a busy machine from
    # one another: a sentence then takes ten times as long. OpenMP reads this when torch loads.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")

    from limelight.explorer.model_store import ModelStore, installed_models
    from limelight.explorer.server import serve

    names = [*(model or ()), *(more or ())] or installed_models()
    server = serve(ModelStore(names), host=host, port=port)
    print(f"Explore attention at {server.url}\nPress Ctrl-C to stop.", flush=True)
    server.run(open_browser=not no_open)
