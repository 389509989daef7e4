"""Runs the work of a request on the worker: as a response, or as a stream of events."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from fastapi import Request
from fastapi.responses import Response, StreamingResponse

from limelight.errors import LimelightError
from limelight.explorer import schemas
from limelight.explorer.model_store import ModelStore
from limelight.explorer.worker import ClientDisconnectedError, Job, Worker

if TYPE_CHECKING:
    from limelight.models.loading.pretrained import Model
    from limelight.seeing.recording.recording import Recording

Result = TypeVar("Result")

_SHORT = 4000
"""Characters of a text that is read as interactive work."""
_LOG = logging.getLogger("limelight.explorer")


class Dispatcher:
    """Runs the work of requests on the worker; a client that disconnects cancels its work."""

    def __init__(self, store: ModelStore, worker: Worker) -> None:
        self.store, self.worker = store, worker

    def model_and_recording(self, body: schemas.TextRequest, job: Job) -> tuple[Model, Recording]:
        """The model of a request, and its recording of the text."""
        return self.store.model(body.model), self.store.recording(body.model, body.text, job)

    async def frame(
        self, request: Request, body: schemas.TextRequest, make: Callable[[Recording, Job], bytes]
    ) -> Response:
        """The frame that `make` gives for the recording of a text."""

        def work(job: Job) -> bytes:
            return make(self.store.recording(body.model, body.text, job), job)

        data = await self.run(request, work, interactive=self._interactive(body))
        return Response(data, media_type=schemas.FRAME_TYPE)

    async def file(
        self,
        request: Request,
        body: schemas.TextRequest,
        name: str,
        media_type: str,
        make: Callable[[Recording], str],
    ) -> Response:
        """The file that `make` gives for the recording of a text, as a download."""

        def work(job: Job) -> str:
            return make(self.store.recording(body.model, body.text, job))

        headers = {"content-disposition": f'attachment; filename="{name}"'}
        text = await self.run(request, work, interactive=self._interactive(body))
        return Response(text, media_type=media_type, headers=headers)

    def _interactive(self, body: schemas.TextRequest) -> bool:
        """Whether the work is short; reading a long text lets other requests go first."""
        return len(body.text) <= _SHORT or self.store.has(body.model, body.text)

    async def run(
        self, request: Request, work: Callable[[Job], Result], *, interactive: bool = True
    ) -> Result:
        """The result of the work, which is cancelled when the client disconnects."""
        result = asyncio.ensure_future(
            self.worker.run(work, interactive=interactive, seconds=300.0 if interactive else 900.0)
        )
        disconnected = asyncio.ensure_future(_wait_for_disconnect(request))
        try:
            await asyncio.wait({result, disconnected}, return_when=asyncio.FIRST_COMPLETED)
            if not result.done():
                raise ClientDisconnectedError
            return result.result()
        finally:
            result.cancel()
            disconnected.cancel()

    async def events(self, work: Callable[[Job], Any]) -> Response:
        """The events of long work; the first is awaited, so that an early error has a status."""
        stream = self.worker.stream(work)
        first = await anext(stream)
        return StreamingResponse(_event_stream(first, stream), media_type="text/event-stream")


async def _event_stream(
    first: dict[str, Any], stream: AsyncIterator[dict[str, Any]]
) -> AsyncIterator[str]:
    yield _event(first)
    try:
        async for event in stream:
            yield _event(event)
    except LimelightError as error:
        yield _event({"error": str(error)})
    except ClientDisconnectedError:
        return
    except Exception:
        _LOG.exception("long work failed")
        yield _event({"error": "something went wrong here: see the server's log"})


def _event(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value, allow_nan=False)}\n\n"


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
