"""How the tensors of one architecture become ours."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from limelight.errors import OptionError
from limelight.models.config import Config

BLOCK = "stack.blocks.{t}."
"""The prefix of our names in a block; `{t}` is its number."""


class Recipe(NamedTuple):
    """How one of our tensors is made from tensors of a file."""

    parts: tuple[str, ...]
    """plain Hugging Face names, concatenated along the rows"""
    transpose: bool = False
    """whether the parts are stored as (in, out), as GPT-2 does"""
    plus: float = 0.0
    """added to the stored values: Gemma's norms multiply by 1 + weight"""
    skip: int = 0
    """leading rows of the part that are left out: RoBERTa's positions begin at the third"""

    def shapes(self, shape: Sequence[int], config: Config) -> list[tuple[int, ...]]:
        """The stored shape of each part, for our tensor of this `shape`."""
        rows, *others = shape
        if len(self.parts) == 3:  # Q, K, V
            counts = [
                heads * config.head_size
                for heads in (config.heads, config.kv_heads, config.kv_heads)
            ]
        else:
            counts = [rows // len(self.parts)] * len(self.parts)
        shapes = [(count + self.skip, *others) for count in counts]
        return [part[::-1] for part in shapes] if self.transpose else shapes

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """Our tensor from the parts as they are stored."""
        ours = [part.t() for part in parts] if self.transpose else parts
        joined = ours[0] if len(ours) == 1 else torch.cat(tuple(ours))
        joined = joined[self.skip :]
        return joined + self.plus if self.plus else joined


ConfigReader = Callable[[Mapping[str, Any]], Config]
"""A function from a config.json to our config."""


@dataclass(frozen=True)
class Family:
    """The names of one architecture: our module → their modules, `{t}` counting the blocks.

    Where ours is a tensor rather than a module, theirs is one too.
    """

    name: str
    config: ConfigReader
    prefix: str
    """of the names in a model that was saved with a head"""
    modules: Mapping[str, tuple[str, ...]]
    transposed: frozenset[str] = frozenset()
    """our modules whose weights are stored as (in, out)"""
    plus_one: frozenset[str] = frozenset()
    """our norms whose weights are stored minus 1"""
    skipped: Mapping[str, int] = field(default_factory=dict[str, int])
    """our tables, and how many leading rows of theirs are left out"""
    computed: Mapping[str, Callable[[int, int], Tensor]] = field(
        default_factory=dict[str, Callable[[int, int], Tensor]]
    )
    """our tensors that a file may lack, and functions of rows and columns that compute them"""
    unused: tuple[str, ...] = ()
    """patterns of tensors that our models do not use"""
    prefixes: tuple[str, ...] = ()
    """other prefixes that occur"""

    def plain(self, hf_name: str) -> str:
        """A tensor's name without its prefix, in the current spelling."""
        prefixes = (self.prefix, *self.prefixes)
        prefix = next((known for known in prefixes if known and hf_name.startswith(known)), "")
        name = hf_name.removeprefix(prefix)
        if name.endswith((".gamma", ".beta")):
            name = name.replace(".gamma", ".weight").replace(".beta", ".bias")
        return name

    def recipe(self, name: str) -> Recipe:
        """What our tensor `name` is made from.

        >>> from limelight.models.loading.families import family_of
        >>> family_of({"model_type": "llama"}).recipe("stack.blocks.3.feedforward.up.weight").parts
        ('layers.3.mlp.gate_proj.weight', 'layers.3.mlp.up_proj.weight')
        """
        # MaskedLM and Classifier hold the encoder as a submodule.
        for ours in (name, name.removeprefix("encoder.")):
            module, _, kind = ours.rpartition(".")
            number = re.search(r"blocks\.(\d+)\.", module)
            block = number[1] if number else ""
            pattern = module.replace(f"blocks.{block}.", "blocks.{t}.") if block else module
            tensors = self.modules.get(f"{pattern}.{kind}".lstrip("."))
            theirs = tensors or [f"{part}.{kind}" for part in self.modules.get(pattern, ())]
            if theirs:
                break
        else:
            raise OptionError(f"the {self.name} family has no tensor for {name!r}")
        return Recipe(
            tuple(part.replace("{t}", block) for part in theirs),
            transpose=pattern in self.transposed and kind == "weight",
            plus=1.0 if pattern in self.plus_one and kind == "weight" else 0.0,
            skip=self.skipped.get(pattern, 0),
        )

    def is_unused(self, plain_name: str) -> bool:
        """Whether a tensor of the file may be ignored."""
        return any(re.fullmatch(pattern, plain_name) for pattern in self.unused)
