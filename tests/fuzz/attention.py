"""Random attention calls against an oracle in float64 that shares no code with the package.

A case is made from its seed alone, so a failure is saved as one number.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import random
from typing import Any

import numpy as np
import torch
from torch import Tensor

import limelight as ll
from limelight.errors import LimelightError
from limelight.ops.attend import compute
from limelight.ops.problem import check_problem

LIBC = ctypes.CDLL(None, use_errno=True)


def guarded(tensor: Tensor) -> Tensor:
    """A copy whose last byte is the last of a page, before one that may not be touched."""
    dense = tensor.contiguous()
    size, page = dense.numel() * dense.element_size(), mmap.PAGESIZE
    if not size:
        return dense
    pages = -(-size // page)
    memory = mmap.mmap(-1, (pages + 1) * page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    if LIBC.mprotect(ctypes.c_void_p(start + pages * page), page, 0):
        raise OSError(ctypes.get_errno(), "mprotect")
    view = memoryview(memory)[pages * page - size : pages * page]
    copy = torch.frombuffer(view, dtype=dense.dtype).view(dense.shape)
    copy.copy_(dense)
    return copy


def table_of(mask: Any, i: int, j: int, b: int, h: int) -> np.ndarray:
    """A mask by its definition, element by element, independent of the package: `b h i j`."""
    kind, *of = mask
    rows, keys = np.arange(i)[:, None], np.arange(j)[None]
    behind = rows + (j - i) - keys
    if kind == "and":
        return table_of(of[0], i, j, b, h) & table_of(of[1], i, j, b, h)
    if kind == "or":
        return table_of(of[0], i, j, b, h) | table_of(of[1], i, j, b, h)
    if kind == "not":
        return ~table_of(of[0], i, j, b, h)
    if kind == "causal":
        table = behind >= 0
    elif kind == "window":
        table = (behind <= of[0]) & (behind >= -of[1])
    elif kind == "without":
        table = np.ones((i, j), dtype=bool)
        for query, key in of[0]:
            table[query, key] = False
    elif kind == "padding":
        table = np.zeros((b, 1, i, j), dtype=bool)
        for row, length in enumerate(of[0]):
            table[row, :, :, :length] = True
    elif kind == "documents":
        table = np.zeros((i, j), dtype=bool)
        row = key = 0
        for queries, columns in zip(of[0], of[1], strict=True):
            own = table_of(("causal",), queries, columns, 1, 1)[0, 0]
            table[row : row + queries, key : key + columns] = own
            row, key = row + queries, key + columns
    else:
        table = of[0]
    return np.broadcast_to(table, (b, h, i, j))


def built(mask: Any) -> ll.Mask | Tensor:
    """The same mask as the package makes it."""
    kind, *of = mask
    match kind:
        case "and":
            return built(of[0]) & built(of[1])
        case "or":
            return built(of[0]) | built(of[1])
        case "not":
            return ~built(of[0])
        case "documents":
            return ll.documents(*of, inside=ll.causal())
        case "dense":
            return torch.from_numpy(of[0])
        case _:
            return getattr(ll, kind)(*of)


def split(rng: random.Random, total: int, parts: int) -> list[int]:
    cuts = sorted(rng.randint(0, total) for _ in range(parts - 1))
    return [stop - start for start, stop in zip([0, *cuts], [*cuts, total], strict=True)]


def drawn_mask(rng: random.Random, b: int, i: int, j: int, depth: int = 2) -> Any:
    kinds = ["causal", "window", "without", "padding", "documents", "dense"]
    if depth:
        kinds += ["and", "or", "not"]
    match kind := rng.choice(kinds):
        case "and" | "or":
            return kind, *(drawn_mask(rng, b, i, j, depth - 1) for _ in range(2))
        case "not":
            inner = drawn_mask(rng, b, i, j, depth - 1)
            return kind, inner
        case "window":
            return kind, rng.randint(0, j), rng.randint(0, 3)
        case "without":
            pairs = [(rng.randrange(i), rng.randrange(j)) for _ in range(rng.randint(0, 30))]
            return kind, pairs
        case "padding":
            return kind, [rng.randint(0, j) for _ in range(b)]
        case "documents":
            parts = rng.randint(1, 4)
            return kind, split(rng, i, parts), split(rng, j, parts)
        case "dense":
            table = np.random.default_rng(rng.getrandbits(32)).random((i, j)) < 0.7
            return kind, table
    return (kind,)


def oracle(q: Tensor, k: Tensor, v: Tensor, table: np.ndarray | None, **options: Any) -> Any:
    """Output, weights and gradients of Σ output·g in float64, from the formula."""
    q, k, v = (x.detach().double().requires_grad_() for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    keys, values = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("bhid,bhjd->bhij", q, keys) * options["scale"]
    if options["softcap"]:
        scores = options["softcap"] * torch.tanh(scores / options["softcap"])
    if options["bias"] is not None:
        scores = scores + options["bias"].double()
    allowed = torch.ones_like(scores, dtype=torch.bool)
    if table is not None:
        allowed = torch.from_numpy(np.array(table))
    masked = scores.masked_fill(~allowed, -torch.inf)
    row_max = masked.amax(-1, keepdim=True)
    row_max = torch.where(allowed.any(-1, keepdim=True), row_max, 0.0).detach()
    exponentials = torch.exp(masked - row_max)
    total = exponentials.sum(-1, keepdim=True)
    if options["sinks"] is not None:
        total = total + torch.exp(options["sinks"].double()[:, None, None] - row_max)
    weights = exponentials / total.clamp_min(1e-300)
    output = torch.einsum("bhij,bhje->bhie", weights, values)
    grads = torch.autograd.grad((output * options["grad"].double()).sum(), (q, k, v))
    return output.detach(), weights.detach(), grads


def check_sinks(seed: int) -> None:
    """The same call with a sink for each head."""
    check(seed, with_sinks=True)


def check(seed: int, with_sinks: bool = False) -> None:
    """One random call: forward, backward, lens, dropout, packed and decoding, by every backend.

    Raises where a result is wrong. The seed alone determines the call, with sinks or without: new
    draws belong after the existing ones, or saved cases become other calls.
    """
    rng = random.Random(seed)
    torch.manual_seed(seed)
    b, g = rng.randint(1, 2), rng.randint(1, 2)
    h = g * rng.randint(1, 3)
    i = rng.choice([1, 2, 17, 64, 130, rng.randint(1, 400)])
    j = rng.choice([i, i, rng.randint(1, 600)])
    d = rng.choice([1, 8, 16, 40, 64])
    e = rng.choice([d, 16])
    dtype = rng.choice([torch.float32, torch.float32, torch.bfloat16, torch.float16])
    q, k, v = (torch.randn(b, *s).to(dtype) for s in ((h, i, d), (g, j, d), (g, j, e)))
    mask = None if rng.random() < 0.2 else drawn_mask(rng, b, i, j)
    bias = torch.randn(i, j) * rng.choice([1.0, 10.0]) if rng.random() < 0.3 else None
    options = {"scale": rng.choice([d**-0.5, 0.2, -0.5]), "softcap": rng.choice([None, None, 5.0])}
    grad = torch.randn(b, h, i, e).to(dtype)
    table = None if mask is None else table_of(mask, i, j, b, h)
    sinks = torch.randn(h) * 3 if with_sinks else None
    exact = oracle(q, k, v, table, bias=bias, grad=grad, sinks=sinks, **options)
    call = {**options, "bias": bias, "mask": None if mask is None else built(mask)}

    def attend(*tensors: Tensor, impl: Any, dropout: float = 0.0) -> Tensor:
        if sinks is None:
            return ll.attend(*tensors, impl=impl, dropout=dropout, **call)
        return compute(check_problem(*tensors, sinks=sinks, dropout=dropout, **call), impl)[0]

    lazy = rng.random() < 0.2
    tensors = [torch._neg_view(-x) if lazy else guarded(x) for x in (q, k, v)]
    largest = float(exact[1].shape[-1] and max(1.0, (q.norm(dim=-1).max() * k.norm(dim=-1).max())))
    tolerance = 3e-6 * (1 + abs(options["scale"]) * largest + (0 if bias is None else 40))
    # Everything is computed in float32; outputs and gradients are rounded to the type of the call.
    rounding = 0.0 if dtype == torch.float32 else torch.finfo(dtype).eps

    def close(name: str, found: Tensor, expected: Tensor) -> None:
        error = float((found.double() - expected).abs().max()) if expected.numel() else 0.0
        size = float(expected.abs().max()) if expected.numel() else 0.0
        bound = tolerance * (1 + size) + rounding * size
        assert error <= bound, f"{name} is {error:.1e} off, expected at most {bound:.1e}"

    for impl in ("native", "tiled"):
        close(f"{impl} output", attend(*tensors, impl=impl), exact[0])
    lens = ll.Lens(top=3, entropy=True, received=True, map=(4, 4))
    output, seen = ll.AttentionCall(*tensors, sinks=sinks, **call).attend(lens=lens)
    close("output with a lens", output, exact[0])
    close("received", seen.received, exact[1].sum(-2))
    close("top", seen.top.weights[..., : min(3, j)], exact[1].topk(min(3, j)).values)
    close("dense", seen.dense(), exact[1])
    for impl in ("native", "tiled"):
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        out = attend(*leaves, impl=impl)
        grads = torch.autograd.grad((out * grad).sum(), leaves)
        for name, found, expected in zip(("dq", "dk", "dv"), grads, exact[2], strict=True):
            close(f"{impl} {name}", found, expected)
    torch.manual_seed(seed)
    dropped = attend(*tensors, dropout=0.3, impl="native")
    torch.manual_seed(seed)
    # The reference drops the same weights: they are a function of the seed alone.
    close("dropout", dropped, attend(*tensors, dropout=0.3, impl="reference").double())
    last = {**options, "mask": ll.causal()}
    whole, step = ll.attend(k, k, v, **last), ll.attend(k[:, :, -1:], k, v, **last)
    close("decoding", step, whole[:, :, -1:].double())  # the newest token against a cache
    lengths = split(rng, j, rng.randint(1, 4))
    packed = ll.attend_packed(*(x[0].transpose(0, 1) for x in (k, k, v)), lengths, **last)
    start = 0
    for length in lengths:
        own = slice(start, start + length)
        alone = ll.attend(k[:1, :, own], k[:1, :, own], v[:1, :, own], **last)
        close("packed", packed[own].transpose(0, 1)[None], alone.double())
        start += length


def check_refusals(seed: int) -> None:
    """Wrong arguments: a LimelightError, or a result; never another error."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    wrong: list[Any] = [
        torch.randn(2, 3), torch.randn(1, 1, 4, 8).to_sparse(), torch.ones(1, 2, 4, 8).int(),
        torch.randn(1, 2, 4, 8, device="meta"), torch.randn(1, 2, 0, 8), torch.randn(1, 2, 4, 0),
        None, 3, "q", torch.randn(1, 2, 4, 8, dtype=torch.complex64), torch.randn(1, 3, 4, 8),
    ]  # fmt: skip
    good = torch.randn(1, 2, 4, 8)
    arguments = [rng.choice([good, good, rng.choice(wrong)]) for _ in range(3)]
    options: dict[str, Any] = {}
    for name, values in {
        "mask": [wrong[0] > 0, ll.padding([9]), ll.without([(7, 7)]), 3, ll.blocks([[True]], 2)],
        "bias": [torch.randn(9), ll.alibi(5), "b", good.to_sparse(), torch.randn(4, 4).half()],
        "scale": [float("nan"), float("inf"), "x", 10**400], "softcap": [0, -1, "c"],
        "dropout": [1.0, -0.1, None], "impl": ["fast", None], "lens": [3, ll.Lens(columns=(99,))],
    }.items():  # fmt: skip
        if rng.random() < 0.25:
            options[name] = rng.choice(values)
    with contextlib.suppress(LimelightError):
        ll.attend(*arguments, **options)
