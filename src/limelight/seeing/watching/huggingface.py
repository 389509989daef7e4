"""Attention for Hugging Face models: `attn_implementation="limelight"`.

`register()` (done by `import limelight.huggingface`) adds the implementation to the two interfaces
of `transformers`. Models then run on `attend`, their masks stay rules, and the entries of
`outputs.attentions` are `Seen` objects that become dense tensors when a tool asks.

Where a query may attend to nothing (padding that looks at nothing), limelight gives zeros, where
eager attention spreads its weight over the padding; such rows are ignored by every model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from limelight.errors import OptionError, UnavailableError
from limelight.ops.attend import run
from limelight.ops.backends import reference
from limelight.ops.calls import AttentionCall, run_seen
from limelight.ops.lens.seen import Seen
from limelight.ops.lens.spec import Lens
from limelight.ops.masks.band import causal
from limelight.ops.masks.mask import Mask
from limelight.ops.problem import Problem, check_problem
from limelight.seeing.watching.hf_masks import LazyMask, lazy_mask

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME = "limelight"


def register() -> None:
    """Make `attn_implementation="limelight"` known to `transformers`."""
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
    except ImportError as error:
        raise UnavailableError(
            "transformers is not installed: pip install limelight[huggingface]"
        ) from error
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, lazy_mask)


def check_model(model: object) -> None:
    """Raise unless a model goes through the attention interface of transformers."""
    from transformers import PreTrainedModel

    if not isinstance(model, PreTrainedModel):
        raise OptionError(
            f"model must be a Hugging Face model, found {type(model).__name__}; "
            "look(text, model=...) records our own"
        )
    for part in model.modules():
        # transformers has no public way to ask; to try and fail would leave a warning behind.
        if isinstance(part, PreTrainedModel) and not part._can_set_attn_implementation():  # pyright: ignore[reportPrivateUsage]
            raise UnavailableError(
                f"{type(part).__name__} computes its attention by itself instead of through the "
                "attention interface of transformers, so it cannot be watched. What can be done: "
                'run it with attn_implementation="eager" and output_attentions=True, and give '
                "the dense weights to Recording.of_weights"
            )


def set_implementation(model: PreTrainedModel) -> list[tuple[Any, str | None]]:
    """Switch to limelight's attention; what each config said before, to be put back."""
    configs: dict[int, tuple[Any, str | None]] = {}
    for module in model.modules():
        config = getattr(module, "config", None)
        if hasattr(config, "_attn_implementation_internal"):
            configs[id(config)] = (config, config._attn_implementation_internal)  # pyright: ignore[reportOptionalMemberAccess]
    model.set_attn_implementation(NAME)
    return list(configs.values())


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: LazyMask | Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    cache: object = None,
    **options: Any,
) -> tuple[Tensor, Seen | Tensor | None]:
    """What `AttentionInterface` calls: the output `b i h e`, and what was seen.

    A compiled graph has no room for a `Seen`: there it is the dense weights, if they are asked for.
    """
    if cache is not None:
        raise UnavailableError(
            'attn_implementation="limelight" does not serve paged caches (continuous batching): '
            "use generate() without them"
        )
    mask, bias, keys = _mask_and_bias(module, query, key, attention_mask, is_causal)
    if position_bias is not None:
        bias = position_bias if bias is None else bias + position_bias
    if keys < key.shape[2]:
        # What a static cache has not filled yet is not part of the text.
        key, value = key[:, :, :keys], value[:, :, :keys]
        bias = bias[..., :keys] if bias is not None and bias.shape[-1] > keys else bias
    first = attention_mask.first_key if isinstance(attention_mask, LazyMask) else 0
    call = AttentionCall(
        query, key, value,
        mask=mask, bias=bias, scale=scaling, softcap=softcap, sinks=s_aux, dropout=dropout,
        module=module, first_key=first,
    )  # fmt: skip
    if torch.compiler.is_compiling():
        asked = options.get("output_attentions", _configured(module, "output_attentions"))
        return _compiled(call, bool(asked))
    out, seen = run_seen(call, Lens())
    return _as_expected(out), seen


def _compiled(call: AttentionCall, weights_asked: bool) -> tuple[Tensor, Tensor | None]:
    """The output and, if asked for, the dense weights: a graph has no room for a `Seen`."""
    problem = check_problem(
        call.query, call.key, call.value,
        mask=call.mask, bias=call.bias, scale=call.scale, softcap=call.softcap,
        dropout=call.dropout,
    )  # fmt: skip
    out, lse = run(problem, "auto")
    if call.sinks is not None:
        total = torch.logaddexp(lse, call.sinks.reshape(-1)[:, None].to(lse.dtype))
        out, lse = out * torch.exp(lse - total)[..., None].to(out.dtype), total
    return _as_expected(out), _dense_weights(problem, lse) if weights_asked else None


def _as_expected(out: Tensor) -> Tensor:
    """`b h i e` as transformers takes it: `b i h e`."""
    return out.transpose(1, 2).contiguous()


def _configured(module: nn.Module, name: str) -> bool:
    return bool(getattr(getattr(module, "config", None), name, False))


@torch.no_grad()
def _dense_weights(problem: Problem, lse: Tensor) -> Tensor:
    """All weights as one tensor, without gradient as those of a `Seen` are: `b h i j`."""
    base = torch.where(lse == float("-inf"), 0.0, lse)
    return torch.exp(reference.scores(problem) - base[..., None])


def _mask_and_bias(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    given: LazyMask | Tensor | None,
    is_causal: bool | None,
) -> tuple[Mask | Tensor | None, Tensor | None, int]:
    """The mask, what is added to the scores, and how many keys there really are."""
    keys = key.shape[2]
    if isinstance(given, LazyMask):
        return given.mask, None, min(given.keys, keys)
    if given is None:
        wanted = getattr(module, "is_causal", True) if is_causal is None else is_causal
        # One query is the newest token; several without a mask begin the text, as with sdpa.
        if not wanted or query.shape[2] == 1:
            return None, None, keys
        return causal(), None, min(query.shape[2], keys)
    given = given[..., :keys]
    if given.dtype == torch.bool:
        return given, None, keys
    return None, given.to(query.dtype), keys
