"""PyTorch's own attention calls in any module are watched, cut and served."""

from __future__ import annotations

import copy
import inspect
import pickle
from threading import Thread

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import limelight as ll
from limelight.errors import OptionError, UnavailableError
from limelight.ops.masks.band import causal

LENS = ll.Lens(top=3, entropy=True, received=True)


class Attend(nn.Module):
    """A single call of `F.scaled_dot_product_attention`."""

    def forward(self, *tensors: Tensor, **options) -> Tensor:
        return F.scaled_dot_product_attention(*tensors, **options)


class CausalSelfAttention(nn.Module):
    """As in nanoGPT."""

    def __init__(self, width: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads, self.dropout = heads, dropout

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.c_attn(x).chunk(3, dim=-1)
        )
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        return self.c_proj(y.transpose(1, 2).flatten(2))


class Gpt(nn.Module):
    def __init__(self, layers: int = 3, width: int = 16, heads: int = 4) -> None:
        super().__init__()
        self.wte = nn.Embedding(50, width)
        self.blocks = nn.ModuleList(
            nn.ModuleDict({"attn": CausalSelfAttention(width, heads), "norm": nn.LayerNorm(width)})
            for _ in range(layers)
        )
        self.head = nn.Linear(width, 50)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.wte(ids)
        for block in self.blocks:
            x = x + block["attn"](block["norm"](x))
        return self.head(x)

    @torch.no_grad()
    def generate(self, ids: Tensor, count: int) -> Tensor:
        for _ in range(count):
            ids = torch.cat((ids, self(ids)[:, -1:].argmax(-1)), dim=1)
        return ids


def close(ours: Tensor, theirs: Tensor, **options) -> None:
    torch.testing.assert_close(ours, theirs, **{"atol": 1e-5, "rtol": 1e-4, **options})


def weights_of(query: Tensor, key: Tensor, **options) -> Tensor:
    """All weights that PyTorch uses: its output on the identity."""
    eye = torch.eye(key.shape[-2], dtype=query.dtype).expand(*key.shape[:-2], -1, -1)
    return F.scaled_dot_product_attention(query, key, eye, **options)


Q, K, V = torch.randn(3, 2, 4, 6, 8, generator=torch.Generator().manual_seed(3))
SHORT = slice(0, 4)


@pytest.mark.parametrize(
    ("tensors", "options"),
    [
        ((Q, K, V), {}),
        ((Q[:, :, SHORT], K, V), {"is_causal": True}),  # upper-left: the first query, the first key
        ((Q, K, V), {"attn_mask": torch.randn(2, 1, 6, 6)}),
        ((Q, K, V), {"attn_mask": torch.randn(6, 6) > -0.5}),
        ((Q, K[:, :2], V[:, :2]), {"enable_gqa": True}),
        ((Q[0], K[0], V[0]), {"scale": 0.3}),
    ],
)
def test_watched_and_served_calls_equal_those_of_pytorch(tensors, options):
    model = Attend()
    expected = model(*tensors, **options)
    with ll.watch(model, LENS) as watched:
        output = model(*tensors, **options)
    close(output, expected)
    seen = watched.recording().seen(0)
    close(seen.dense()[0], weights_of(*tensors[:2], **options).reshape(-1, 4, *seen.shape[2:])[0])
    with ll.serving():
        close(model(*tensors, **options), expected)


def test_outputs_have_dropout_and_the_seen_weights_do_not():
    model = Attend()
    with ll.watch(model, LENS) as watched:
        outputs = torch.stack([model(Q, K, V, dropout_p=0.5) for _ in range(400)])
    exact = F.scaled_dot_product_attention(Q, K, V)
    assert not torch.equal(outputs[0], outputs[1])
    close(outputs.mean(0), exact, atol=0.35, rtol=0)
    close(watched.seen(0).dense(), weights_of(Q, K))


def test_calls_of_a_nanogpt_are_named_by_their_modules():
    model, ids = Gpt().eval(), torch.randint(50, (1, 7))
    expected = model.generate(ids, 3)
    with ll.watch(model, LENS) as watched:
        assert torch.equal(model.generate(ids, 3), expected)
    assert watched.order == [f"blocks.{layer}.attn" for layer in range(3)] * 3
    assert watched.stacks == ("self",)
    assert watched.passes() == 3  # without a cache each token is a forward pass of its own
    recording = watched.recording()
    assert recording.layer_numbers == (0, 1, 2)
    assert [token.text for token in recording.tokens] == [str(n) for n in expected[0, :-1].tolist()]
    assert watched.seen("blocks.1.attn", which=0).extent.j == 7
    assert float(watched.seen(2).dense().triu(1).abs().max()) == 0


def test_watch_keeps_gradients_and_autocast():
    model, ids = Gpt(), torch.randint(50, (2, 7))
    model(ids).square().sum().backward()
    expected = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    with ll.watch(model, LENS) as watched:
        model(ids).square().sum().backward()
    for ours, theirs in zip(model.parameters(), expected, strict=True):
        close(ours.grad, theirs, atol=1e-3, rtol=1e-3)
    assert watched.passes() == 1
    with torch.autocast("cpu", torch.bfloat16):
        half = model(ids)
        with ll.watch(model, LENS) as watched:
            ours = model(ids)
    assert ours.dtype == half.dtype == torch.bfloat16
    close(ours, half, atol=0.05, rtol=0.05)
    assert watched.passes() == 1


def masks(kind: str) -> dict[str, Tensor]:
    if kind == "causal":
        return {"mask": nn.Transformer.generate_square_subsequent_mask(6), "is_causal": True}
    if kind == "padding":
        return {"src_key_padding_mask": torch.tensor([[False] * 6, [False] * 4 + [True] * 2])}
    return {}


@pytest.mark.parametrize("kind", ["none", "causal", "padding"])
@pytest.mark.parametrize("grad", [False, True])
def test_an_encoder_is_seen_although_it_has_a_fused_inference_path(kind, grad):
    layer = nn.TransformerEncoderLayer(16, 4, 20, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    x = torch.randn(2, 6, 16)
    with torch.set_grad_enabled(grad):
        expected = model(x, **masks(kind))
        with ll.watch(model, LENS) as watched:
            output = model(x, **masks(kind))
        with ll.serving():
            close(model(x, **masks(kind)), expected)
    close(output, expected)
    assert watched.order == ["layers.0.self_attn", "layers.1.self_attn"]
    weights = model.layers[0].self_attn(
        x, x, x,
        attn_mask=masks(kind).get("mask"),
        key_padding_mask=masks(kind).get("src_key_padding_mask"),
        average_attn_weights=False,
    )[1]  # fmt: skip
    close(watched.seen(0).dense(), weights.detach())


@pytest.mark.parametrize("options", [{}, {"kdim": 12, "vdim": 10}, {"add_bias_kv": True},
                                     {"add_zero_attn": True}, {"bias": False}])  # fmt: skip
@pytest.mark.parametrize("needs", [True, False])
def test_watched_multihead_attention_returns_the_same(options, needs):
    model = nn.MultiheadAttention(16, 4, **options).eval()
    q = torch.randn(5, 2, 16)
    k, v = torch.randn(7, 2, options.get("kdim", 16)), torch.randn(7, 2, options.get("vdim", 16))
    mask = torch.randn(5, 7) > 1
    for average in (True, False):
        arguments = {"attn_mask": mask, "need_weights": needs, "average_attn_weights": average}
        theirs = model(q, k, v, **arguments)
        with ll.watch(model, LENS) as watched:
            ours = model(q, k, v, **arguments)
        for actual, expected in zip(ours, theirs, strict=True):
            assert (actual is None) == (expected is None)
            if expected is not None:
                close(actual, expected)
        assert watched.seen(0).extent[1:3] == (4, 5)
    if needs:  # the weights have gradients, like PyTorch's
        q.requires_grad_()
        theirs = torch.autograd.grad(model(q, k, v)[1].square().sum(), q)
        with ll.watch(model):
            ours = torch.autograd.grad(model(q, k, v)[1].square().sum(), q)
        close(ours[0], theirs[0])


@pytest.mark.usefixtures("untyped")
def test_nn_transformer_has_three_stacks():
    model = nn.Transformer(16, 4, 2, 2, 20, batch_first=True).eval()
    source, target = torch.randn(2, 6, 16), torch.randn(2, 5, 16)
    mask = model.generate_square_subsequent_mask(5)
    with torch.no_grad():
        expected = model(source, target, tgt_mask=mask, tgt_is_causal=True)
        with ll.watch(model, LENS) as watched:
            output = model(source, target, tgt_mask=mask, tgt_is_causal=True)
    close(output, expected)
    assert watched.stacks == ("encoder", "decoder", "cross")
    assert watched.seen(1, "cross").extent[2:] == (5, 6)
    assert float(watched.seen(1, "decoder").dense().triu(1).abs().max()) == 0
    assert len(watched.recording(stack="cross").queries) == 5


def test_an_interceptor_changes_the_mask_of_any_module():
    model, x = nn.TransformerEncoderLayer(16, 4, batch_first=True).eval(), torch.randn(1, 6, 16)

    def cut(call: ll.AttentionCall) -> Tensor:
        return call.replace(mask=causal()).attend()

    with torch.no_grad(), ll.watch(model, LENS) as watched, ll.intercept(cut, model):
        model(x)
    assert float(watched.seen(0).dense().triu(1).abs().max()) == 0


def test_other_threads_are_not_watched():
    model, x = nn.TransformerEncoderLayer(16, 4, batch_first=True).eval(), torch.randn(1, 6, 16)
    with torch.no_grad(), ll.watch(model, LENS) as watched, ll.serving():
        thread = Thread(target=lambda: model(x))
        thread.start()
        thread.join()
        with pytest.raises(ll.LimelightError, match="nothing was recorded: run the model within"):
            watched.seen(0)
    assert watched.order == []
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())


class OwnAttention(nn.Module):
    """Bahdanau's: scores from a small network, a softmax of its own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.score = nn.Linear(2 * width, 1)

    def forward(self, state: Tensor, memory: Tensor) -> Tensor:
        pairs = torch.cat((state[:, None].expand_as(memory), memory), dim=-1)
        return (self.score(pairs).softmax(1) * memory).sum(1)


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.attention = nn.LSTM(8, 8, batch_first=True), OwnAttention(8)

    def forward(self, x: Tensor) -> Tensor:
        memory, _ = self.lstm(x)
        return self.attention(memory[:, -1], memory)


def test_a_softmax_of_its_own_warns_and_cannot_be_recorded():
    model = Lstm()
    message = r"did not see the attention of attention \(OwnAttention\): Lstm computes it by itself"
    with pytest.warns(RuntimeWarning, match=message), ll.watch(model) as watched:
        model(torch.randn(2, 5, 8))
    message = r"Lstm computes the attention.*What is seen: F\."
    with pytest.raises(UnavailableError, match=message):
        watched.recording()


def test_a_scripted_module_is_refused():
    model = nn.TransformerEncoderLayer(16, 4, batch_first=True).eval()
    model.linear1 = torch.jit.trace(model.linear1, torch.randn(1, 16))
    with pytest.raises(UnavailableError, match="'linear1' is scripted"), ll.watch(model):
        pass


def test_our_own_models_are_watched_too():
    model = ll.Decoder(ll.Config.gpt2(vocabulary=50, width=16, layers=2, heads=2)).eval()
    ids = torch.randint(50, (1, 6))
    with torch.no_grad(), ll.watch(model, LENS) as watched:
        model(ids)
    recording = watched.recording()
    assert recording.layer_numbers == (0, 1)
    assert [token.text for token in recording.tokens] == [str(n) for n in ids[0].tolist()]
    with torch.no_grad(), ll.watch(model, LENS) as watched:
        generated = ll.generate(model, [ids[0].tolist()], max_tokens=4)[0]
    assert watched.passes() == 1
    assert watched.seen(1).extent.j == 6 + len(generated.ids) - 1


def test_a_served_module_runs_on_our_kernels_outside_any_block():
    x = torch.randn(2, 5, 16)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, batch_first=True), 2).eval()
    names = list(model.state_dict())
    calls = []

    def record(call):
        calls.append(call)
        return call.attend()

    with torch.no_grad():
        expected = model(x)
        assert ll.serve(ll.serve(model)) is model
        copied = pickle.loads(pickle.dumps(copy.deepcopy(model)))
        # an interceptor with `locate` enters no mode: it sees the calls of the served modules
        with ll.intercept(record, locate=lambda call: call):
            close(model(x), expected)
            assert len(calls) == 2
            close(copied(x), expected)
            assert len(calls) == 4
            with pytest.raises(AssertionError, match="embedding dimension"):
                model(torch.randn(2, 5, 3))
            F.scaled_dot_product_attention(Q, K, V)  # outside: PyTorch's own
            assert len(calls) == 4
    assert list(model.state_dict()) == names
    assert inspect.signature(model.forward) == inspect.signature(copied.forward)
    assert "src_key_padding_mask" in inspect.signature(model.forward).parameters
    del model.forward
    with torch.no_grad(), ll.intercept(record, locate=lambda call: call):
        close(model(x), expected)
    assert len(calls) == 4


def test_a_served_module_trains_and_generates(untyped):
    model, ids = Gpt(), torch.randint(50, (2, 7))
    served = ll.serve(copy.deepcopy(model))
    for module in (model, served):
        module(ids).square().mean().backward()
    for own, theirs in zip(served.parameters(), model.parameters(), strict=True):
        close(own.grad, theirs.grad, atol=1e-5, rtol=1e-4)
    assert torch.equal(served.eval().generate(ids, 3), model.eval().generate(ids, 3))
    with pytest.raises(UnavailableError, match="compiled"):
        ll.serve(torch.compile(model))
    with pytest.raises(OptionError, match="found int"):
        ll.serve(3)
