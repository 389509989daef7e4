"""The bodies of requests, validated before any work begins."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from limelight.errors import LimelightError

FRAME = "application/vnd.limelight.frame"
"""Media type of an answer with arrays: see `frames`."""
MAX_CHARACTERS = 200_000
"""Of a text: far more than the 8,192 tokens that are looked at."""
MAX_TOKENS = 8192
MAX_SIDE = 448
"""Pixels along a side of a picture; 803 kB as base64."""

Text = Annotated[str, Field(min_length=1, max_length=MAX_CHARACTERS, pattern=r"\S")]
Name = Annotated[str, Field(min_length=1, max_length=400)]
Place = Annotated[int, Field(ge=0, lt=1 << 20)]


class TextTooLongError(LimelightError):
    """A text of more tokens than are looked at."""


class TextRequest(BaseModel):
    """A text and the model that reads it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: Name
    text: Text


class HeadRequest(TextRequest):
    """One head of it, by its numbers in the model."""

    layer: Place
    head: Place


class WeightsRequest(HeadRequest):
    """The weights of one head; valued: times the length of the value vector."""

    valued: bool = False


Places = Annotated[list[Place], Field(min_length=1, max_length=MAX_TOKENS)]


class LinkRequest(TextRequest):
    """From some tokens to some others, such as all places of two words; for all heads."""

    queries: Places
    keys: Places


class WhyRequest(HeadRequest):
    """The score of a link in one head."""

    query: Place
    key: Place


class TileRequest(HeadRequest):
    """Rows `top` on and columns `left` on, `size` cells each, a cell standing for `run` tokens."""

    top: Place
    left: Place
    size: Annotated[int, Field(ge=1, le=256)] = 128
    run: Annotated[int, Field(ge=1, le=64)] = 1


class TokensRequest(HeadRequest):
    """Some tokens of a long text."""

    tokens: Places


class PythonRequest(HeadRequest):
    """The lines of Python for what is shown."""

    token: Place | None = None
    valued: bool = False


Row = Annotated[list[Annotated[float, Field(ge=-1e6, le=1e6)]], Field(max_length=16)]
Rows = Annotated[list[Row], Field(max_length=16)]


class WorkedRequest(BaseModel):
    """Tables of the worked example that were edited."""

    model_config = ConfigDict(extra="forbid")

    x: Rows | None = None
    w_query: Rows | None = None
    w_key: Rows | None = None
    w_value: Rows | None = None


class GenerateRequest(TextRequest):
    """How to go on after a text."""

    after: Annotated[list[Place], Field(max_length=512)] = []
    """tokens that follow the text before anything is drawn"""
    max_tokens: Annotated[int, Field(ge=1, le=256)] = 24
    temperature: Annotated[float, Field(ge=0.0, le=4.0, strict=False)] = 0.0
    seed: Annotated[int, Field(ge=0, lt=1 << 31)] = 0


class EffectsRequest(HeadRequest):
    """What cutting each link of a token causes, in one head or in all."""

    query: Place
    everywhere: bool = False


class PictureRequest(BaseModel):
    """A picture that the browser has decoded: red, green and blue of each pixel, row by row.

    No image format is ever decoded here.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    model: Name
    width: Annotated[int, Field(ge=1, le=MAX_SIDE)]
    height: Annotated[int, Field(ge=1, le=MAX_SIDE)]
    pixels: Annotated[str, Field(min_length=4, max_length=4 * MAX_SIDE * MAX_SIDE)]
    """base64 of `height width 3` bytes"""


class LinkToCut(BaseModel):
    """One link to cut."""

    model_config = ConfigDict(extra="forbid", strict=True)

    layer: Place
    head: Place
    query: Place
    key: Place


class CutRequest(TextRequest):
    """Links to cut together, each in its head; everywhere: each in all heads."""

    links: Annotated[list[LinkToCut], Field(min_length=1, max_length=64)]
    everywhere: bool = False


class RolesRequest(BaseModel):
    """The roles of a model's heads, over a corpus or over plain sentences."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: Name
    corpus: Annotated[str, Field(min_length=1, max_length=MAX_CHARACTERS, pattern=r"\S")] | None = (
        None
    )


Words = Annotated[list[Name], Field(min_length=1, max_length=24)]


class MeaningRequest(BaseModel):
    """A word in some sentences, and groups of words by name that it may come near to."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: Name
    word: Name
    sentences: Annotated[list[Text], Field(min_length=1, max_length=4)]
    groups: Annotated[dict[Name, Words], Field(min_length=1, max_length=8)]
    template: Name | None = None
