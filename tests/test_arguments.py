"""Wrong arguments of every public function: an error of one line that names the argument."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import limelight as ll
from limelight.explorer.model_store import ModelStore
from limelight.explorer.server import serve

X = torch.randn(1, 2, 6, 8)
MODEL = ll.Decoder(ll.Config.gpt2(vocabulary=8, width=8, layers=1, heads=2, context=8))
BLOCK = ll.Block(ll.Attention(8, heads=2), ll.FeedForward(8))
MANY = torch.ones(2, 2)
SEEN = ll.attend(X, X, X, lens=ll.Lens(top=2))[1]
with warnings.catch_warnings(action="ignore"):  # PyTorch warns that their API may change
    QUANTIZED = torch.quantize_per_tensor(torch.ones(1, 2), 1.0, 0, torch.qint8)
    NESTED = torch.nested.nested_tensor([torch.ones(2, 8), torch.ones(3, 8)])


@pytest.fixture(scope="module")
def rec() -> ll.Recording:
    return ll.look("The animal didn't cross the street because it was too tired.")


ENTRY_POINTS: list[tuple[Callable[[Any], Any], str]] = [
    (lambda _: ll.attend(X, X, X, lens=ll.Lens(top=1 << 40)), "top must be a whole number"),
    (lambda _: ll.attend_linear(X, X, X, features="favor", rank="x"), "rank must be a whole"),
    (lambda _: ll.attend_linear(X, X, X, features="favor", seed=None), "seed must be a whole"),
    (lambda _: ll.explain_choice(X, X, X, lens=True), "lens must be a Lens, found bool"),
    (lambda _: ll.alibi(1 << 70), "alibi heads must be a whole number of at most"),
    (lambda _: ll.causal().dense(-1), "i must be a whole number of at least 0"),
    (lambda _: ll.causal().draw("x"), "i must be a whole number"),
    (lambda _: ll.causal().dense(2, device="x"), "device must be a torch device"),
    (lambda _: ll.AttentionCall(X, X, X).without([(1, 0)], heads=True), "each head must be"),
    (lambda _: ll.AttentionCall(X, X, X).scaled(torch.tensor([float("nan")])), "at least 0"),
    (lambda _: ll.attend(X, X, X, dropout=MANY), "dropout must be at least 0 .* found tensor"),
    (lambda _: ll.attend(X, X, X, scale=MANY), r"found tensor\(\[\[1., 1.\], \[1., 1.\]\]\)$"),
    (lambda _: ll.attend_linear(X, X, X, causal=MANY), "causal must be True or False"),
    (lambda _: ll.scaled_dot_product_attention(X, X, X, is_causal=MANY), "is_causal must be True"),
    (lambda _: ll.scaled_dot_product_attention(X, X, X, enable_gqa="x"), "enable_gqa must be True"),
    (lambda _: ll.MultiheadAttention(8, 2)(X[0], X[0], X[0], need_weights=MANY), "need_weights"),
    (lambda _: ll.MultiheadAttention(8, 3), "refuses this: embed_dim must be divisible"),
    (lambda _: ll.AttentionCall(X, X, X).attend(lens=[]), "lens must be a Lens, found list"),
    (lambda _: ll.AttentionCall(X, X, X).without([(1, 0)], renormalise=MANY), "renormalise must"),
    (lambda _: ll.Lens(columns=torch.tensor(1.5)), "columns must be a sequence of keys"),
    (lambda _: ll.Lens(columns=[MANY]), "columns must be whole numbers"),
    (lambda _: ll.Lens(columns=NESTED), "columns must be a sequence of keys"),
    (lambda _: ll.attend(X, X, X, impl=np.ones((2, 2))), "impl must be 'auto' or the name"),
    (lambda _: SEEN.heads(None), "each head must be a whole number"),
    (lambda _: SEEN.heads(["x"]), "head must be a whole number"),
    (lambda _: SEEN.batch_row("x"), "row must be a whole number"),
    (lambda _: SEEN.dense(None), "limit must be a whole number"),
    (lambda _: ll.Seen.of_weights(X, "x"), "lens must be a Lens, found str"),
    (lambda _: ll.Seen.of_weights(X.to(torch.complex64)), "weights are torch.complex64"),
    (lambda _: ll.AttentionCall(X, X, X).scaled(X[..., :6].to(torch.float8_e4m3fn)), "factors"),
    (lambda _: ll.without(QUANTIZED), "pairs is a quantized tensor"),
    (lambda _: ll.Attention(8, heads=2)(None), "x must be a torch.Tensor, found NoneType"),
    (lambda _: ll.Attention(8, heads=2, output=MANY), "output must be True or False"),
    (lambda _: ll.Attention(8, heads=2)(X[0], rotation=3), "rotation must be a Rotation, found 3"),
    (lambda _: ll.Attention(8, heads=2)(X[0], cache=True), "cache must be a KeyValues, found True"),
    (lambda _: ll.Block(None, ll.FeedForward(8)), "attention must be an Attention, found None"),
    (lambda _: ll.Block(ll.Attention(8, heads=2), 3), "feedforward must be a FeedForward"),
    (lambda _: BLOCK(MANY), r"x has shape \(2, 2\), expected \(b, n, m = 8\)"),
    (lambda _: BLOCK(X[0], cache=[]), r"cache must be a BlockCache, found \[\]"),
    (lambda _: ll.Block(ll.Attention(8, heads=2), ll.FeedForward(8), norm=3), "norm must be a"),
    (lambda _: ll.FeedForward(8, activation=[]), "activation must be one of"),
    (lambda _: ll.RelativeBias(2, both_ways=MANY), "both_ways must be True or False"),
    (lambda _: ll.RelativeBias(2)(1.5, 2), "queries must be a whole number"),
    (lambda _: ll.sinusoidal(torch.arange(2), 1 << 70), "width must be a whole number of at most"),
    (lambda _: ll.Rotary(4)(None), "positions must be a torch.Tensor"),
    (lambda _: ll.Rotary(4)(X), r"positions has shape \(1, 2, 6, 8\), expected \(b, n\) or \(n\)"),
    (lambda _: MODEL(torch.tensor([[1]]), cache=3), "cache must be a Cache, found 3"),
    (lambda _: ll.save(MODEL, "a\0b"), "cannot be the name of a file"),
    (lambda _: ll.load("\ud800"), "cannot be the name of a file"),
    (lambda _: ll.load_weights(MODEL, {"x": 3}), r"weights\['x'\] must be a torch.Tensor"),
    (lambda _: ll.look("a", "y" * 300), "no such file or folder"),
    (lambda _: ll.cutting(MODEL, torch.tensor(1)).__enter__(), "links must be a list"),
    (lambda _: ll.cause(MODEL, torch.tensor(1), 0), "text must be the input of one text"),
    (lambda _: ll.shift("a", ["a"], {"x": 2}), "toward must be a list of texts, found 2"),
    (lambda _: serve(ModelStore([]), host="", port=0), "--host must be an address"),
    (lambda _: ll.FeedForward(None), "width must be a whole number"),
    (lambda _: ll.FeedForward(1 << 60), "a matrix of .* cannot be"),
    (lambda _: ll.FeedForward(8)(None), "x must be a torch.Tensor"),
    (lambda _: ll.sinusoidal(None, 4), "positions must be a torch.Tensor"),
    (lambda _: ll.Rotary(4, scaling=True), "scaling must be a Scaling or None, found True"),
    (lambda _: ll.Cache(1 << 70), "cache layers must be a whole number of at most"),
    (lambda _: ll.Decoder(None), "config must be a Config, found None"),
    (lambda _: MODEL(None), "tokens must be a torch.Tensor"),
    (lambda _: MODEL(torch.tensor([[1]]), lengths=True), "each length must be"),
    (lambda _: ll.look([1, 2], MODEL, None), "lens must be a Lens, found None"),
    (lambda _: ll.look([1, 2], MODEL, layers=0), "each layer must be a whole number"),
    (lambda _: ll.look([1, 2], MODEL, heads=["x"]), "head must be a whole number .* found 'x'"),
    (lambda _: ll.look([1, 2], MODEL, stack="x"), "stack must be one of 'encoder', .* found 'x'"),
    (lambda _: ll.watch(MODEL, layers=True), "layers must be a list of whole numbers or None"),
    (lambda _: ll.save(None, "x"), "model must be an Encoder or a Decoder"),
    (lambda _: ll.compare_weights(None, {}), "model must be a Module, found None"),
    (lambda _: ll.load_weights(MODEL, None), "weights must be a table or a text or a Path"),
    (lambda _: ll.Recording.load(None), "a path must be a text or a Path, found None"),
    (lambda _: ll.worked(3), "a path must be a text or a Path, found 3"),
    (lambda _: ll.steps(ll.Attention(4, heads=2), torch.eye(4), head=None), "head must be a whole"),
    (lambda _: ll.study([]), r"name must be a text, found \[\]"),
    (lambda _: ll.head_labels([]), "model must be a text"),
    (lambda _: ll.heads(MODEL, True), "texts must be a list of texts or None, found True"),
    (lambda _: ll.shift("a", None, {}), "sentences must be a list of texts, found None"),
    (lambda _: ll.cause(MODEL, "a", "a", controls=1.5), "controls must be a whole number"),
    (lambda _: ll.cutting(MODEL, 3).__enter__(), "links must be a list, found 3"),
    (lambda _: ll.explore(port=None), "port must be a whole number"),
    (lambda _: ll.rollout(None, 0), "rec must be a Recording, found None"),
    (lambda rec: ll.rollout(rec, []), "token must be an index, a word"),
    (lambda rec: ll.why(rec, 1.5, 0, "it", "animal"), "layer must be a whole number, found 1.5"),
    (lambda rec: ll.wrote(rec, 3, True, "it"), "head must be a whole number, found True"),
    (lambda rec: rec.top(True, 0, "it"), "layer must be a whole number"),
    (lambda rec: rec.weights(0, torch.ones(2)), "head must be a whole number"),
    (lambda rec: rec.save(None), "a path must be a text or a Path"),
    (lambda rec: rec.links(least="x"), "least must be a number, found 'x'"),
    (lambda rec: rec.links(by=np.ones(2)), "by must be one of 'weight', 'value'"),
    (lambda rec: ll.Recording(rec.text, None, rec.layers), "tokens must be a list, found None"),
    (lambda rec: ll.Recording(rec.text, rec.tokens, (3,)), r"layers must be a list, found \(3,\)"),
    (lambda rec: ll.Recording(rec.text, rec.tokens, MANY), "layers must be a list, found tensor"),
    (lambda _: ll.Recording.of_weights(3, ["a"]), "weights must be a list, found 3"),
    (lambda _: ll.Recording.of_weights("x", ["a"]), "weights of layer 0 must be a torch.Tensor"),
    (lambda _: ll.Recording.of_weights([X[0]], None), "words must be a list, found None"),
    (lambda _: ll.look(X.to_sparse()), "text is a sparse_coo tensor, expected a dense one"),
    (lambda _: ll.cutting(MODEL, NESTED).__enter__(), "links must be a list"),
    (lambda _: ll.load("minilm").embed(NESTED), "texts must be a list"),
    (lambda _: ll.cause(MODEL, torch.ones(2, device="meta"), 0), "text is on meta"),
    (lambda _: ll.Attention(8, heads=2, bias=np.ones(2)), "bias must be one of 'none', 'inputs'"),
    (lambda _: ll.FeedForward(8)(X.int()), "x is torch.int32, expected torch.float32 as"),
    (lambda _: ll.FeedForward(8)(X.to("meta")), "x is on meta, expected cpu as the layer"),
    (lambda _: ll.Attention(8, heads=2)(X[0].double()), "x is torch.float64, expected"),
    (lambda _: BLOCK(X[0].double()), "x is torch.float64, expected torch.float32 as the"),
    (lambda _: ll.Recording.of_weights([X[0]], [1, 2]), "words must be a list of texts"),
]


@pytest.mark.parametrize(("call", "words"), ENTRY_POINTS, ids=[words for _, words in ENTRY_POINTS])
def test_a_wrong_argument_is_named(
    call: Callable[[Any], Any], words: str, rec: ll.Recording, untyped: None
) -> None:
    with pytest.raises(ll.LimelightError, match=words):
        call(rec)
