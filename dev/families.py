"""Which Hugging Face families can be watched, and how: writes docs/models.md.

    python dev/families.py              # test all families (minutes) and write docs/models.md
    python dev/families.py bert gpt2    # print the rows of some
    python dev/families.py --why bert   # and why some of their models could not be run

Tiny models of a family (`tiny_models.py`) run within `watch` until every attention module of the
family has run. How a module that cannot be run computes attention is read from its source.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import re
import sys
import tomllib
import warnings
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from stand_ins import stand_ins
from tiny_models import VARIANTS, by_hand, tiny
from torch import nn

import limelight as ll
import limelight.huggingface
from limelight.errors import LimelightError
from limelight.seeing.watching.huggingface import is_own_attention
from limelight.seeing.watching.unseen import ATTENTION

PAGE = Path(__file__).parents[1] / "docs" / "models.md"
BY_HAND: dict[str, dict[str, Any]] = tomllib.loads(
    Path(__file__).with_suffix(".toml").read_text("utf-8")
)
"""By family: a model's class, its config and its inputs; or why only its source is read."""

WATCHED_CALLS = ("get_interface(", "scaled_dot_product_attention(", "nn.MultiheadAttention(")
"""Calls in a source that `watch` can see."""

MAX_MODELS = 6
"""Model classes of a family that are tried."""


class Row(NamedTuple):
    """How one family is seen."""

    family: str
    seen: str
    """fused, dense, in part, refused, or none"""
    known: str
    """run or read"""
    note: str = ""


class Run(NamedTuple):
    """What `watch` saw of one model."""

    fused: bool = False
    dense: bool = False
    unseen: frozenset[str] = frozenset()
    refused: str = ""
    ran: frozenset[str] = frozenset()
    """classes of its attention modules that ran"""


def main(names: list[str]) -> None:
    """Print the rows of some families, or test all and write the page."""
    explain = "--why" in names
    names = [name for name in names if name != "--why"]
    rows: list[Row] = []
    for family in names or families():
        row = seen(family, explain=explain)
        print(*row, sep=" | ", flush=True)
        rows.append(row)
    if not names:
        PAGE.write_text(page(rows), encoding="utf-8")


def families() -> list[str]:
    """Every family in transformers that has attention."""
    import transformers.models

    root = Path(next(iter(transformers.models.__path__)))
    return sorted(
        folder.name for folder in root.iterdir() if any(map(_attends, folder.glob("modeling_*.py")))
    )


def _attends(file: Path) -> bool:
    return bool(re.search(r"class \w*Att(entio)?n\w*\(|Attention\(", file.read_text("utf-8")))


def seen(family: str, *, explain: bool = False) -> Row:
    """How a family is seen: by tiny models that are run, and by the source of other modules."""
    source_modules = _source_modules(family)
    with stand_ins(family, source_modules):
        return _seen(family, source_modules, explain=explain)


def _seen(family: str, source_modules: list[Any], *, explain: bool) -> Row:
    parts = {
        name: is_own_attention(part, source_module)
        for source_module in source_modules
        for name, part in vars(source_module).items()
        if isinstance(part, type) and issubclass(part, nn.Module)
        and part.__module__ == source_module.__name__ and ATTENTION.search(name)
    }  # fmt: skip
    entry = BY_HAND.get(family, {})
    runs = [watched_run(*by_hand(source_modules, **entry))] if "model" in entry else []
    for tried, model_class in enumerate(_model_classes(source_modules)[:MAX_MODELS]):
        ran = frozenset().union(*(run.ran for run in runs))
        missing = parts.keys() - ran
        # modules on the interface are seen wherever they run: two models of them are enough
        if runs and not (any(parts[name] for name in missing) or (missing and len(runs) < 2)):
            break
        variants = VARIANTS[:1] if runs or tried > 1 else VARIANTS
        for variant in variants:
            try:
                model, inputs = tiny(model_class, variant)
            except Exception as error:  # a model may raise anything for an unexpected config
                if explain:
                    name = f"{model_class.__name__} {variant or ''}"
                    print(f"  {name}: {type(error).__name__}: {error!s:.200}")
                continue
            runs.append(watched_run(model, inputs))
            break
    return _row(family, source_modules, parts, runs)


def _row(family: str, source_modules: list[Any], parts: dict[str, bool], runs: list[Run]) -> Row:
    # in a family with attention, a model without any (such as its backbone) shows nothing
    runs = [run for run in runs if not parts or run.fused or run.refused or run.ran & parts.keys()]
    reason = BY_HAND.get(family, {}).get("read")
    known = "run" if runs else f"read: {reason}" if reason else "read"
    source = "".join(inspect.getsource(source_module) for source_module in source_modules)
    ran = frozenset().union(*(run.ran for run in runs))
    unseen = frozenset().union(*(run.unseen for run in runs))
    fused, dense = any(run.fused for run in runs), any(run.dense for run in runs)
    refused = {run.refused for run in runs if run.refused}
    if refused and not fused and not dense:
        return Row(family, "refused", known, ", ".join(sorted(refused)))
    # modules that did not run, by their source
    own = {name for name, by_itself in parts.items() if by_itself and name not in ran}
    on_interface = {name for name, by_itself in parts.items() if not by_itself and name not in ran}
    watched = any(call in source for call in WATCHED_CALLS)
    if not fused and not dense:
        # a family without attention of its own consists of other models, made by AutoModel
        fused = (watched and bool(on_interface)) or (not (runs or own) and "AutoModel" in source)
        dense = False  # only a run shows whether returned weights are those of tokens
    unseen |= refused | (own if fused else set())
    if not fused and not dense:
        unseen |= own
        return Row(family, "refused" if unseen else "none", known, ", ".join(sorted(unseen)))
    how = "dense" if dense else "fused"
    return Row(family, f"{how} in part" if unseen else how, known, ", ".join(sorted(unseen)))


def watched_run(model: nn.Module, inputs: dict[str, Any]) -> Run:
    """Run a model within `watch`."""
    with warnings.catch_warnings(record=True) as caught, torch.no_grad():
        warnings.simplefilter("always")
        ran: set[str] = set()
        hook = nn.modules.module.register_module_forward_pre_hook(
            lambda module, _: ran.add(type(module).__name__)
        )
        try:
            with ll.watch(model, ll.Lens(top=2)) as watched:
                model(**inputs)
        except LimelightError as error:
            reason, *_ = re.split(" instead of |:", str(error))  # without what to do about it
            return Run(refused=reason, ran=frozenset(ran))
        except Exception as error:
            if "output_attentions" not in "".join(getattr(error, "__notes__", ())):
                raise
            return Run(refused="it fails with output_attentions=True", ran=frozenset(ran))
        finally:
            hook.remove()
    messages = [str(warning.message) for warning in caught]
    unseen_warning = next((message for message in messages if "did not see" in message), "")
    classes = re.search(r"\(([\w, ]+)\)", unseen_warning)
    return Run(
        bool(watched.order) and not watched.is_dense, watched.is_dense,
        frozenset(classes[1].split(", ") if classes else ()), "", frozenset(ran),
    )  # fmt: skip


@cache
def _source_modules(family: str) -> list[Any]:
    import transformers.models

    folder = Path(next(iter(transformers.models.__path__))) / family
    source_modules: list[Any] = []
    for file in sorted(folder.glob("modeling_*.py")):
        try:
            source_modules.append(
                importlib.import_module(f"transformers.models.{family}.{file.stem}")
            )
        except ImportError:  # a package that is not installed here
            continue
    return source_modules


def _model_classes(source_modules: list[Any]) -> list[type[Any]]:
    """The model classes of a family, those without a head first."""
    from transformers import PreTrainedModel

    classes = [
        each
        for source_module in source_modules
        for each in vars(source_module).values()
        if isinstance(each, type) and issubclass(each, PreTrainedModel)
        and each.__module__ == source_module.__name__ and "PreTrained" not in each.__name__
        and each.config_class is not None
    ]  # fmt: skip
    return sorted(classes, key=lambda each: ("For" in each.__name__, len(each.__name__)))


def page(rows: list[Row]) -> str:
    """The page: the table, and what its terms mean."""
    import transformers

    counts = Counter(row.seen for row in rows)
    totals = ", ".join(f"{count} {seen}" for seen, count in sorted(counts.items()))
    ran = sum(row.known == "run" for row in rows)
    lines = [
        "# Hugging Face families, and how each is seen",
        "",
        f"Written by `dev/families.py` with transformers {transformers.__version__}: {totals}; "
        f"{ran} of {len(rows)} were run.",
        "",
        "- **fused**: `watch` sees every call, with exact weights from the kernel.",
        "- **dense**: the model computes attention with a softmax of its own and returns its",
        "  weights (`output_attentions`); these are recorded, and `recording.made` says so.",
        "- **in part**: the modules in the last column compute attention themselves and are not",
        "  seen; a warning names them.",
        "- **refused**: none of the model's attention can be seen; a warning or an error says so.",
        "- **none**: the models made no attention call.",
        "- *run*: tiny models with random weights were run; *read*: only the source was read, for",
        "  the reason given.",
        "",
        "| family | seen | known by | not seen |",
        "|---|---|---|---|",
        *(f"| {row.family} | {row.seen} | {row.known} | {row.note} |" for row in rows),
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    assert limelight.huggingface
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    main(sys.argv[1:])
