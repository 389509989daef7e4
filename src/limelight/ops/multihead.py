"""PyTorch's `nn.MultiheadAttention`: the same signature, weights and meaning, our kernels."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from limelight.checks import (
    check_flag,
    check_rank,
    check_same_device,
    check_shape,
    check_tensor,
    shape_text,
)
from limelight.errors import DtypeError, OptionError, ShapeError, UnavailableError
from limelight.ops.attend import attend, autocast_type
from limelight.ops.calls import AttentionCall, intercepted, run, run_seen
from limelight.ops.lens.spec import Lens
from limelight.ops.masks.band import causal
from limelight.ops.sdpa import check_mask_kind, value_and_dropout


class MultiheadAttention(nn.MultiheadAttention):
    """`torch.nn.MultiheadAttention` with its signature and state dict, computed by `attend`.

        head_t = softmax(Q_t K_tᵀ / √d) V_t        output = concat(head_1 … head_h) W_O + b_O

    It loads the weights of the original and gives its outputs. `need_weights=True`, the default as
    in the original, also returns the exact weights, of size n²; pass False to keep memory linear.
    A query that may attend to nothing gets zeros where the original gives NaN.

    >>> import torch, limelight as ll
    >>> theirs = torch.nn.MultiheadAttention(16, 4, batch_first=True)
    >>> ours = ll.MultiheadAttention(16, 4, batch_first=True)
    >>> _ = ours.load_state_dict(theirs.state_dict())
    >>> x = torch.randn(2, 5, 16)
    >>> torch.allclose(ours(x, x, x)[0], theirs(x, x, x)[0], atol=1e-6)
    True
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        try:
            super().__init__(*args, **options)
        except (TypeError, ValueError, AssertionError, RuntimeError) as error:
            raise OptionError(f"torch.nn.MultiheadAttention refuses this: {error}") from error
        # In eval mode `nn.TransformerEncoderLayer` bypasses the forward of an attention module
        # for which this is True.
        self._qkv_same_embed_dim = False

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._qkv_same_embed_dim = False

    def __prepare_scriptable__(self) -> NoReturn:
        raise UnavailableError(
            "torch.jit.script cannot compile limelight.MultiheadAttention: use torch.compile, "
            "or torch.nn.MultiheadAttention, which has the same weights"
        )

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """As the original's, where `is_causal` is a hint that `attn_mask` is causal.

        With `need_weights=False` and no `key_padding_mask` the original trusts the hint
        and ignores the mask: query i sees keys 0 ... i, so that the keys of `add_bias_kv` and
        `add_zero_attn`, which come last, are hidden too. The same holds here.
        """
        need_weights = check_flag("need_weights", need_weights)
        average_attn_weights = check_flag("average_attn_weights", average_attn_weights)
        is_causal = check_flag("is_causal", is_causal)
        if is_causal and attn_mask is None:
            raise OptionError("is_causal=True needs attn_mask, as in torch.nn.MultiheadAttention")
        self._check(query, key, value, key_padding_mask, attn_mask)
        batched = query.ndim == 3
        if not batched:
            query, key, value = query[None], key[None], value[None]
            key_padding_mask = None if key_padding_mask is None else key_padding_mask[None]
        elif not self.batch_first:
            query, key, value = (tensor.transpose(0, 1) for tensor in (query, key, value))
        q, k, v = self._project(query, key, value)
        if is_causal and key_padding_mask is None and not need_weights:
            mask, bias = causal(diagonal=0), None
        else:
            mask, bias = self._masks(key_padding_mask, attn_mask, q, k.shape[2])
        dropout = self.dropout if self.training else 0.0
        call = AttentionCall(q, k, v, mask, bias, dropout=dropout, module=self)
        heads, weights = _attend_with_weights(call) if need_weights else (_attend(call), None)
        merged = heads.transpose(1, 2).flatten(2)
        output = nn.functional.linear(merged, self.out_proj.weight, self.out_proj.bias)
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        if not batched:
            return output[0], None if weights is None else weights[0]
        return output if self.batch_first else output.transpose(0, 1), weights

    def _check(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None,
        attn_mask: Tensor | None,
    ) -> None:
        """Raise a LimelightError unless the arguments fit one another and the weights."""
        check_tensor("query", query)
        if query.ndim not in (2, 3):
            raise ShapeError(f"query must have 2 or 3 axes, found {shape_text(query)}")
        axes = "n m" if query.ndim == 2 else "b n m" if self.batch_first else "n b m"
        weight = self.out_proj.weight
        sizes: dict[str, int] = {}  # each axis letter's, set by the first tensor that has it
        for name, tensor, positions, width in (
            ("query", query, "i", self.embed_dim),
            ("key", key, "j", self.kdim),
            ("value", value, "j", self.vdim),
        ):
            letters = axes.replace("n", positions)
            check_rank(name, tensor, letters)
            sizes["m"] = width
            axis_sizes = zip(letters.split(), tensor.shape, strict=True)
            expected = tuple(sizes.setdefault(letter, size) for letter, size in axis_sizes)
            check_shape(name, tensor, letters, expected)
            check_same_device(name, tensor, weight, "the weights")
            if autocast_type(tensor) != autocast_type(weight):
                raise DtypeError(
                    f"{name} is {tensor.dtype}, expected {weight.dtype} as the weights"
                )
        b, i, j = sizes.get("b", 1), sizes["i"], sizes["j"]
        if key_padding_mask is not None:
            check_mask_kind("key_padding_mask", key_padding_mask, query)
            letters, expected = ("j", (j,)) if query.ndim == 2 else ("b j", (b, j))
            check_shape("key_padding_mask", key_padding_mask, letters, expected)
        if attn_mask is not None:
            check_mask_kind("attn_mask", attn_mask, query)
            if attn_mask.ndim == 3:
                check_shape("attn_mask", attn_mask, "b·h i j", (b * self.num_heads, i, j))
            else:
                check_shape("attn_mask", attn_mask, "i j", (i, j))

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v as `b h n d`, with the extra keys of `add_bias_kv` and `add_zero_attn`."""
        if self.in_proj_weight is not None:
            matrices = self.in_proj_weight.chunk(3)
        else:
            matrices = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        q, k, v = (
            nn.functional.linear(x, weight, bias)
            for x, weight, bias in zip((query, key, value), matrices, biases, strict=True)
        )
        if self.bias_k is not None and self.bias_v is not None:
            k = torch.cat([k, self.bias_k.expand(k.shape[0], -1, -1)], dim=1)
            v = torch.cat([v, self.bias_v.expand(v.shape[0], -1, -1)], dim=1)
        if self.add_zero_attn:
            zero = k.new_zeros(k.shape[0], 1, k.shape[2])
            k, v = torch.cat([k, zero], dim=1), torch.cat([v, zero], dim=1)
        q, k, v = (x.unflatten(2, (self.num_heads, -1)).transpose(1, 2) for x in (q, k, v))
        return q, k, v

    def _masks(
        self, key_padding_mask: Tensor | None, attn_mask: Tensor | None, q: Tensor, keys: int
    ) -> tuple[Tensor | None, Tensor | None]:
        """(allowed, added): in the original's masks True *forbids* a key, and floats are added."""
        allowed: Tensor | None = None
        added: Tensor | None = None
        tables: list[Tensor] = []
        if key_padding_mask is not None:
            tables.append(key_padding_mask[:, None, None, :])
        if attn_mask is not None:
            by_head = attn_mask.ndim == 3
            tables.append(attn_mask.unflatten(0, q.shape[:2]) if by_head else attn_mask[None, None])
        for table in tables:
            extra = keys - table.shape[-1]  # every query sees the keys of bias_kv and zero_attn
            table = nn.functional.pad(table, (0, extra)) if extra else table
            if table.dtype == torch.bool:
                allowed = ~table if allowed is None else allowed & ~table
            else:
                added = table.to(q.dtype) if added is None else added + table.to(q.dtype)
        return allowed, added


def _attend(call: AttentionCall) -> Tensor:
    """The output, `b h i d`."""
    value, dropout = value_and_dropout("dropout", call.value, call.dropout)
    return run(call.replace(value=value, dropout=dropout))


def _attend_with_weights(call: AttentionCall) -> tuple[Tensor, Tensor]:
    """The output `b h i d`, and the dense weights `b h i j`.

    Attending to the identity matrix gives the weights. With dropout both come from one call, so
    that the weights are those that dropout left. Under an interceptor they are the weights after
    its changes, before dropout.
    """
    q, k, v = call.query, call.key, call.value
    if intercepted():
        value, dropout = value_and_dropout("dropout", v, call.dropout)
        heads, seen = run_seen(call.replace(value=value, dropout=dropout), Lens())
        return heads, seen.dense().to(q.dtype)
    eye = torch.eye(k.shape[2], dtype=q.dtype, device=q.device).expand(*k.shape[:2], -1, -1)
    if not call.dropout:
        weights = attend(q, k, eye, mask=call.mask, bias=call.bias, impl="reference")
        return attend(q, k, v, mask=call.mask, bias=call.bias), weights
    both, dropout = value_and_dropout("dropout", torch.cat((v, eye), dim=-1), call.dropout)
    joint = attend(q, k, both, mask=call.mask, bias=call.bias, dropout=dropout, impl="reference")
    return joint[..., : v.shape[-1]], joint[..., v.shape[-1] :]
