"""The kinds of response: what a route declares, for FastAPI and for the OpenAPI document."""

from __future__ import annotations

from typing import Any

from fastapi.responses import Response

from limelight.explorer.schemas import FRAME_TYPE

_Responses = dict[int | str, dict[str, Any]]

_ERRORS: _Responses = {
    status: {
        "description": description,
        "content": {
            "application/json": {
                "schema": {"type": "object", "properties": {"error": {"type": "string"}}}
            }
        },
    }
    for status, description in {
        400: "The body is not JSON.",
        413: "The text is too long.",
        422: "The request names something that does not exist.",
        429: "Too many requests are waiting.",
        500: "Something went wrong here.",
        503: "The work took too long, or a package is missing.",
    }.items()
}


def _body(description: str, media_type: str, schema: dict[str, str]) -> _Responses:
    return {200: {"description": description, "content": {media_type: {"schema": schema}}}}


JSON: dict[str, Any] = {"responses": _ERRORS}
FILE: dict[str, Any] = {"responses": _ERRORS, "response_class": Response}
FRAME: dict[str, Any] = {
    "responses": _ERRORS
    | _body("A frame: see `frames`.", FRAME_TYPE, {"type": "string", "format": "binary"}),
    "response_class": Response,
}
EVENTS: dict[str, Any] = {
    "responses": _ERRORS | _body("Server-sent events.", "text/event-stream", {"type": "string"}),
    "response_class": Response,
}
