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
    from limelight.errors import LimelightError as LimelightError
    from limelight.explorer.explore import explore as explore
    from limelight.insight.cause import cause as cause
    from limelight.insight.cutting import cutting as cutting
    from limelight.insight.exercise import exercise as exercise
    from limelight.insight.head_labels import head_labels as head_labels
    from limelight.insight.head_output import wrote as wrote
    from limelight.insight.heads import heads as heads
    from limelight.insight.rollout import rollout as rollout
    from limelight.insight.shift import shift as shift
    from limelight.insight.studies.registry import study as study
    from limelight.insight.why import why as why
    from limelight.insight.worked.parsing import worked as worked
    from limelight.layers.attention import Attention as Attention
    from limelight.layers.block import Block as Block
    from limelight.layers.cache import Cache as Cache
    from limelight.layers.feedforward import FeedForward as FeedForward
    from limelight.layers.positions import RelativeBias as RelativeBias
    from limelight.layers.positions import sinusoidal as sinusoidal
    from limelight.layers.rotary import Rotary as Rotary
    from limelight.models.config import Config as Config
    from limelight.models.decoder import Decoder as Decoder
    from limelight.models.encoder import Encoder as Encoder
    from limelight.models.generation.beam import Beam as Beam
    from limelight.models.generation.generate import generate as generate
    from limelight.models.generation.sampling import Sampling as Sampling
    from limelight.models.loading.pretrained import load as load
    from limelight.models.loading.pretrained import save as save
    from limelight.models.loading.state import WeightsReport as WeightsReport
    from limelight.models.loading.state import compare_weights as compare_weights
    from limelight.models.loading.state import load_weights as load_weights
    from limelight.models.transformer import Transformer as Transformer
    from limelight.models.vision import VisionEncoder as VisionEncoder
    from limelight.ops.attend import attend as attend
    from limelight.ops.attend import explain_choice as explain_choice
    from limelight.ops.bias import alibi as alibi
    from limelight.ops.calls import AttentionCall as AttentionCall
    from limelight.ops.calls import intercept as intercept
    from limelight.ops.lens.seen import Seen as Seen
    from limelight.ops.lens.spec import Lens as Lens
    from limelight.ops.linear_attention import attend_linear as attend_linear
    from limelight.ops.masks.anchors import anchors as anchors
    from limelight.ops.masks.band import causal as causal
    from limelight.ops.masks.band import window as window
    from limelight.ops.masks.blocks import blocks as blocks
    from limelight.ops.masks.dilated import dilated as dilated
    from limelight.ops.masks.documents import documents as documents
    from limelight.ops.masks.links import without as without
    from limelight.ops.masks.padding import padding as padding
    from limelight.ops.multihead import MultiheadAttention as MultiheadAttention
    from limelight.ops.packed import attend_packed as attend_packed
    from limelight.ops.sdpa import scaled_dot_product_attention as scaled_dot_product_attention
    from limelight.ops.torch_calls import serve as serve
    from limelight.ops.torch_calls import serving as serving
    from limelight.seeing.look import look as look
    from limelight.seeing.recording.recording import Link as Link
    from limelight.seeing.recording.recording import Recording as Recording
    from limelight.seeing.steps.steps import steps as steps
    from limelight.seeing.stream import stream as stream
    from limelight.seeing.watching.watch import watch as watch


_HOME = {
    "attend": "ops.attend",
    "explain_choice": "ops.attend",
    "attend_packed": "ops.packed",
    "attend_linear": "ops.linear_attention",
    "AttentionCall": "ops.calls",
    "intercept": "ops.calls",
    "Lens": "ops.lens.spec",
    "Seen": "ops.lens.seen",
    "alibi": "ops.bias",
    "anchors": "ops.masks.anchors",
    "blocks": "ops.masks.blocks",
    "causal": "ops.masks.band",
    "dilated": "ops.masks.dilated",
    "documents": "ops.masks.documents",
    "padding": "ops.masks.padding",
    "window": "ops.masks.band",
    "without": "ops.masks.links",
    "scaled_dot_product_attention": "ops.sdpa",
    "MultiheadAttention": "ops.multihead",
    "serve": "ops.torch_calls",
    "serving": "ops.torch_calls",
    "Attention": "layers.attention",
    "Block": "layers.block",
    "Cache": "layers.cache",
    "FeedForward": "layers.feedforward",
    "RelativeBias": "layers.positions",
    "sinusoidal": "layers.positions",
    "Rotary": "layers.rotary",
    "Config": "models.config",
    "Decoder": "models.decoder",
    "Encoder": "models.encoder",
    "Transformer": "models.transformer",
    "VisionEncoder": "models.vision",
    "load": "models.loading.pretrained",
    "save": "models.loading.pretrained",
    "WeightsReport": "models.loading.state",
    "compare_weights": "models.loading.state",
    "load_weights": "models.loading.state",
    "generate": "models.generation.generate",
    "Sampling": "models.generation.sampling",
    "Beam": "models.generation.beam",
    "Recording": "seeing.recording.recording",
    "Link": "seeing.recording.recording",
    "cutting": "insight.cutting",
    "cause": "insight.cause",
    "rollout": "insight.rollout",
    "head_labels": "insight.head_labels",
    "heads": "insight.heads",
    "shift": "insight.shift",
    "why": "insight.why",
    "wrote": "insight.head_output",
    "look": "seeing.look",
    "steps": "seeing.steps.steps",
    "stream": "seeing.stream",
    "watch": "seeing.watching.watch",
    "exercise": "insight.exercise",
    "study": "insight.studies.registry",
    "worked": "insight.worked.parsing",
    "explore": "explorer.explore",
    "LimelightError": "errors",
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
