"""Attention for Hugging Face models: `attn_implementation="limelight"`.

`register()` (done by `import limelight.huggingface`) adds the implementation to the two interfaces
of `transformers`. Models then run on `attend`, their masks stay rules, and the entries of
`outputs.attentions` are `Seen` objects that become dense tensors when a tool needs them.

Where a query may attend to nothing (that of padding), limelight gives zeros and eager attention
spreads its weight over the padding; every model ignores such rows.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, wraps
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from limelight.errors import UnavailableError
from limelight.ops.attend import compute
from limelight.ops.backends import reference
from limelight.ops.calls import AttentionCall, run_seen
from limelight.ops.lens.seen import Seen
from limelight.ops.lens.spec import Lens
from limelight.ops.masks.band import causal
from limelight.ops.masks.mask import Mask
from limelight.ops.problem import Problem, check_problem
from limelight.seeing.watching.hf_masks import LazyMask, lazy_mask
from limelight.seeing.watching.unseen import ATTENTION, is_named_attention

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME = "limelight"
_watching: ContextVar[bool] = ContextVar("limelight_watching", default=False)
"""Whether `watch` switches a model, which warns of unseen attention by itself."""


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
    _warn_of_own_attention()


def _warn_of_own_attention() -> None:
    """Warn when a model that computes attention by itself is set to run on limelight.

    transformers accepts any registered name for every model, and has no hook to refuse one.
    """
    from transformers import PreTrainedModel

    check = PreTrainedModel.get_correct_attn_implementation
    if getattr(check, "warns_of_own_attention", False):
        return

    @wraps(check)
    def checked(self: PreTrainedModel, requested_attention: str | None, *args: Any, **options: Any):
        ours = requested_attention == NAME and not _watching.get()
        if ours and (message := own_attention_message(type(self))):
            warnings.warn(message, RuntimeWarning, stacklevel=2)
        return check(self, requested_attention, *args, **options)

    checked.warns_of_own_attention = True  # pyright: ignore[reportAttributeAccessIssue]
    PreTrainedModel.get_correct_attn_implementation = checked


@cache
def own_attention_message(kind: type[Any]) -> str:
    """The attention that a class of models computes off the interface, in words; empty for none."""
    home = sys.modules.get(kind.__module__)
    own = sorted(name for name, part in vars(home).items() if is_own_attention(part, home))
    served = kind._can_set_attn_implementation()
    if served and not own:
        return ""
    some = "some of its attention" if served else "its attention"
    parts = f" ({', '.join(own)})" if own else ""
    return (
        f"{kind.__name__} computes {some} by itself{parts}, not through the attention interface "
        f"of transformers: attn_implementation={NAME!r} does not change that"
    )


def is_own_attention(part: object, home: object) -> bool:
    """Whether this is a module, named for attention and defined here, with a softmax of its own."""
    if not isinstance(part, type) or not issubclass(part, nn.Module):
        return False
    if part.__module__ != getattr(home, "__name__", None) or not ATTENTION.search(part.__name__):
        return False
    return _has_own_softmax(part)


@cache
def _has_own_softmax(kind: type[nn.Module]) -> bool:
    try:
        source = inspect.getsource(kind)
    except (OSError, TypeError):
        return False
    return "softmax" in source.lower() and not any(call in source for call in _SERVED)


_SERVED = (
    "get_interface(",
    "scaled_dot_product_attention(",
    "multi_head_attention_forward(",
)


def check_model(model: nn.Module) -> None:
    """Raise if a Hugging Face model, or one inside it, is off the attention interface."""
    from transformers import PreTrainedModel

    for part in model.modules():
        # transformers has no public test for it, and trying would raise a warning.
        if isinstance(part, PreTrainedModel) and not part._can_set_attn_implementation():  # pyright: ignore[reportPrivateUsage]
            raise UnavailableError(
                f"{type(part).__name__} computes its attention by itself instead of through the "
                "attention interface of transformers: its calls cannot be changed"
            )


@contextmanager
def switched(model: nn.Module) -> Generator[None]:
    """Within the block, the Hugging Face models in a module run on limelight's attention.

    Those that compute attention by themselves stay as they are, with masks of their own kind.
    """
    if "transformers" not in sys.modules:  # then no module is one of its models
        yield
        return
    from transformers import PreTrainedModel

    parts = [part for part in model.modules() if isinstance(part, PreTrainedModel)]
    if parts:
        register()
    configs: dict[int, tuple[Any, str | None]] = {}
    for module in model.modules():
        config: Any = getattr(module, "config", None)
        if hasattr(config, "_attn_implementation_internal"):
            configs[id(config)] = (config, config._attn_implementation_internal)
    changed: set[nn.Module] = set()
    token = _watching.set(True)
    try:
        for part in parts:
            if part not in changed and part._can_set_attn_implementation():  # pyright: ignore[reportPrivateUsage]
                part.set_attn_implementation(NAME)
                changed.update(part.modules())
        for config in _unserved_configs(parts):
            config._attn_implementation_internal = configs[id(config)][1]
        _watching.reset(token)
        yield
    finally:
        for config, before in configs.values():
            config._attn_implementation_internal = before


def _unserved_configs(parts: list[Any]) -> list[Any]:
    """The configs that belong only to models which compute all their attention by themselves."""
    models = set(parts)
    configs: dict[int, Any] = {}
    unserved: dict[int, bool] = {}
    for part in parts:
        others = (other for other in part.modules() if other in models and other is not part)
        nested = {module for other in others for module in other.modules()}
        attending = {
            type(module)
            for module in part.modules()
            if module not in nested and is_named_attention(module)
        }
        if attending:  # a wrapper without attention of its own does not count
            own = all(
                is_own_attention(kind, sys.modules.get(kind.__module__)) for kind in attending
            )
            configs[id(part.config)] = part.config
            unserved[id(part.config)] = unserved.get(id(part.config), True) and own
    return [config for key, config in configs.items() if unserved[key]]


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

    A compiled graph cannot return a `Seen`: there it is the dense weights, if requested.
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
        needs_weights = options.get("output_attentions", _configured(module, "output_attentions"))
        return _compiled(call, bool(needs_weights))
    out, seen = run_seen(call, Lens())
    return _in_hf_layout(out), seen


def _compiled(call: AttentionCall, needs_weights: bool) -> tuple[Tensor, Tensor | None]:
    """The output and, if requested, the dense weights: a graph cannot return a `Seen`."""
    problem = check_problem(
        call.query, call.key, call.value,
        mask=call.mask, bias=call.bias, scale=call.scale, softcap=call.softcap,
        dropout=call.dropout, sinks=call.sinks,
    )  # fmt: skip
    out, _ = compute(problem)
    return _in_hf_layout(out), _dense_weights(problem) if needs_weights else None


def _in_hf_layout(out: Tensor) -> Tensor:
    """`b h i e` → `b i h e`, the layout of transformers."""
    return out.transpose(1, 2).contiguous()


def _configured(module: nn.Module, name: str) -> bool:
    return bool(getattr(getattr(module, "config", None), name, False))


@torch.no_grad()
def _dense_weights(problem: Problem) -> Tensor:
    """All weights as one tensor `b h i j`, without gradient like those of a `Seen`."""
    return reference.normalise(problem, reference.scores(problem))[0]


def _mask_and_bias(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    attention_mask: LazyMask | Tensor | None,
    is_causal: bool | None,
) -> tuple[Mask | Tensor | None, Tensor | None, int]:
    """The mask, the bias on the scores, and the number of keys that are filled."""
    keys = key.shape[2]
    if isinstance(attention_mask, LazyMask):
        return attention_mask.mask, None, min(attention_mask.keys, keys)
    if attention_mask is None:
        masked = getattr(module, "is_causal", True) if is_causal is None else is_causal
        # One query is the newest token; several without a mask begin the text, as with sdpa.
        if not masked or query.shape[2] == 1:
            return None, None, keys
        return causal(), None, min(query.shape[2], keys)
    attention_mask = attention_mask[..., :keys]
    if attention_mask.dtype == torch.bool:
        return attention_mask, None, keys
    return None, attention_mask.to(query.dtype), keys
