"""Self-attention you can see, at full speed.

    import limelight as ll

    out = ll.attend(q, k, v, mask=ll.causal())      # exact, fused, memory linear in the sequence
    rec = ll.look("The animal didn't cross ...")    # what every token attends to

The names below load on first use, so that `limelight --help` need not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from limelight.version import __version__ as __version__

if TYPE_CHECKING:
    from limelight.layers.attention import Attention as Attention
    from limelight.layers.block import Block as Block
    from limelight.layers.cache import Cache as Cache
    from limelight.layers.feedforward import FeedForward as FeedForward
    from limelight.layers.observe import observing as observing
    from limelight.layers.positions import RelativeBias as RelativeBias
    from limelight.layers.positions import sinusoidal as sinusoidal
    from limelight.layers.rotary import Rotary as Rotary
    from limelight.models.beam import Beam as Beam
    from limelight.models.config import Config as Config
    from limelight.models.decoder import Decoder as Decoder
    from limelight.models.encoder import Encoder as Encoder
    from limelight.models.generate import generate as generate
    from limelight.models.generate import stream as stream
    from limelight.models.pretrained import load as load
    from limelight.models.pretrained import save as save
    from limelight.models.sampling import Sampling as Sampling
    from limelight.models.transformer import Transformer as Transformer
    from limelight.ops.attend import attend as attend
    from limelight.ops.attend import explain_choice as explain_choice
    from limelight.ops.bias import alibi as alibi
    from limelight.ops.drop_in import MultiheadAttention as MultiheadAttention
    from limelight.ops.drop_in import scaled_dot_product_attention as scaled_dot_product_attention
    from limelight.ops.lens import Lens as Lens
    from limelight.ops.linear import attend_linear as attend_linear
    from limelight.ops.masks import anchors as anchors
    from limelight.ops.masks import blocks as blocks
    from limelight.ops.masks import causal as causal
    from limelight.ops.masks import dilated as dilated
    from limelight.ops.masks import documents as documents
    from limelight.ops.masks import padding as padding
    from limelight.ops.masks import window as window
    from limelight.ops.packed import attend_packed as attend_packed
    from limelight.ops.seen import Seen as Seen
    from limelight.seeing.record import look as look
    from limelight.seeing.recording import Recording as Recording
    from limelight.seeing.steps import steps as steps
    from limelight.seeing.watch import watch as watch
    from limelight.shapes import LimelightError as LimelightError


_HOME = {
    "attend": "ops.attend",
    "explain_choice": "ops.attend",
    "attend_packed": "ops.packed",
    "attend_linear": "ops.linear",
    "Lens": "ops.lens",
    "Seen": "ops.seen",
    "alibi": "ops.bias",
    "anchors": "ops.masks",
    "blocks": "ops.masks",
    "causal": "ops.masks",
    "dilated": "ops.masks",
    "documents": "ops.masks",
    "padding": "ops.masks",
    "window": "ops.masks",
    "scaled_dot_product_attention": "ops.drop_in",
    "MultiheadAttention": "ops.drop_in",
    "Attention": "layers.attention",
    "Block": "layers.block",
    "Cache": "layers.cache",
    "FeedForward": "layers.feedforward",
    "observing": "layers.observe",
    "RelativeBias": "layers.positions",
    "sinusoidal": "layers.positions",
    "Rotary": "layers.rotary",
    "Config": "models.config",
    "Decoder": "models.decoder",
    "Encoder": "models.encoder",
    "Transformer": "models.transformer",
    "load": "models.pretrained",
    "save": "models.pretrained",
    "generate": "models.generate",
    "stream": "models.generate",
    "Sampling": "models.sampling",
    "Beam": "models.beam",
    "Recording": "seeing.recording",
    "look": "seeing.record",
    "steps": "seeing.steps",
    "watch": "seeing.watch",
    "LimelightError": "shapes",
}
"""Where each public name lives."""

__all__ = [*_HOME]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'limelight' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"limelight.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
