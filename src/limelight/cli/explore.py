"""`limelight explore`: the page on which attention is looked at, from a server on this machine."""

from __future__ import annotations

import os
from typing import Annotated

import typer


def explore(
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="A model to offer: minilm, smollm2, or the path of one; may be given repeatedly.",
            show_default="minilm and smollm2, where installed",
        ),
    ] = None,
    more: Annotated[
        list[str] | None, typer.Argument(help="Further models.", show_default=False)
    ] = None,
    port: Annotated[int, typer.Option(help="0 takes any that is free.")] = 8765,
    host: Annotated[
        str, typer.Option(help="Another address needs the token in the printed URL.")
    ] = "127.0.0.1",
    no_open: Annotated[bool, typer.Option("--no-open", help="Open no browser.")] = False,
) -> None:
    """Explore attention in the browser while you type."""
    # Threads that wait by spinning take the cores from the browser, and from one another where the
    # machine is busy: a sentence then takes ten times as long. OpenMP reads this when torch loads.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")

    from limelight.explorer.model_store import ModelStore, installed_models
    from limelight.explorer.server import serve

    names = [*(model or ()), *(more or ())] or installed_models()
    server = serve(ModelStore(names), host=host, port=port)
    print(f"Explore attention at {server.url}\nCtrl-C ends it.", flush=True)
    server.run(open_browser=not no_open)
