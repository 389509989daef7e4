"""The step-by-step panel: every matrix of one head, and a worked example to edit."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from limelight.errors import OptionError
from limelight.explorer.frames import frame
from limelight.insight.worked.parsing import worked
from limelight.ops.lens.sources import Recomputed
from limelight.seeing.recording.recording import Recording

MAX_TOKENS = 96
"""Of a longer text a matrix has more cells than can be pointed at."""

_STEP_NAMES = (
    "X", "memory", "W_Q", "b_Q", "W_K", "b_K", "W_V", "b_V", "W_O", "b_O", "Q unrotated", "Q",
    "K unrotated", "K", "V", "scores", "scaled", "bias", "position bias", "mask", "masked",
    "weights", "weighted values", "concatenation", "output",
)  # fmt: skip


def steps_frame(recording: Recording, layer: int, head: int) -> bytes:
    """Each step of a head as a named array; the header has its formula and axes."""
    count = max(len(recording.queries), len(recording.tokens))
    if count > MAX_TOKENS:
        raise OptionError(
            f"step by step is for texts of up to {MAX_TOKENS} tokens, this one has {count}"
        )
    flow = recording.steps(layer, head)
    source = recording.seen(layer).source
    scale = source.problem.scale if isinstance(source, Recomputed) else 1.0
    softcap = source.problem.softcap if isinstance(source, Recomputed) else None
    steps = [step for step in flow if step.name in _STEP_NAMES]
    header = {
        "layer": layer, "head": head, "position": recording.head_position(head),
        "scale": scale, "softcap": softcap, "missing": flow.missing,
        "steps": [{"name": s.name, "formula": s.formula, "axes": s.axes} for s in steps],
    }  # fmt: skip
    return frame(header, {step.name: step.value.float() for step in steps})


def worked_example(edited: dict[str, list[list[float]]]) -> dict[str, Any]:
    """The worked example with edited tables, and the audit of its printed numbers."""
    example = worked("apple-phones")
    layer = example.layers[0]
    head = layer.heads[0]
    tables: dict[str, Tensor] = {"x": example.x, "w_query": head.w_query, "w_key": head.w_key,
                              "w_value": head.w_value}  # fmt: skip
    for name, rows in edited.items():
        expected = tables[name].shape
        if [len(row) for row in rows] != [expected[1]] * expected[0]:
            raise OptionError(f"{name} must have {expected[0]} rows of {expected[1]} numbers")
        tables[name] = torch.tensor(rows, dtype=torch.float64)
    x, *matrices = tables.values()
    head = dataclasses.replace(head, w_query=matrices[0], w_key=matrices[1], w_value=matrices[2])
    layer = dataclasses.replace(layer, heads=(head,))
    example = dataclasses.replace(example, x=x, layers=(layer,))
    return {
        "title": example.title,
        "tokens": list(example.tokens),
        "tables": {name: table.tolist() for name, table in tables.items()},
        "steps": [
            {
                "name": step.name,
                "formula": step.formula,
                "columns": list(step.columns),
                "table": step.table.tolist(),
            }
            for step in example.steps()
        ],
        "mismatches": [
            {"step": m.step, "token": m.token, "column": m.column, "text": str(m)}
            for m in example.audit().mismatches
        ],
    }
