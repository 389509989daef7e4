"""The addresses under /api/, a panel at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response

from limelight.explorer import (
    asks,
    attention,
    cause,
    generation,
    long,
    meaning,
    roles,
    steps,
    takeaway,
    why,
)
from limelight.explorer.desk import Desk
from limelight.explorer.work import Turn
from limelight.seeing.recording.recording import Link, Recording

Told = dict[int | str, Any]
"""What the OpenAPI document says of the answers, by status."""


def add_routes(app: FastAPI, desk: Desk, errors: Told, frames: Told, events: Told) -> None:
    """Every question the page has."""

    @app.post("/api/look", responses=frames, response_class=Response)
    async def look(request: Request, ask: asks.Ask) -> Response:
        """What every head attends to in a text."""
        return await desk.frame(
            request, ask, lambda rec, _: attention.text_frame(rec, desk.library.kind(ask.model))
        )

    @app.post("/api/read", responses=events, response_class=Response)
    async def read(ask: asks.Ask) -> Response:
        """Reads a long text, layer by layer; what is asked about it afterwards is there at once."""

        def work(turn: Turn) -> dict[str, Any]:
            return {"tokens": len(desk.library.recording(ask.model, ask.text, turn).tokens)}

        return await desk.events(work)

    def of_a_head(name: str, make: Callable[[Recording, int, int], bytes]) -> None:
        """An address that answers with a frame of one head; the document says what `make` does."""

        async def answer(request: Request, ask: asks.AskHead) -> Response:
            return await desk.frame(request, ask, lambda rec, _: make(rec, ask.layer, ask.head))

        route = app.post(f"/api/{name}", name=name, description=make.__doc__, responses=frames,
                         response_class=Response)  # fmt: skip
        route(answer)

    of_a_head("head", attention.head_frame)
    of_a_head("steps", steps.steps_frame)
    of_a_head("overview", long.overview_frame)

    @app.post("/api/link", responses=frames, response_class=Response)
    async def link(request: Request, ask: asks.AskLink) -> Response:
        """What some tokens give to some others, in every head."""
        return await desk.frame(
            request, ask, lambda rec, turn: attention.link_frame(rec, ask.queries, ask.keys, turn)
        )

    @app.post("/api/why", responses=errors)
    async def why_(request: Request, ask: asks.AskWhy) -> dict[str, Any]:
        """The score of one link, split by where its parts came from."""

        def work(turn: Turn) -> dict[str, Any]:
            model, rec = desk.read(ask, turn)
            where = ask.layer, ask.head, ask.query, ask.key
            return why.score_parts(model, rec, desk.library.path(ask.model), *where, turn)

        return await desk.run(request, work)

    @app.post("/api/meaning", responses=errors)
    async def meaning_(request: Request, ask: asks.AskMeaning) -> dict[str, Any]:
        """A word's way through the layers, in each of some sentences."""

        def work(turn: Turn) -> dict[str, Any]:
            model, name = desk.library.model(ask.model), desk.library.path(ask.model)
            return meaning.way_of_a_word(
                model, name, ask.word, ask.sentences, ask.groups, ask.template, turn
            )

        return await desk.run(request, work)

    @app.post("/api/worked", responses=errors)
    async def worked(request: Request, ask: asks.AskWorked) -> dict[str, Any]:
        """The worked example, edited cell by cell, and the audit of its print."""
        edited = ask.model_dump(exclude_none=True)
        return await desk.run(request, lambda _: steps.worked_example(edited))

    @app.post("/api/tile", responses=frames, response_class=Response)
    async def tile(request: Request, ask: asks.AskTile) -> Response:
        """Exact weights of a part of a long text."""
        where = ask.layer, ask.head, ask.top, ask.left, ask.size, ask.run
        return await desk.frame(request, ask, lambda rec, _: long.tile_frame(rec, *where))

    @app.post("/api/looks", responses=frames, response_class=Response)
    async def looks(request: Request, ask: asks.AskLooks) -> Response:
        """Who looks at some tokens, and what they look at."""
        return await desk.frame(
            request, ask, lambda rec, _: long.looks_frame(rec, ask.layer, ask.head, ask.tokens)
        )

    @app.post("/api/generate", responses=events, response_class=Response)
    async def generate(ask: asks.AskContinuation) -> Response:
        """A continuation, token by token."""
        return await desk.events(
            lambda turn: generation.continuation(
                desk.library.model(ask.model),
                ask.text, ask.after, ask.most, ask.temperature, ask.seed, turn,
            )
        )  # fmt: skip

    @app.post("/api/html", responses=errors, response_class=Response)
    async def html(request: Request, ask: asks.AskHead) -> Response:
        """The page as one file that needs no server."""
        return await desk.file(
            request, ask, "attention.html", "text/html; charset=utf-8",
            lambda rec: takeaway.html_file(rec, ask.layer, ask.head),
        )  # fmt: skip

    @app.post("/api/json", responses=errors, response_class=Response)
    async def json(request: Request, ask: asks.AskHead) -> Response:
        """The weights of one head with all their digits."""
        return await desk.file(
            request, ask, "attention.json", "application/json",
            lambda rec: takeaway.json_file(rec, ask.layer, ask.head),
        )  # fmt: skip

    @app.post("/api/python", responses=errors)
    async def python(ask: asks.AskPython) -> dict[str, str]:
        """The lines of Python that make the same picture."""
        name = desk.library.path(ask.model)
        return {
            "python": takeaway.python_lines(
                name, ask.text, ask.layer, ask.head, ask.token, ask.valued
            )
        }

    @app.post("/api/effects", responses=events, response_class=Response)
    async def effects(ask: asks.AskEffects) -> Response:
        """What cutting each link of a token causes, link by link."""

        def work(turn: Turn) -> dict[str, Any]:
            model, rec = desk.read(ask, turn)
            where = _heads(rec) if ask.everywhere else [(ask.layer, ask.head)]
            return cause.effects(model, rec, ask.query, where, turn)

        return await desk.events(work)

    @app.post("/api/cut", responses=errors)
    async def cut(request: Request, ask: asks.AskCut) -> dict[str, Any]:
        """What changes when some links are cut together."""

        def work(turn: Turn) -> dict[str, Any]:
            model, rec = desk.read(ask, turn)
            links: list[Link] = []
            for link in ask.links:
                where = _heads(rec) if ask.everywhere else [(link.layer, link.head)]
                links += [Link(layer, head, link.query, link.key, 0.0) for layer, head in where]
            return cause.cut(model, rec, links, turn)

        return await desk.run(request, work)

    @app.post("/api/roles", responses=events, response_class=Response)
    async def roles_(ask: asks.AskRoles) -> Response:
        """What every head does, over a corpus."""
        return await desk.events(
            lambda turn: roles.roles(desk.library.model(ask.model), ask.corpus, turn)
        )


def _heads(rec: Recording) -> list[tuple[int, int]]:
    return [(layer, head) for layer in rec.layer_numbers for head in rec.head_numbers]
