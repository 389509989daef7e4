"""One description of a model: its sizes, and a few choices instead of many flags."""

from __future__ import annotations

import math
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, Literal, cast

from limelight.checks import check_number, check_positive, check_probability, check_whole
from limelight.errors import OptionError
from limelight.fields import check_fields, check_names, check_value
from limelight.layers.attention import HeadsSee
from limelight.layers.block import Order
from limelight.layers.feedforward import Activation
from limelight.layers.norm import Norm
from limelight.layers.rotary import SCALINGS, Pairs, Scaling

Kind = Literal["encoder", "decoder", "transformer", "vision"]
Positions = Literal["sinusoidal", "learned", "rotary", "alibi", "relative", "none"]
EmbeddingKind = Literal["plain", "scaled", "normed", "scaled_normed"]
ModelBiases = Literal["none", "inputs", "attention", "all"]


@dataclass(frozen=True, kw_only=True)
class Config:
    """The architecture of a model. Frozen; combinations that make no sense raise.

    >>> Config.llama(layers=2, width=64, heads=4, kv_heads=3)
    Traceback (most recent call last):
    ...
    limelight.errors.OptionError: kv_heads must divide heads, found kv_heads = 3, heads = 4
    >>> Config.gpt2(layers=2).width
    768
    """

    kind: Kind
    """encoder: every token sees all others; decoder: each sees those before it; transformer: an
    encoder and a decoder that attends to it; vision: an encoder of the patches of a picture"""
    vocabulary: int
    """the number of tokens; of a vision model the number of classes, 0 for none"""
    width: int
    layers: int
    heads: int
    context: int
    """tokens in the longest text; a limit where positions are learned"""
    decoder_layers: int | None = None
    """of a transformer; `layers` unless given"""
    kv_heads: int = cast("int", None)
    """g, the key/value heads; fewer than heads for grouped-query attention; `heads` unless given"""
    head_size: int = cast("int", None)
    """d, the channels of a head; width / heads unless given"""
    value_rank: int | None = None
    """the rank of the value projection, full unless given"""
    heads_see: HeadsSee = "all"
    """whether a head of self-attention reads the whole input or its own slice: see `Attention`"""
    hidden: int = cast("int", None)
    """channels inside the feed-forward layer, 4·width unless given"""
    positions: Positions = "learned"
    rotary_base: float = 10000.0
    rotary_scaling: Scaling | None = None
    rotary_pairs: Pairs = "halves"
    """which channels are rotated together: t and t + d/2, or 2t and 2t + 1: see `Rotary`"""
    window: int | None = None
    """how many tokens back (an encoder: and ahead) a token sees, all unless given"""
    global_layers: tuple[int, ...] = ()
    """of a decoder with a window: the layers that have none"""
    window_base: float | None = None
    """the rotary base of layers with a window, if it differs; they then have no scaling"""
    scale: float | None = None
    """of the scores, 1/√d unless given"""
    softcap: float | None = None
    """caps the scores of attention at c·tanh(s/c); no cap unless given"""
    logit_softcap: float | None = None
    """the same for the logits"""
    logit_scale: float = 1.0
    """what the logits are multiplied by (T5: 1/√width)"""
    head_norm: bool = False
    """an RMS norm on each query and key head (Qwen 3, Gemma 3)"""
    logit_bias: bool = False
    """whether a transformer adds a learned bias per token to the logits (BART)"""
    embedding_width: int | None = None
    """channels of the token table, if a matrix maps them to width (ELECTRA)"""
    activation: Activation = "gelu"
    norm: Norm = "layer"
    norm_eps: float = 1e-5
    order: Order = "pre"
    """where norms sit: see `Block`"""
    bias: ModelBiases = "all"
    """none; inputs: of Q, K, V; attention: W^O too; all: feed-forward too"""
    embedding: EmbeddingKind = "plain"
    """scaled: times √width, initialised as in the 2017 paper; normed: followed by a norm;
    scaled_normed: both"""
    target_embedding: Literal["shared", "own"] = "shared"
    """own: the target of a transformer has positions and a norm of its own (BART)"""
    image: tuple[int, int] | None = None
    """height and width in pixels of the pictures that a vision model reads"""
    patch: int | None = None
    """the side in pixels of a vision model's patches"""
    segments: int = 0
    """the number of segment embeddings (BERT's token types)"""
    tied: bool = True
    """whether the token table is also the output matrix"""
    dropout: float = 0.0

    def __post_init__(self) -> None:
        self._check_sizes()
        for name, size in _derived(self.width, self.heads).items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, size)
        check_fields(self)
        self._check_numbers()
        self._check_heads()
        self._check_positions()
        if self.decoder_layers is not None and self.kind != "transformer":
            raise OptionError(f"decoder_layers is for kind='transformer', found {self.kind!r}")
        if self.global_layers and (self.kind != "decoder" or self.window is None):
            raise OptionError("global_layers are for a decoder with a window")
        if self.embedding_width is not None and self.kind != "encoder":
            raise OptionError(f"embedding_width is for kind='encoder', found {self.kind!r}")
        if self.kind != "transformer" and (self.logit_bias or self.target_embedding == "own"):
            raise OptionError(
                f"logit_bias and target_embedding are for kind='transformer', found {self.kind!r}"
            )
        self._check_picture()
        if self.segments and self.kind != "encoder":
            raise OptionError(f"segments are for kind='encoder', found {self.kind!r}")

    def _check_sizes(self) -> None:
        check_whole("vocabulary", self.vocabulary, 0 if self.kind == "vision" else 1)
        for name in ("width", "layers", "heads", "context"):
            check_whole(name, getattr(self, name), 1)
        for name in (
            "decoder_layers",
            "kv_heads",
            "head_size",
            "value_rank",
            "hidden",
            "embedding_width",
        ):
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name), 1)
        check_whole("segments", self.segments, 0)
        if self.window is not None:
            check_whole("window", self.window, 0)

    def _check_picture(self) -> None:
        if self.kind != "vision":
            if self.image is not None or self.patch is not None:
                raise OptionError(f"image and patch are for kind='vision', found {self.kind!r}")
            return
        if self.image is None or self.patch is None or len(self.image) != 2:
            raise OptionError(
                f"kind='vision' needs image (height, width) and patch, found image = {self.image}, "
                f"patch = {self.patch}"
            )
        check_whole("patch", self.patch, 1)
        for side in self.image:
            check_whole("each of image", side, self.patch)
        patches = (self.image[0] // self.patch) * (self.image[1] // self.patch)
        if self.context != patches + 1 or self.positions != "learned":
            raise OptionError(
                f"kind='vision' needs learned positions and a context of {patches + 1}, the "
                f"patches and [CLS], found positions = {self.positions!r}, context = {self.context}"
            )

    def _check_numbers(self) -> None:
        check_probability("dropout", self.dropout)
        check_number(
            "norm_eps", self.norm_eps, "a small positive number, below 1", above=0.0, below=1.0
        )
        check_number("rotary_base", self.rotary_base, "above 1", above=1.0)
        check_number("logit_scale", self.logit_scale, "a finite number")
        for name in ("window_base", "scale", "softcap", "logit_softcap"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))
        for layer in self.global_layers:
            check_whole("each of global_layers", layer, 0, self.layers - 1)

    def _check_heads(self) -> None:
        if not self.head_size:
            raise OptionError(
                f"width must be a multiple of heads, found width = {self.width}, "
                f"heads = {self.heads}; otherwise pass head_size"
            )
        if self.heads % self.kv_heads:
            raise OptionError(
                f"kv_heads must divide heads, "
                f"found kv_heads = {self.kv_heads}, heads = {self.heads}"
            )
        if self.heads_see == "slice":
            if self.kv_heads != self.heads or self.value_rank is not None:
                raise OptionError(
                    "heads_see='slice' needs kv_heads = heads and no value_rank, found "
                    f"kv_heads = {self.kv_heads}, heads = {self.heads}, "
                    f"value_rank = {self.value_rank}"
                )
            if self.width % self.heads:
                raise OptionError(
                    f"heads_see='slice' needs a width that is a multiple of heads, "
                    f"found width = {self.width}, heads = {self.heads}"
                )

    def _check_positions(self) -> None:
        rotary = self.positions == "rotary"
        if not rotary and (self.rotary_scaling is not None or self.rotary_base != 10000.0):
            raise OptionError(
                f"rotary_base and rotary_scaling need positions='rotary', found {self.positions!r}"
            )
        if rotary and self.head_size % 2:
            raise OptionError(f"rotary positions need an even head size, found {self.head_size}")
        if self.positions == "sinusoidal" and self.width % 2:
            raise OptionError(f"sinusoidal positions need an even width, found {self.width}")

    @property
    def cache_window(self) -> int | None:
        """How many tokens back any layer sees, which a cache has to keep; None: all."""
        return None if self.global_layers else self.window

    @classmethod
    def transformer2017(cls, **changes: Any) -> Config:
        """The encoder–decoder of "Attention Is All You Need", base size.

        Vaswani et al. 2017, https://arxiv.org/abs/1706.03762
        """
        preset = cls(
            kind="transformer", vocabulary=37000, width=512, layers=6, heads=8, hidden=2048,
            context=512, positions="sinusoidal", activation="relu", order="post",
            embedding="scaled", dropout=0.1,
        )  # fmt: skip
        return preset.changed(**changes)

    @classmethod
    def bert(cls, **changes: Any) -> Config:
        """BERT, base size. Devlin et al. 2018, https://arxiv.org/abs/1810.04805."""
        preset = cls(
            kind="encoder", vocabulary=30522, width=768, layers=12, heads=12, context=512,
            order="post", embedding="normed", segments=2, norm_eps=1e-12,
        )  # fmt: skip
        return preset.changed(**changes)

    @classmethod
    def gpt2(cls, **changes: Any) -> Config:
        """GPT-2, small size. Radford et al. 2019."""
        preset = cls(
            kind="decoder", vocabulary=50257, width=768, layers=12, heads=12, context=1024,
            activation="gelu_tanh",
        )  # fmt: skip
        return preset.changed(**changes)

    @classmethod
    def vit(cls, **changes: Any) -> Config:
        """ViT, base size. Dosovitskiy et al. 2020, https://arxiv.org/abs/2010.11929."""
        preset = cls(
            kind="vision", vocabulary=0, width=768, layers=12, heads=12, image=(224, 224), patch=16,
            context=197, norm_eps=1e-12, tied=False,
        )  # fmt: skip
        image, patch = changes.get("image", preset.image), changes.get("patch", preset.patch)
        if {"image", "patch"} & changes.keys() and "context" not in changes:
            side = check_whole("patch", patch)
            check_value("image", image, tuple[int, ...])
            changes["context"] = 1 + math.prod(length // side for length in image)
        return preset.changed(**changes)

    @classmethod
    def llama(cls, **changes: Any) -> Config:
        """Llama 2, 7B size. Touvron et al. 2023, https://arxiv.org/abs/2307.09288."""
        preset = cls(
            kind="decoder", vocabulary=32000, width=4096, layers=32, heads=32, hidden=11008,
            context=4096, positions="rotary", activation="swiglu", norm="rms", bias="none",
            tied=False,
        )  # fmt: skip
        # The feed-forward layer follows the width: 8/3 of it, rounded up to a multiple of 8.
        if "width" in changes and "hidden" not in changes:
            changes["hidden"] = -(-8 * check_whole("width", changes["width"]) // 24) * 8
        return preset.changed(**changes)

    def changed(self, **changes: Any) -> Config:
        """A copy with these fields changed; sizes derived from width and heads are derived anew."""
        names = {field.name for field in fields(self)}
        for name in changes:
            if name not in names:
                raise OptionError(
                    f"Config has no field {name!r}; it has {', '.join(sorted(names))}"
                )
        values = {name: getattr(self, name) for name in names} | changes
        for name, size in _derived(self.width, self.heads).items():
            if values[name] is None or (name not in changes and values[name] == size):
                del values[name]
        return Config(**values)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for a JSON or TOML file; fields at their defaults are left out.

        >>> Config.from_dict(Config.bert().as_dict()) == Config.bert()
        True
        """
        result: dict[str, Any] = {}
        derived = _derived(self.width, self.heads)
        for field in fields(self):
            value = getattr(self, field.name)
            if value == field.default or value == derived.get(field.name):
                continue
            if isinstance(value, Scaling):
                value = {"kind": value.kind, **asdict(value)}
            result[field.name] = value
        return result

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Config:
        """The config that `as_dict` wrote; unknown and missing names raise."""
        check_names("config", values, (field.name for field in fields(cls)))
        required = [field.name for field in fields(cls) if field.default is MISSING]
        missing = [name for name in required if name not in values]
        if missing:
            raise OptionError(f"config lacks fields: {', '.join(missing)}")
        values = dict(values)
        for name in ("global_layers", "image"):
            if isinstance(values.get(name), list):
                values[name] = tuple(values[name])
        scaling = values.get("rotary_scaling")
        if isinstance(scaling, dict):
            values["rotary_scaling"] = make_scaling(cast("dict[str, Any]", scaling))
        return cls(**values)


def _derived(width: int, heads: int) -> dict[str, int]:
    """The sizes that follow from width and heads; head_size 0 where heads does not divide width."""
    return {
        "kv_heads": heads,
        "head_size": 0 if width % heads else width // heads,
        "hidden": 4 * width,
    }


def make_scaling(values: dict[str, Any]) -> Scaling:
    """A rotary scaling from plain values: its `kind` and the options of that kind.

    >>> make_scaling({"kind": "linear", "factor": 2.0})
    LinearScaling(factor=2.0)
    """
    check_value("rotary_scaling", values, dict)
    options = dict(values)
    kind = options.pop("kind", None)
    scaling = SCALINGS.get(str(kind))
    if scaling is None:
        kinds = ", ".join(map(repr, SCALINGS))
        raise OptionError(f"rotary scaling kind must be one of {kinds}, found {kind!r}")
    names = {field.name for field in fields(scaling)}
    if not set(options) <= names:
        extra = ", ".join(sorted(set(options) - names))
        raise OptionError(f"rotary scaling {kind!r} does not take: {extra}")
    try:
        return scaling(**options)
    except TypeError as error:
        raise OptionError(f"rotary scaling {kind!r} needs: {', '.join(sorted(names))}") from error
