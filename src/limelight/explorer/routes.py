"""The routes under /api/, a panel at a time.

What computes a panel is imported by the worker when it is first needed: PyTorch takes longer to
load than the page, which is served meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from fastapi.responses import Response

from limelight.explorer import schemas
from limelight.explorer.dispatch import Dispatcher
from limelight.explorer.model_store import PICTURE, names_picture
from limelight.explorer.python_code import python_lines
from limelight.explorer.worker import Job

if TYPE_CHECKING:
    from limelight.seeing.recording.recording import Recording

Responses = dict[int | str, Any]
"""What the OpenAPI document says of the answers, by status."""


def add_routes(
    app: FastAPI, dispatcher: Dispatcher, errors: Responses, frames: Responses, events: Responses
) -> None:
    """Every route that the page calls."""

    @app.post("/api/look", responses=frames, response_class=Response)
    async def look(request: Request, body: schemas.TextRequest) -> Response:
        """What every head attends to in a text."""

        def answer(rec: Recording, _: Job) -> bytes:
            from limelight.explorer.attention import read_text, text_frame

            name = body.text if names_picture(body.text) else read_text(rec)
            return text_frame(rec, dispatcher.store.kind(body.model), name)

        return await dispatcher.frame(request, body, answer)

    @app.post("/api/picture", responses=frames, response_class=Response)
    async def picture(request: Request, body: schemas.PictureRequest) -> Response:
        """What every head of a vision transformer attends to in a picture.

        The header's `text` names the picture in the requests that follow.
        """

        def work(job: Job) -> bytes:
            from limelight.explorer.attention import text_frame
            from limelight.explorer.pictures import pixels_of

            store = dispatcher.store
            digest, pixels = pixels_of(body.pixels, body.height, body.width)
            recording = store.picture(body.model, digest, pixels, job)
            return text_frame(recording, store.kind(body.model), PICTURE + digest)

        return Response(await dispatcher.run(request, work), media_type=schemas.FRAME)

    @app.post("/api/read", responses=events, response_class=Response)
    async def read(body: schemas.TextRequest) -> Response:
        """Reads a long text, layer by layer; later requests about it are answered at once."""

        def work(job: Job) -> dict[str, Any]:
            return {"tokens": len(dispatcher.store.recording(body.model, body.text, job).tokens)}

        return await dispatcher.events(work)

    @app.post("/api/head", responses=frames, response_class=Response)
    async def head(request: Request, body: schemas.WeightsRequest) -> Response:
        """All weights of one head, by tokens and by words: `weights` i j, `merged` u v."""

        def answer(rec: Recording, _: Job) -> bytes:
            from limelight.explorer.attention import head_frame

            return head_frame(rec, body.layer, body.head, valued=body.valued)

        return await dispatcher.frame(request, body, answer)

    @app.post("/api/steps", responses=frames, response_class=Response)
    async def steps(request: Request, body: schemas.HeadRequest) -> Response:
        """Each step of a head as an array by its name; the header says formula and axes of each."""

        def answer(rec: Recording, _: Job) -> bytes:
            from limelight.explorer.steps import steps_frame

            return steps_frame(rec, body.layer, body.head)

        return await dispatcher.frame(request, body, answer)

    @app.post("/api/overview", responses=frames, response_class=Response)
    async def overview(request: Request, body: schemas.HeadRequest) -> Response:
        """Of one head: the map, entropy and received along the axes, and its strongest links."""

        def answer(rec: Recording, _: Job) -> bytes:
            from limelight.explorer.long import overview_frame

            return overview_frame(rec, body.layer, body.head)

        return await dispatcher.frame(request, body, answer)

    @app.post("/api/link", responses=frames, response_class=Response)
    async def link(request: Request, body: schemas.LinkRequest) -> Response:
        """What some tokens give to some others, in every head."""

        def answer(rec: Recording, job: Job) -> bytes:
            from limelight.explorer.attention import link_frame

            return link_frame(rec, body.queries, body.keys, job)

        return await dispatcher.frame(request, body, answer)

    @app.post("/api/why", responses=errors)
    async def why(request: Request, body: schemas.WhyRequest) -> dict[str, Any]:
        """The score of one link, split by where its parts came from."""

        def work(job: Job) -> dict[str, Any]:
            from limelight.explorer.why import score_parts

            model, rec = dispatcher.read(body, job)
            where = body.layer, body.head, body.query, body.key
            return score_parts(model, rec, dispatcher.store.path(body.model), *where, job)

        return await dispatcher.run(request, work)

    @app.post("/api/meaning", responses=errors)
    async def meaning(request: Request, body: schemas.MeaningRequest) -> dict[str, Any]:
        """A word's path through the layers, in each of some sentences."""

        def work(job: Job) -> dict[str, Any]:
            from limelight.explorer.meaning import word_path

            model, name = dispatcher.store.model(body.model), dispatcher.store.path(body.model)
            return word_path(
                model, name, body.word, body.sentences, body.groups, body.template, job
            )

        return await dispatcher.run(request, work)

    @app.post("/api/worked", responses=errors)
    async def worked(request: Request, body: schemas.WorkedRequest) -> dict[str, Any]:
        """The worked example, edited cell by cell, and the audit of the printed numbers."""

        def work(_: Job) -> dict[str, Any]:
            from limelight.explorer.steps import worked_example

            return worked_example(body.model_dump(exclude_none=True))

        return await dispatcher.run(request, work)

    @app.post("/api/tile", responses=frames, response_class=Response)
    async def tile(request: Request, body: schemas.TileRequest) -> Response:
        """Exact weights of a part of a long text."""

        def answer(rec: Recording, _: Job) -> bytes:
            from limelight.explorer.long import tile_frame

            corner = body.top, body.left
            return tile_frame(rec, body.layer, body.head, *corner, body.size, body.run)

        return await dispatcher.frame(request, body, answer)

    @app.post("/api/tokens", responses=frames, response_class=Response)
    async def tokens(request: Request, body: schemas.TokensRequest) -> Response:
        """Which tokens attend to some tokens, and what those attend to."""

        def answer(rec: Recording, job: Job) -> bytes:
            from limelight.explorer.long import tokens_frame

            return tokens_frame(rec, body.layer, body.head, body.tokens, job)

        return await dispatcher.frame(request, body, answer)

    @app.post("/api/generate", responses=events, response_class=Response)
    async def generate(body: schemas.GenerateRequest) -> Response:
        """A continuation, token by token."""

        def work(job: Job) -> dict[str, Any]:
            from limelight.explorer.generation import continuation

            model = dispatcher.store.model(body.model)
            how = body.max_tokens, body.temperature, body.seed
            return continuation(model, body.text, body.after, *how, job)

        return await dispatcher.events(work)

    @app.post("/api/html", responses=errors, response_class=Response)
    async def html(request: Request, body: schemas.HeadRequest) -> Response:
        """The page as one file that needs no server."""

        def make(rec: Recording) -> str:
            from limelight.explorer.exports import html_file

            return html_file(rec, body.layer, body.head)

        kind = "text/html; charset=utf-8"
        return await dispatcher.file(request, body, "attention.html", kind, make)

    @app.post("/api/json", responses=errors, response_class=Response)
    async def json(request: Request, body: schemas.HeadRequest) -> Response:
        """The weights of one head with all their digits."""

        def make(rec: Recording) -> str:
            from limelight.explorer.exports import json_file

            return json_file(rec, body.layer, body.head)

        return await dispatcher.file(request, body, "attention.json", "application/json", make)

    @app.post("/api/python", responses=errors)
    async def python(body: schemas.PythonRequest) -> dict[str, str]:
        """The lines of Python that make the same picture."""
        name = dispatcher.store.path(body.model)
        where = body.layer, body.head, body.token
        return {"python": python_lines(name, body.text, *where, body.valued)}

    @app.post("/api/effects", responses=events, response_class=Response)
    async def effects(body: schemas.EffectsRequest) -> Response:
        """What cutting each link of a token causes, link by link."""

        def work(job: Job) -> dict[str, Any]:
            from limelight.explorer.cause import effects

            model, rec = dispatcher.read(body, job)
            where = _heads(rec) if body.everywhere else [(body.layer, body.head)]
            return effects(model, rec, body.query, where, job)

        return await dispatcher.events(work)

    @app.post("/api/cut", responses=errors)
    async def cut(request: Request, body: schemas.CutRequest) -> dict[str, Any]:
        """What changes when some links are cut together."""

        def work(job: Job) -> dict[str, Any]:
            from limelight.explorer.cause import cut
            from limelight.seeing.recording.recording import Link

            model, rec = dispatcher.read(body, job)
            links: list[Link] = []
            for link in body.links:
                where = _heads(rec) if body.everywhere else [(link.layer, link.head)]
                links += [Link(layer, head, link.query, link.key, 0.0) for layer, head in where]
            return cut(model, rec, links, job)

        return await dispatcher.run(request, work)

    @app.post("/api/roles", responses=events, response_class=Response)
    async def roles(body: schemas.RolesRequest) -> Response:
        """What every head does, over a corpus."""

        def work(job: Job) -> dict[str, Any]:
            from limelight.explorer.roles import roles

            return roles(dispatcher.store.model(body.model), body.corpus, job)

        return await dispatcher.events(work)


def _heads(rec: Recording) -> list[tuple[int, int]]:
    return [(layer, head) for layer in rec.layer_numbers for head in rec.head_numbers]
