"""A recording as data for other tools: JSON, an Arrow table, CSV.

The JSON document (`Recording.to_json`):

    format          "limelight.recording.json", and `version`, 1
    model, text     words; query_text where the queries are another text's
    tokens          text, start, end, word, special of each; queries likewise, null where the same
    layers, heads   their numbers in the model
    made            how the recording was made
    nonfinite       where the first numbers are not finite, in words; null where all are
    background      the tokens that are left out of links: special tokens, punctuation, sinks
    links           the strongest links: layer, head, query, key, weight, query_token, key_token
    salient         the links most worth a look, with the same fields
    entropy         layers × heads, mean over the queries, in bits
    distance        layers × heads, mean over the queries, in tokens
    received        the share of all attention that each token receives

The table (`Recording.links`) has a row for each recorded link (the lens's `top` of each query):
layer, head, query, key (int32), weight (float32), query_token, key_token (text).
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any, Literal

import numpy as np

from limelight.checks import check_number
from limelight.errors import UnavailableError
from limelight.fields import check_value
from limelight.files import writing
from limelight.insight.salience import salient_links, strongest
from limelight.insight.summary import summary
from limelight.seeing.recording.recording import Recording
from limelight.seeing.recording.tokens import Token

_COLUMNS = ("layer", "head", "query", "key", "weight", "query_token", "key_token")


def as_json(recording: Recording, links: int = 10) -> dict[str, Any]:
    """The document above, as plain values."""
    stats = summary(recording)
    same = recording.queries is recording.tokens
    received = np.stack([layer.received.double().numpy() for layer in stats.layers]).sum((0, 1))
    return {
        "format": "limelight.recording.json",
        "version": 1,
        "model": recording.model,
        "text": recording.text,
        "query_text": None if same else recording.query_text,
        "tokens": [token._asdict() for token in recording.tokens],
        "queries": None if same else [token._asdict() for token in recording.queries],
        "layers": list(recording.layer_numbers),
        "heads": list(recording.head_numbers),
        "made": dict(recording.made),
        "nonfinite": recording.nonfinite or None,
        "background": sorted(stats.background),
        "links": [link._asdict() for link in strongest(recording, links).links],
        "salient": [link._asdict() for link in salient_links(recording, links)],
        "entropy": stats.entropy.tolist(),
        "distance": stats.distance.tolist(),
        "received": (received / max(received.sum(), 1e-30)).tolist(),
    }


def as_table(
    recording: Recording,
    layer: int | None = None,
    head: int | None = None,
    *,
    least: float = 0.0,
    by: str = "weight",
) -> Any:
    """The table above; `least` bounds the weight or, with by="value", ‖weight · value‖."""
    try:
        import pyarrow
    except ImportError as error:
        raise UnavailableError("tables need pyarrow: pip install limelight[tables]") from error
    pa: Any = pyarrow
    columns = _arrays(recording, layer, head, least, by)
    query_token, key_token = (
        pa.DictionaryArray.from_arrays(
            columns[name], pa.array([token.text for token in tokens], pa.string())
        ).cast(pa.string())
        for name, tokens in (("query", recording.queries), ("key", recording.tokens))
    )
    return pa.table({**columns, "query_token": query_token, "key_token": key_token})


def write_csv(recording: Recording, path: Path, least: float = 0.05) -> None:
    """The same rows as a CSV file, of links with a weight of `least` or more."""
    columns = _arrays(recording, None, None, least, "weight")
    with writing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(_COLUMNS)
        for layer, head, query, key, weight in zip(*columns.values(), strict=True):
            query_token, key_token = recording.queries[query], recording.tokens[key]
            row = (layer, head, query, key, f"{weight:.6g}", _cell(query_token), _cell(key_token))
            writer.writerow(row)


def _cell(token: Token) -> str:
    """The text of a token, escaped where a spreadsheet would read it as a formula."""
    text = token.text.encode("utf-8", "replace").decode()
    return f"'{text}" if text[:1] in "=+-@\t\r" else text


def _arrays(
    recording: Recording, layer: int | None, head: int | None, least: float, by: str
) -> dict[str, Any]:
    least = check_number("least", least, "a number")
    check_value("by", by, Literal["weight", "value"])
    parts: list[list[Any]] = [[] for _ in range(5)]
    numbers = recording.layer_numbers if layer is None else (layer,)
    heads = recording.head_numbers if head is None else (head,)
    positions = [recording.head_position(number) for number in heads]
    for number in numbers:
        seen = recording.seen(number)
        if by == "value":
            weights, keys = (part[0].cpu() for part in seen.value_top)
        else:
            stats = summary(recording).layers[recording.layer_numbers.index(number)]
            weights, keys = stats.weights, stats.keys
        weights, keys = weights[positions].numpy(), keys[positions].numpy()
        position, query, rank = np.nonzero((keys >= 0) & (weights > 0) & (weights >= least))
        columns = (
            np.full(len(query), number),
            np.asarray(heads)[position],
            query,
            keys[position, query, rank],
            weights[position, query, rank],
        )
        for column, part in zip(parts, columns, strict=True):
            column.append(part)
    dtypes = (np.int32, np.int32, np.int32, np.int32, np.float32)
    arrays = [
        np.concatenate(column).astype(dtype) for column, dtype in zip(parts, dtypes, strict=True)
    ]
    return dict(zip(_COLUMNS, arrays, strict=False))
