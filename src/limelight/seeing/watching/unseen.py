"""Attention that a model computes by itself, which cannot be seen."""

from __future__ import annotations

import re
from typing import Any

from torch import nn

from limelight.errors import LimelightError, OptionError, UnavailableError
from limelight.ops.call_sites import CallSites, in_backward, is_within

ATTENTION = re.compile(r"attention|attn(?![a-z])", re.IGNORECASE)

WAYS = (
    "F.scaled_dot_product_attention, nn.MultiheadAttention, limelight's own layers and the "
    "attention interface of transformers"
)
"""The attention calls that are seen."""


def is_named_attention(module: nn.Module) -> bool:
    """Whether a module's class is named for attention, and none inside it is."""
    if not ATTENTION.search(type(module).__name__):
        return False
    parts = (part for part in module.modules() if part is not module)
    return not any(ATTENTION.search(type(part).__name__) for part in parts)


class Unseen:
    """Which modules named for attention ran without an attention call that was seen."""

    def __init__(self, sites: CallSites) -> None:
        self._sites = sites
        self._named = {
            paths[0]: module for module, paths in sites.paths.items() if is_named_attention(module)
        }
        self._ran: set[str] = set()
        self._seen: set[str] = set()
        self._begun = False
        self._returned: set[tuple[str, int]] = set()

    def begin(
        self, module: nn.Module, path: str, args: tuple[Any, ...], options: dict[str, Any]
    ) -> None:
        """A module of the model begins."""
        if not in_backward():
            self._begun = True
            if path in self._named:
                self._ran.add(path)

    def attended(self, path: str) -> None:
        """The module at a path made a call that was seen."""
        if path not in self._seen:
            self._seen.add(path)
            self._seen |= {named for named in self._named if is_within(path, named)}

    def returned(self, stack: str, layer: int) -> None:
        """The model returned the weights of a layer that it computes by itself."""
        self._returned.add((stack, layer))

    @property
    def paths(self) -> list[str]:
        """The modules whose attention was not seen, in the order of the model."""
        missing = self._ran - self._seen
        if len(missing) <= len(self._returned):  # returned weights do not name their modules
            return []
        return [path for path in self._named if path in missing]

    def description(self) -> str:
        """What was not seen, in words; empty where everything was."""
        paths = self.paths
        if not paths:
            return ""
        kinds = sorted({type(self._named[path]).__name__ for path in paths})
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        return f"the attention of {paths[0]}{more} ({', '.join(kinds)})"

    def error(self) -> LimelightError:
        """Why nothing was recorded."""
        if not self._begun:
            return OptionError("nothing was recorded: run the model within the block")
        model, unseen = type(self._sites.model).__name__, self.description()
        reason = (
            f"computes {unseen} by itself, so it cannot be seen"
            if unseen
            else "made no attention call that can be seen"
        )
        return UnavailableError(f"nothing was recorded: {model} {reason}. What is seen: {WAYS}")
