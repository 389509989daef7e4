"""The bodies of requests, validated before any work begins."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from limelight.errors import LimelightError

FRAME_TYPE = "application/vnd.limelight.frame"
"""Media type of a response with arrays: see `frames`."""
MAX_CHARACTERS = 200_000
"""Of a text: far more than the 8,192 tokens that are read."""
MAX_TOKENS = 8192
MAX_SIDE = 448
"""Pixels along a side of a picture; 803 kB as base64."""

Text = Annotated[str, Field(min_length=1, max_length=MAX_CHARACTERS, pattern=r"\S")]
ShortText = Annotated[str, Field(min_length=1, max_length=400)]
ModelName = ShortText
Index = Annotated[int, Field(ge=0, lt=1 << 20)]
"""A layer, a head or a token by its number."""
TokenIndices = Annotated[list[Index], Field(min_length=1, max_length=MAX_TOKENS)]
TokenId = Annotated[int, Field(ge=0, lt=1 << 20)]


class TextTooLongError(LimelightError):
    """A text of more tokens than are read."""


class TextRequest(BaseModel):
    """A text and the model that reads it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: ModelName
    text: Text


class HeadRequest(TextRequest):
    """One head, by its numbers in the model, reading the text."""

    layer: Index
    head: Index


class WeightsRequest(HeadRequest):
    """The weights of one head; valued: times the length of the value vector."""

    valued: bool = False


class LinkRequest(TextRequest):
    """The link from some tokens to some others, such as every occurrence of two words."""

    queries: TokenIndices
    keys: TokenIndices


class WhyRequest(HeadRequest):
    """The score of a link in one head."""

    query: Index
    key: Index


class TileRequest(HeadRequest):
    """`size` cells each way from row `top` and column `left`, each of `run` × `run` tokens."""

    top: Index
    left: Index
    size: Annotated[int, Field(ge=1, le=256)] = 128
    run: Annotated[int, Field(ge=1, le=64)] = 1


class TokensRequest(HeadRequest):
    """Some tokens of a long text."""

    tokens: TokenIndices


class PythonRequest(HeadRequest):
    """The lines of Python for what is shown."""

    token: Index | None = None
    valued: bool = False


Row = Annotated[list[Annotated[float, Field(ge=-1e6, le=1e6)]], Field(max_length=16)]
Table = Annotated[list[Row], Field(max_length=16)]


class WorkedRequest(BaseModel):
    """The edited tables of the worked example."""

    model_config = ConfigDict(extra="forbid")

    x: Table | None = None
    w_query: Table | None = None
    w_key: Table | None = None
    w_value: Table | None = None


class GenerateRequest(TextRequest):
    """How to continue a text."""

    after: Annotated[list[TokenId], Field(max_length=512)] = []
    """tokens that follow the text before the first one is sampled"""
    max_tokens: Annotated[int, Field(ge=1, le=256)] = 24
    temperature: Annotated[float, Field(ge=0.0, le=4.0, strict=False)] = 0.0
    seed: Annotated[int, Field(ge=0, lt=1 << 31)] = 0


class EffectsRequest(HeadRequest):
    """What cutting each link of a token changes, in one head or in all."""

    query: Index
    everywhere: bool = False


class PictureRequest(BaseModel):
    """A picture that the browser has decoded: red, green and blue of each pixel, row by row.

    No image format is ever decoded here.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    model: ModelName
    width: Annotated[int, Field(ge=1, le=MAX_SIDE)]
    height: Annotated[int, Field(ge=1, le=MAX_SIDE)]
    pixels: Annotated[str, Field(min_length=4, max_length=4 * MAX_SIDE * MAX_SIDE)]
    """base64 of `height width 3` bytes"""


class LinkToCut(BaseModel):
    """One link to cut."""

    model_config = ConfigDict(extra="forbid", strict=True)

    layer: Index
    head: Index
    query: Index
    key: Index


class CutRequest(TextRequest):
    """Links to cut together, each in its head; everywhere: each in all heads."""

    links: Annotated[list[LinkToCut], Field(min_length=1, max_length=64)]
    everywhere: bool = False


class RolesRequest(BaseModel):
    """The roles of a model's heads, over a corpus or over the built-in sentences."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: ModelName
    corpus: Text | None = None


GroupName = ShortText
Words = Annotated[list[ShortText], Field(min_length=1, max_length=24)]


class MeaningRequest(BaseModel):
    """A word in some sentences, and named groups of words to compare it with."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: ModelName
    word: ShortText
    sentences: Annotated[list[Text], Field(min_length=1, max_length=4)]
    groups: Annotated[dict[GroupName, Words], Field(min_length=1, max_length=8)]
    template: ShortText | None = None
