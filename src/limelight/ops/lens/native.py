"""The lens in the kernels: everything is noted in the sweep that makes the output.

What belongs to a query (top links, entropy, ...) is noted while its scores pass by. What belongs to
a key or to a cell of a map needs final weights: those of a few rows are kept until the rows are
done, and gathered then.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from limelight.ops.kernels import dense_last, kernels, outputs
from limelight.ops.lens.spec import Lens, Links, Pooled, Statistics
from limelight.ops.masks.mask import Lowered
from limelight.ops.problem import Problem

_PIECES = 32
"""A call that sums over queries is cut into about so many jobs, whatever the number of threads, so
that its sums are the same on all machines."""
_STEADY = 512
"""Queries whose weights are added up in float32 before they go to a float64 sum."""

Parts = dict[str, Tensor | int]


def look(problem: Problem, lens: Lens) -> tuple[Tensor, Statistics]:
    """The output, and what a fitted lens sees of the weights; nothing carries a gradient."""
    assert kernels is not None
    lowered = Lowered((), ())
    if problem.mask is not None:
        lowered = problem.mask.lower(problem.extent, problem.query.device)
    query, key, value = (
        dense_last(x.detach()) for x in (problem.query, problem.key, problem.value)
    )
    bias = None if problem.bias is None else problem.bias.detach().resolve_neg()
    slopes = None if problem.slopes is None else problem.slopes.detach().contiguous().resolve_neg()
    seed = 0 if problem.seed is None else int(problem.seed)
    out, lse = outputs(query, value)

    def sweep(notes: Parts, survey: Parts | None) -> None:
        kernels.lens_forward(
            query, key, value, bias, slopes, lowered.tables, lowered.program, problem.scale,
            problem.softcap, problem.dropout, seed, out, lse, notes, survey,
        )  # fmt: skip

    notes, surveys = _notes(problem, lens), _surveys(problem, lens, value)
    sweep(notes, surveys[0] if surveys else None)
    for survey in surveys[1:]:
        sweep({}, survey)
    statistics = _from_notes(lse, notes)
    for survey in surveys:
        statistics = statistics._replace(**_from_survey(problem, survey))
    return out, statistics


def _notes(problem: Problem, lens: Lens) -> Parts:
    """Room for what is noted of each query."""
    b, h, i, _ = problem.extent

    def room(*last: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(b, h, i, *last, dtype=dtype)

    notes: Parts = {"max_score": room()}
    for name in ("entropy", "distance"):
        if getattr(lens, name):
            notes[name] = room()
    if lens.band is not None:
        notes |= {"band": room(), "band_reach": lens.band}
    if lens.columns:
        count = len(lens.columns)
        keys = torch.tensor(lens.columns)
        notes |= {"columns": room(count), "column_keys": keys, "column_count": count}
    if lens.top:
        keys = room(lens.top, dtype=torch.int64)
        notes |= {"top": room(lens.top), "top_keys": keys, "top_count": lens.top}
    return notes


def _from_notes(lse: Tensor, notes: Parts) -> Statistics:
    top = _tensor(notes, "top"), _tensor(notes, "top_keys")
    return Statistics(
        lse=lse,
        max_score=cast(Tensor, notes["max_score"]),
        top=None if top[0] is None or top[1] is None else Links(top[0], top[1]),
        entropy=_tensor(notes, "entropy"),
        distance=_tensor(notes, "distance"),
        columns=_tensor(notes, "columns"),
        band=_tensor(notes, "band"),
    )


def _surveys(problem: Problem, lens: Lens, value: Tensor) -> list[Parts]:
    """What is asked of final weights; where two maps have unlike cells, in a sweep of their own."""
    maps = [(name, getattr(lens, name)) for name in ("map", "value_map") if getattr(lens, name)]
    grids = list(dict.fromkeys(cells for _, cells in maps))
    if not grids and (lens.received or lens.value_top):
        grids = [(-(-problem.extent.i // _STEADY) or 1, 1)]
    norms = None
    if lens.value_top or lens.value_map:
        norms = torch.linalg.vector_norm(value.float(), dim=-1).contiguous()
    surveys: list[Parts] = []
    for rows, columns in grids:
        asked = _pieces(problem, rows) | {"rows": rows, "columns": columns}
        wanted = [name for name, cells in maps if cells == (rows, columns)]
        surveys.append(asked | _room(problem, lens, asked, wanted, first=not surveys))
        if norms is not None:
            surveys[-1]["norms"] = norms
    return surveys


def _pieces(problem: Problem, rows: int) -> Parts:
    """Cuts of the queries between rows of cells; a job of the kernel is one piece of one head."""
    b, h, i, _ = problem.extent
    count = max(1, min(rows, -(-_PIECES // max(b * h, 1))))
    cells = torch.arange(count + 1) * rows // count
    return {"pieces": -(-(cells * i) // rows), "piece_count": count}


def _room(problem: Problem, lens: Lens, asked: Parts, maps: list[str], first: bool) -> Parts:
    b, h, i, j = problem.extent
    parts: Parts = {}
    for name in maps:
        short = "map" if name == "map" else "value"
        cells = (b, h, int(asked["rows"]), int(asked["columns"]))
        parts[f"{short}_sum"] = torch.zeros(cells, dtype=torch.float64)
        parts[f"{short}_max"] = torch.zeros(cells)
    if first and lens.received:
        parts["received"] = torch.zeros(b, h, int(asked["piece_count"]), j, dtype=torch.float64)
    if first and lens.value_top:
        count = lens.value_top
        links = torch.zeros(b, h, i, count), torch.full((b, h, i, count), -1)
        parts |= {"top": links[0], "top_keys": links[1], "top_count": count}
    return parts


def _from_survey(problem: Problem, asked: Parts) -> dict[str, Any]:
    found: dict[str, Any] = {}
    received = _tensor(asked, "received")
    if received is not None:
        found["received"] = received.sum(2).float()
    if "top" in asked:
        found["value_top"] = Links(cast(Tensor, asked["top"]), cast(Tensor, asked["top_keys"]))
    area = _cell_sizes(problem.extent.i, int(asked["rows"]))[:, None] * _cell_sizes(
        problem.extent.j, int(asked["columns"])
    )
    for short, name in (("map", "map"), ("value", "value_map")):
        total = _tensor(asked, f"{short}_sum")
        if total is not None:
            mean = (total / area.clamp_min(1)).float()
            found[name] = Pooled(mean, cast(Tensor, asked[f"{short}_max"]))
    return found


def _tensor(parts: Parts, name: str) -> Tensor | None:
    found = parts.get(name)
    return found if isinstance(found, Tensor) else None


def _cell_sizes(size: int, cells: int) -> Tensor:
    return (-(-(torch.arange(cells + 1) * size) // cells)).diff()
