"""Parses the printed formula of a step and applies it to the other printed steps."""

from __future__ import annotations

import re

import torch
from torch import Tensor

from limelight.seeing.steps.steps import Steps

INPUTS = {"the input of the layer", "what is attended to", "learned", "given"}
ANGLES = ("of the angle", "of the same angle")


def evaluate(steps: Steps, name: str) -> Tensor | None:
    """The value of a step by its formula; None for inputs."""
    formula = steps[name].formula
    values = {step.name: step.value for step in steps}
    if formula in INPUTS or formula.startswith((*ANGLES, "1 where ")):
        return None
    in_words = {
        "softmax of each row of masked": lambda: torch.softmax(values["masked"], -1).nan_to_num(),
        "Σ_j weights_ij": lambda: values["weights"].sum(1),
        "the heads side by side": lambda: torch.cat(list(values["heads"]), dim=1),
    }
    if formula in in_words:
        return in_words[formula]()
    if match := re.fullmatch(r"columns (\d+) to (\d+) of X", formula):
        return values["X"][:, int(match[1]) : int(match[2]) + 1]
    if match := re.fullmatch(r"−(\S+) · distance in tokens", formula):
        i, j = values["scores"].shape
        return -float(match[1]) * (torch.arange(j - i, j)[:, None] - torch.arange(j)).abs()
    formula = formula.removesuffix(", where swap exchanges the halves of each row")
    formula, _, masked = formula.partition(" where mask is 1")
    value = _compute(formula, values)
    return value.where(values["mask"] == 1, float("-inf")) if masked else value


def _compute(formula: str, values: dict[str, Tensor]) -> Tensor:
    """Names become their values; `·` is the product of matrices, or by a number."""
    code = formula.replace("ᵀ", "†")
    names = sorted(values, key=len, reverse=True)
    for index, name in enumerate(names):
        code = re.sub(rf"(?<![\w_<]){re.escape(name)}(?![\w_>])", f"<{index}>", code)
    code = re.sub(r"√(\d+)", r"\1**0.5", code)
    code = re.sub(r"<(\d+)>†", r"<\1>.mT", code)
    code = re.sub(r"(<\d+>) · ([\d.e+-]+)$", r"\1 * \2", code)
    code = re.sub(r"^([\d.e+-]+) · ", r"\1 * ", code)
    code = code.replace("·", "@").replace("∘", "*")
    code = re.sub(r"<(\d+)>", lambda match: f"values[{names[int(match[1])]!r}]", code)
    namespace = {
        "values": values,
        "tanh": torch.tanh,
        "swap": lambda x: x.roll(x.shape[-1] // 2, -1),
    }
    return eval(code, namespace)
