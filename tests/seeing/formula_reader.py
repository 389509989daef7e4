"""Reads the printed formula of a step and applies it to the printed steps, as a person would."""

from __future__ import annotations

import re

import torch
from torch import Tensor

from limelight.seeing.steps.steps import Steps

GIVEN = {"the input of the layer", "what is attended to", "learned", "given"}
ANGLES = ("of the angle", "of the same angle")


def follows(steps: Steps, name: str) -> Tensor | None:
    """What the formula of a step gives; None for what enters from outside."""
    formula = steps[name].formula
    values = {step.name: step.value for step in steps}
    if formula in GIVEN or formula.startswith((*ANGLES, "1 where ")):
        return None
    worded = {
        "softmax of each row of masked": lambda: torch.softmax(values["masked"], -1).nan_to_num(),
        "Σ_j weights_ij": lambda: values["weights"].sum(1),
        "the heads side by side": lambda: torch.cat(list(values["heads"]), dim=1),
    }
    if formula in worded:
        return worded[formula]()
    if found := re.fullmatch(r"columns (\d+) to (\d+) of X", formula):
        return values["X"][:, int(found[1]) : int(found[2]) + 1]
    if found := re.fullmatch(r"−(\S+) · distance in tokens", formula):
        i, j = values["scores"].shape
        return -float(found[1]) * (torch.arange(j - i, j)[:, None] - torch.arange(j)).abs()
    formula = formula.removesuffix(", where swap exchanges the halves of each row")
    formula, _, hidden = formula.partition(" where mask is 1")
    found = _compute(formula, values)
    return found.where(values["mask"] == 1, float("-inf")) if hidden else found


def _compute(formula: str, values: dict[str, Tensor]) -> Tensor:
    """Names become their values; `·` is the product of matrices, or by a number."""
    code = formula.replace("ᵀ", "†")
    for place, name in enumerate(sorted(values, key=len, reverse=True)):
        code = re.sub(rf"(?<![\w_<]){re.escape(name)}(?![\w_>])", f"<{place}>", code)
    names = sorted(values, key=len, reverse=True)
    code = re.sub(r"√(\d+)", r"\1**0.5", code)
    code = re.sub(r"<(\d+)>†", r"<\1>.mT", code)
    code = re.sub(r"(<\d+>) · ([\d.e+-]+)$", r"\1 * \2", code)
    code = re.sub(r"^([\d.e+-]+) · ", r"\1 * ", code)
    code = code.replace("·", "@").replace("∘", "*")
    code = re.sub(r"<(\d+)>", lambda found: f"values[{names[int(found[1])]!r}]", code)
    known = {
        "values": values,
        "tanh": torch.tanh,
        "swap": lambda x: x.roll(x.shape[-1] // 2, -1),
    }
    return eval(code, known)
