"""Worked examples that check themselves: every step from X to the output, and an audit of print.

A worked example is a small TOML file: tokens, their embeddings X, the three matrices, and, if it
stands printed somewhere, what is printed for each step. `steps` computes what is right; `audit`
says which printed numbers do not follow from the ones printed before them.
"""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from limelight.errors import FileError
from limelight.ops.backends import reference
from limelight.ops.problem import Problem, check_problem

EXAMPLES = Path(__file__).parent / "examples"


@dataclass(frozen=True)
class Step:
    """One step with its numbers: a name, the formula, the table."""

    name: str
    formula: str
    table: Tensor
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Slip:
    """A printed number that does not follow from what is printed before it."""

    step: str
    token: str
    column: str
    printed: float
    follows: float

    def __str__(self) -> str:
        return (
            f"{self.step}[{self.token}, {self.column}] is printed as {self.printed:g}, "
            f"but {self.follows:.4g} follows"
        )


@dataclass(frozen=True)
class Printed:
    """A printed table and half of its last digit."""

    table: Tensor
    half_digit: float


@dataclass(frozen=True)
class Worked:
    """A worked example of one attention head.

    >>> example = load_worked("apple-phones")
    >>> example.steps()[-1].table[0]
    tensor([0.9172, 1.3309], dtype=torch.float64)
    >>> len(example.audit())
    15
    """

    title: str
    tokens: tuple[str, ...]
    x: Tensor
    w_query: Tensor
    w_key: Tensor
    w_value: Tensor
    printed: dict[str, Printed]

    def steps(self) -> list[Step]:
        """X → Q, K, V → scores → scaled → weights → output, in float64."""
        query, key, value = (self.x @ w for w in (self.w_query, self.w_key, self.w_value))
        problem = _one_head(query, key, value)
        scaled = reference.scores(problem)
        weights, _ = reference.normalise(scaled)
        output, _ = reference.attend(problem)
        model, head = _numbered("x", self.x.shape[1]), _numbered("d", query.shape[1])
        content = _numbered("e", value.shape[1])
        return [
            Step("X", "the tokens' embeddings", self.x, model),
            Step("query", "Q = X · W_Q: what each token looks for", query, head),
            Step("key", "K = X · W_K: what each token offers to be found by", key, head),
            Step("value", "V = X · W_V: what each token gives when found", value, content),
            Step("scores", "S = Q · Kᵀ: how well query matches key", query @ key.T, self.tokens),
            Step("scaled", f"S / √{query.shape[1]}: spread kept at 1", scaled[0, 0], self.tokens),
            Step("weights", "softmax of a row: shares that sum to 1", weights[0, 0], self.tokens),
            Step("output", "weights · V: each token's mix of values", output[0, 0], content),
        ]  # fmt: skip

    def audit(self) -> list[Slip]:
        """Every printed number that does not follow from X, the matrices and earlier print.

        Each step is recomputed from the *printed* tables before it, so a slip counts once, where it
        was made. A number follows if it agrees to half of its last printed digit, plus what the
        rounding of the tables it was made from can move it.
        """
        slips: list[Slip] = []
        for name in ("query", "key", "value", "scores", "weights", "output"):
            if name not in self.printed:
                continue
            printed = self.printed[name]
            follows, slack = self._from_print(name)
            wrong = (follows - printed.table).abs() > printed.half_digit + slack + 1e-9
            columns = self.tokens if name in ("scores", "weights") else _numbered("", 99)
            for i, j in wrong.nonzero().tolist():
                slips.append(
                    Slip(name, self.tokens[i], columns[j],
                         float(printed.table[i, j]), float(follows[i, j]))
                )  # fmt: skip
        return slips

    def _from_print(self, name: str) -> tuple[Tensor, Tensor | float]:
        """What should stand in a table, given print before it, and how far rounding may move it."""
        printed = {step: p.table for step, p in self.printed.items()}
        match name:
            case "query" | "key" | "value":
                return self.x @ getattr(self, f"w_{name}"), 0.0
            case "scores":
                return printed["query"] @ printed["key"].T, 0.0
            case "weights":
                scores = printed["scores"] / math.sqrt(self.w_query.shape[1])
                return reference.normalise(scores)[0], 0.0
            case _:
                value = printed["value"]
                slack = self.printed["weights"].half_digit * value.abs().sum(0, keepdim=True)
                return printed["weights"] @ value, slack


def load_worked(name_or_path: str | Path = "apple-phones") -> Worked:
    """A worked example by its name in `examples/`, or from a TOML file of your own."""
    path = EXAMPLES / f"{name_or_path}.toml"
    if not path.exists():
        path = Path(name_or_path)
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        known = ", ".join(sorted(p.stem for p in EXAMPLES.glob("*.toml")))
        raise FileError(f"no worked example at {path} ({error.strerror}); known: {known}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FileError(f"{path} is not a TOML file: {error}") from None
    return _checked(path, data)


def _checked(path: Path, data: dict[str, Any]) -> Worked:
    tokens = tuple(str(token) for token in data.get("tokens", ()))
    if not tokens:
        raise FileError(f"{path}: tokens is missing or empty, expected a list of words")
    matrices = {
        name: _matrix(path, name, data.get(name)) for name in ("x", "w_query", "w_key", "w_value")
    }
    if matrices["x"].shape[0] != len(tokens):
        raise FileError(
            f"{path}: x has {matrices['x'].shape[0]} rows, expected {len(tokens)} as tokens"
        )
    for name in ("w_query", "w_key", "w_value"):
        if matrices[name].shape[0] != matrices["x"].shape[1]:
            raise FileError(
                f"{path}: {name} has {matrices[name].shape[0]} rows, "
                f"expected {matrices['x'].shape[1]} as x has columns"
            )
    if matrices["w_query"].shape[1] != matrices["w_key"].shape[1]:
        raise FileError(f"{path}: w_query and w_key must have as many columns as one another")
    printed = {name: _printed(path, name, rows) for name, rows in data.get("printed", {}).items()}
    return Worked(str(data.get("title", path.stem)), tokens, **matrices, printed=printed)


def _matrix(path: Path, name: str, rows: Any) -> Tensor:
    try:
        table = torch.tensor(rows, dtype=torch.float64)
    except (TypeError, ValueError):
        table = torch.zeros(0)
    if table.ndim != 2 or not table.numel():
        raise FileError(
            f"{path}: {name} must be rows of numbers, all of one length, found {rows!r}"
        )
    return table


def _printed(path: Path, name: str, rows: list[str]) -> Printed:
    words = [row.split() for row in rows]
    digits = max(len(word.partition(".")[2]) for row in words for word in row)
    return Printed(
        _matrix(path, f"printed.{name}", [[float(w) for w in row] for row in words]),
        0.5 * 10**-digits,
    )


def _one_head(query: Tensor, key: Tensor, value: Tensor) -> Problem:
    return check_problem(query[None, None], key[None, None], value[None, None])


def _numbered(letter: str, count: int) -> tuple[str, ...]:
    return tuple(f"{letter}{t + 1}" for t in range(count))
