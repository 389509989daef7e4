"""The public peers on the same tensors, each in its fastest setting and with the same threads.

Every function makes a peer's call for one problem (and may compile), or raises `UnableError`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.harness import Call, UnableError
from benchmarks.machine import THREADS


def sdpa(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False) -> Call:
    """PyTorch's own fused attention."""
    grouped = q.shape[1] != k.shape[1]
    return lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)


def sdpa_masked(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Call:
    """PyTorch's own fused attention under a bool mask."""
    return lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


@cache
def _compiled_flex() -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)


def flex(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, left: int | None = None) -> Call:
    """Compiled FlexAttention; `left` is the width of a sliding window and implies causal."""
    mask = _band_blocks(q, k, left) if causal or left is not None else None
    run, grouped = _compiled_flex(), q.shape[1] != k.shape[1]

    def call() -> Tensor:
        with torch.no_grad():
            return run(q, k, v, block_mask=mask, enable_gqa=grouped)

    try:
        call()
    except Exception as error:
        raise UnableError(f"does not compile: {_first_line(error)}") from None
    return call


def _band_blocks(q: Tensor, k: Tensor, left: int | None) -> Any:
    """A causal band as a BlockMask, built from its rule: an n² mask would take 4 GB at n 65536."""
    from torch.nn.attention.flex_attention import BlockMask

    size = 128
    rows, columns = -(-q.shape[2] // size), -(-k.shape[2] // size)
    back = columns if left is None else -(-left // size)
    row = torch.arange(rows)
    first = (row - back).clamp_min(0)
    counts = (row - first + 1).to(torch.int32)
    indices = torch.zeros(rows, columns, dtype=torch.int32)
    for t in range(rows):
        indices[t, : counts[t]] = torch.arange(int(first[t]), t + 1, dtype=torch.int32)

    def rule(_b: Tensor, _h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        inside = j <= i
        return inside if left is None else inside & (i - j <= left)

    return BlockMask.from_kv_blocks(
        counts[None, None], indices[None, None], BLOCK_SIZE=size, mask_mod=rule,
        seq_lengths=(q.shape[2], k.shape[2]),
    )  # fmt: skip


def onnxruntime(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False) -> Call:
    """ONNX Runtime's MultiHeadAttention; keys as `b h j d`, which saves it a transpose."""
    if q.dtype != torch.float32:
        raise UnableError("its MultiHeadAttention takes float32 only on CPUs")
    if q.shape[1] != k.shape[1]:
        raise UnableError("its MultiHeadAttention has no grouped heads")
    b, h, i, d = q.shape
    feeds = {"q": q.transpose(1, 2).reshape(b, i, h * d).contiguous(), "k": k, "v": v}
    output = torch.empty(b, i, h * d)
    session = _onnx_session(
        "MultiHeadAttention", {"num_heads": h, "unidirectional": int(causal)}, feeds, {"o": output}
    )
    return _bound(session, feeds, {"o": output}, output.view(b, i, h, d).transpose(1, 2))


def onnxruntime_grouped(q: Tensor, k: Tensor, v: Tensor) -> Call:
    """ONNX Runtime's GroupQueryAttention for one new token, with its cache updated in place."""
    b, h, i, d = q.shape
    _, g, j, _ = k.shape
    if q.dtype != torch.float32 or i != 1:
        raise UnableError("its GroupQueryAttention is asked for one new token in float32")
    cache_k, cache_v = k.clone(), v.clone()
    feeds = {
        "q": q.reshape(b, 1, h * d),
        "k": k[:, :, -1:].transpose(1, 2).reshape(b, 1, g * d).contiguous(),
        "v": v[:, :, -1:].transpose(1, 2).reshape(b, 1, g * d).contiguous(),
        "past_k": cache_k,
        "past_v": cache_v,
        "last": torch.full((b,), j - 1, dtype=torch.int32),
        "total": torch.tensor([j], dtype=torch.int32),
    }
    outputs = {"o": torch.empty(b, 1, h * d), "present_k": cache_k, "present_v": cache_v}
    session = _onnx_session(
        "GroupQueryAttention", {"num_heads": h, "kv_num_heads": g}, feeds, outputs
    )
    return _bound(session, feeds, outputs, outputs["o"].view(b, 1, h, d).transpose(1, 2))


def _bound(
    session: Any, feeds: Mapping[str, Tensor], outputs: Mapping[str, Tensor], result: Tensor
) -> Call:
    """A run of the session on these tensors, without copies; returns `result`, a view of them."""
    binding = session.io_binding()
    for bind, named in ((binding.bind_input, feeds), (binding.bind_output, outputs)):
        for name, tensor in named.items():
            kind = tensor.numpy().dtype.type
            bind(name, "cpu", 0, kind, list(tensor.shape), tensor.data_ptr())

    # The binding stores addresses only: the default argument keeps the tensors alive.
    def call(_alive: object = (feeds, outputs)) -> Tensor:
        session.run_with_iobinding(binding)
        return result

    return call


def _onnx_session(
    kind: str,
    attributes: Mapping[str, int],
    feeds: Mapping[str, Tensor],
    outputs: Mapping[str, Tensor],
) -> Any:
    import onnxruntime as ort
    from onnx import TensorProto, helper

    def infos(named: Mapping[str, Tensor]) -> list[Any]:
        kinds = {torch.float32: TensorProto.FLOAT, torch.int32: TensorProto.INT32}
        return [
            helper.make_tensor_value_info(name, kinds[tensor.dtype], list(tensor.shape))
            for name, tensor in named.items()
        ]

    node = helper.make_node(kind, list(feeds), list(outputs), domain="com.microsoft", **attributes)
    graph = helper.make_graph([node], "attention", infos(feeds), infos(outputs))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets)
    model.ir_version = 9
    options = ort.SessionOptions()
    options.intra_op_num_threads = THREADS
    return ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def openvino(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False) -> Call:
    """OpenVINO's ScaledDotProductAttention."""
    import numpy as np
    import openvino as ov
    from openvino import opset13 as op

    if q.dtype != torch.float32:
        raise UnableError("computes in float32 on a CPU without bfloat16 instructions")
    if q.shape[1] != k.shape[1]:
        raise UnableError("its ScaledDotProductAttention has no grouped heads")
    tensors = [tensor.contiguous() for tensor in (q, k, v)]
    parameters = [op.parameter(list(tensor.shape), np.float32) for tensor in tensors]
    attention = op.scaled_dot_product_attention(*parameters, causal=causal)
    options = {
        "INFERENCE_NUM_THREADS": THREADS,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
    }
    compiled = ov.Core().compile_model(ov.Model([attention], parameters), "CPU", options)
    request = compiled.create_infer_request()
    for index, tensor in enumerate(tensors):
        request.set_input_tensor(index, ov.Tensor(tensor.numpy(), shared_memory=True))
    output = torch.empty(*q.shape[:3], v.shape[3])
    request.set_output_tensor(0, ov.Tensor(output.numpy(), shared_memory=True))

    def call() -> Tensor:
        request.infer()
        return output

    return call


def all_peers(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, compile_flex: bool = False
) -> dict[str, Callable[[], Call]]:
    """All peers for a plain or causal problem; FlexAttention takes 6–19 s to compile per shape."""
    makers: dict[str, Callable[..., Call]] = {
        "SDPA": sdpa, "ONNX Runtime": onnxruntime, "OpenVINO": openvino
    }  # fmt: skip
    if compile_flex:
        makers["FlexAttention"] = flex
    return {name: partial(make, q, k, v, causal=causal) for name, make in makers.items()}


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:160]
