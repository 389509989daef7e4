"""The routes under /api/, a panel at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response

from limelight.explorer import (
    attention,
    cause,
    exports,
    generation,
    long,
    meaning,
    roles,
    schemas,
    steps,
    why,
)
from limelight.explorer.dispatch import Dispatcher
from limelight.explorer.worker import Job
from limelight.seeing.recording.recording import Link, Recording

Responses = dict[int | str, Any]
"""What the OpenAPI document says of the answers, by status."""


def add_routes(
    app: FastAPI, dispatcher: Dispatcher, errors: Responses, frames: Responses, events: Responses
) -> None:
    """Every route that the page calls."""

    @app.post("/api/look", responses=frames, response_class=Response)
    async def look(request: Request, body: schemas.TextRequest) -> Response:
        """What every head attends to in a text."""
        return await dispatcher.frame(
            request,
            body,
            lambda rec, _: attention.text_frame(rec, dispatcher.store.kind(body.model)),
        )

    @app.post("/api/read", responses=events, response_class=Response)
    async def read(body: schemas.TextRequest) -> Response:
        """Reads a long text, layer by layer; later requests about it are answered at once."""

        def work(job: Job) -> dict[str, Any]:
            return {"tokens": len(dispatcher.store.recording(body.model, body.text, job).tokens)}

        return await dispatcher.events(work)

    def head_route(name: str, make: Callable[[Recording, int, int], bytes]) -> None:
        """A route that answers with a frame of one head, documented by the docstring of `make`."""

        async def answer(request: Request, body: schemas.HeadRequest) -> Response:
            return await dispatcher.frame(
                request, body, lambda rec, _: make(rec, body.layer, body.head)
            )

        route = app.post(f"/api/{name}", name=name, description=make.__doc__, responses=frames,
                         response_class=Response)  # fmt: skip
        route(answer)

    head_route("head", attention.head_frame)
    head_route("steps", steps.steps_frame)
    head_route("overview", long.overview_frame)

    @app.post("/api/link", responses=frames, response_class=Response)
    async def link(request: Request, body: schemas.LinkRequest) -> Response:
        """What some tokens give to some others, in every head."""
        return await dispatcher.frame(
            request, body, lambda rec, job: attention.link_frame(rec, body.queries, body.keys, job)
        )

    @app.post("/api/why", responses=errors)
    async def why_(request: Request, body: schemas.WhyRequest) -> dict[str, Any]:
        """The score of one link, split by where its parts came from."""

        def work(job: Job) -> dict[str, Any]:
            model, rec = dispatcher.read(body, job)
            where = body.layer, body.head, body.query, body.key
            return why.score_parts(model, rec, dispatcher.store.path(body.model), *where, job)

        return await dispatcher.run(request, work)

    @app.post("/api/meaning", responses=errors)
    async def meaning_(request: Request, body: schemas.MeaningRequest) -> dict[str, Any]:
        """A word's path through the layers, in each of some sentences."""

        def work(job: Job) -> dict[str, Any]:
            model, name = dispatcher.store.model(body.model), dispatcher.store.path(body.model)
            return meaning.word_path(
                model, name, body.word, body.sentences, body.groups, body.template, job
            )

        return await dispatcher.run(request, work)

    @app.post("/api/worked", responses=errors)
    async def worked(request: Request, body: schemas.WorkedRequest) -> dict[str, Any]:
        """The worked example, edited cell by cell, and the audit of the printed numbers."""
        edited = body.model_dump(exclude_none=True)
        return await dispatcher.run(request, lambda _: steps.worked_example(edited))

    @app.post("/api/tile", responses=frames, response_class=Response)
    async def tile(request: Request, body: schemas.TileRequest) -> Response:
        """Exact weights of a part of a long text."""
        where = body.layer, body.head, body.top, body.left, body.size, body.run
        return await dispatcher.frame(request, body, lambda rec, _: long.tile_frame(rec, *where))

    @app.post("/api/tokens", responses=frames, response_class=Response)
    async def looks(request: Request, body: schemas.TokensRequest) -> Response:
        """Who looks at some tokens, and what they look at."""
        return await dispatcher.frame(
            request, body, lambda rec, _: long.tokens_frame(rec, body.layer, body.head, body.tokens)
        )

    @app.post("/api/generate", responses=events, response_class=Response)
    async def generate(body: schemas.GenerateRequest) -> Response:
        """A continuation, token by token."""
        return await dispatcher.events(
            lambda job: generation.continuation(
                dispatcher.store.model(body.model),
                body.text, body.after, body.max_tokens, body.temperature, body.seed, job,
            )
        )  # fmt: skip

    @app.post("/api/html", responses=errors, response_class=Response)
    async def html(request: Request, body: schemas.HeadRequest) -> Response:
        """The page as one file that needs no server."""
        return await dispatcher.file(
            request, body, "attention.html", "text/html; charset=utf-8",
            lambda rec: exports.html_file(rec, body.layer, body.head),
        )  # fmt: skip

    @app.post("/api/json", responses=errors, response_class=Response)
    async def json(request: Request, body: schemas.HeadRequest) -> Response:
        """The weights of one head with all their digits."""
        return await dispatcher.file(
            request, body, "attention.json", "application/json",
            lambda rec: exports.json_file(rec, body.layer, body.head),
        )  # fmt: skip

    @app.post("/api/python", responses=errors)
    async def python(body: schemas.PythonRequest) -> dict[str, str]:
        """The lines of Python that make the same picture."""
        name = dispatcher.store.path(body.model)
        return {
            "python": exports.python_lines(
                name, body.text, body.layer, body.head, body.token, body.valued
            )
        }

    @app.post("/api/effects", responses=events, response_class=Response)
    async def effects(body: schemas.EffectsRequest) -> Response:
        """What cutting each link of a token causes, link by link."""

        def work(job: Job) -> dict[str, Any]:
            model, rec = dispatcher.read(body, job)
            where = _heads(rec) if body.everywhere else [(body.layer, body.head)]
            return cause.effects(model, rec, body.query, where, job)

        return await dispatcher.events(work)

    @app.post("/api/cut", responses=errors)
    async def cut(request: Request, body: schemas.CutRequest) -> dict[str, Any]:
        """What changes when some links are cut together."""

        def work(job: Job) -> dict[str, Any]:
            model, rec = dispatcher.read(body, job)
            links: list[Link] = []
            for link in body.links:
                where = _heads(rec) if body.everywhere else [(link.layer, link.head)]
                links += [Link(layer, head, link.query, link.key, 0.0) for layer, head in where]
            return cause.cut(model, rec, links, job)

        return await dispatcher.run(request, work)

    @app.post("/api/roles", responses=events, response_class=Response)
    async def roles_(body: schemas.RolesRequest) -> Response:
        """What every head does, over a corpus."""
        return await dispatcher.events(
            lambda job: roles.roles(dispatcher.store.model(body.model), body.corpus, job)
        )


def _heads(rec: Recording) -> list[tuple[int, int]]:
    return [(layer, head) for layer in rec.layer_numbers for head in rec.head_numbers]
