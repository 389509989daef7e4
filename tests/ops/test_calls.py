"""Interceptors nest, compose, belong to their context, and may change a call."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import Any

import pytest
import torch
from torch import Tensor

import limelight as ll
from limelight.errors import LimelightError, OptionError, UnavailableError
from limelight.ops.calls import AttentionCall, intercepted, run

PAIR = [(4, 2)]


def call(**options: Any) -> AttentionCall:
    torch.manual_seed(0)
    q, k, v = torch.randn(1, 4, 6, 8), torch.randn(1, 2, 6, 8), torch.randn(1, 2, 6, 8)
    return AttentionCall(q, k, v, **{"mask": ll.causal(), **options})


def weights(call: AttentionCall) -> Tensor:
    return run_seen(call)[1].dense()


def run_seen(call: AttentionCall) -> tuple[Tensor, ll.Seen]:
    return call.attend(lens=ll.Lens())


def weighted(weights: Tensor, value: Tensor) -> Tensor:
    return weights @ value.repeat_interleave(2, 1)


class Recorder:
    """An interceptor that keeps what a lens sees."""

    def __init__(self, lens: ll.Lens | None = None) -> None:
        self.lens, self.seen = lens or ll.Lens(top=1), list[ll.Seen]()

    def __call__(self, call: AttentionCall) -> Tensor:
        output, seen = call.attend(lens=self.lens)
        self.seen.append(seen)
        return output


def cut(call: AttentionCall) -> Tensor:
    return call.without(PAIR).attend()


@pytest.mark.parametrize("cut_first", [True, False])
def test_a_link_cut_by_one_is_gone_for_another_in_either_order(cut_first: bool) -> None:
    recorder = Recorder()
    first, second = (cut, recorder) if cut_first else (recorder, cut)
    with ll.intercept(first), ll.intercept(second):
        output = run(call())
    (seen,) = recorder.seen
    table = call().replace(mask=ll.causal() & ll.without(PAIR))
    assert seen.dense()[0, :, 4, 2].tolist() == [0.0] * 4
    assert torch.allclose(output, table.attend(), atol=1e-6)


@pytest.mark.parametrize("names_model", [True, False])
def test_a_link_cut_shows_zero_under_look(names_model: bool) -> None:
    text = "The animal didn't cross the street because it was too tired."
    model = ll.load("minilm")

    before = ll.look(text, model).weights(3, 1)
    query, key = divmod(int(before.argmax()), len(before))

    def cut_at_layer(call: AttentionCall) -> Tensor:
        return (call.without([(query, key)], heads=[1]) if call.layer == 3 else call).attend()

    with ll.intercept(cut_at_layer, model if names_model else None):
        recording = ll.look(text, model)
    assert float(before[query, key]) > 0.5
    assert float(recording.weights(3, 1)[query, key]) == 0
    assert float(recording.weights(3, 0)[query, key]) > 0
    assert torch.allclose(recording.weights(3, 1).sum(-1), torch.ones(len(recording.tokens)))


def test_two_lenses_see_the_same_call() -> None:
    first, second = Recorder(ll.Lens(top=2)), Recorder(ll.Lens(received=True))
    with ll.intercept(first), ll.intercept(second):
        run(call())
    assert first.seen[0].top.weights.shape == (1, 4, 6, 2)
    assert torch.allclose(second.seen[0].received, first.seen[0].dense().sum(-2), atol=1e-5)


def test_an_exception_removes_the_interceptor() -> None:
    def fail(_: AttentionCall) -> Tensor:
        raise RuntimeError("interceptor failed")

    with pytest.raises(RuntimeError, match="interceptor failed"), ll.intercept(fail):
        run(call())
    assert not intercepted()
    assert torch.equal(run(call()), call().attend())


def test_threads_and_tasks_do_not_see_one_anothers_interceptors() -> None:
    elsewhere: list[bool] = []
    with ll.intercept(cut):
        thread = threading.Thread(target=lambda: elsewhere.append(intercepted()))
        thread.start()
        thread.join()
    assert elsewhere == [False]

    async def task(recorder: Recorder, ready: asyncio.Event, go: asyncio.Event) -> None:
        with ll.intercept(recorder):
            ready.set()
            await go.wait()
            run(call())

    async def both() -> tuple[Recorder, Recorder]:
        recorders, events = (Recorder(), Recorder()), (asyncio.Event(), asyncio.Event())
        await asyncio.gather(task(recorders[0], *events), task(recorders[1], *events[::-1]))
        return recorders

    assert [len(recorder.seen) for recorder in asyncio.run(both())] == [1, 1]


def test_other_contexts_of_a_thread_keep_pytorchs_own_attention() -> None:
    q = torch.randn(1, 4, 64, 32)
    attention = torch.nn.functional.scaled_dot_product_attention
    expected = attention(q, q, q)
    assert not torch.equal(ll.scaled_dot_product_attention(q, q, q), expected)
    with ll.intercept(lambda call: call.attend()):
        found = contextvars.Context().run(attention, q, q, q)
    assert torch.equal(found, expected)


def test_an_output_may_be_replaced_and_a_lens_then_raises() -> None:
    def zeros(call: AttentionCall) -> Tensor:
        return torch.zeros_like(call.query)

    with ll.intercept(zeros):
        assert not run(call()).any()
    with (
        ll.intercept(zeros),
        ll.intercept(Recorder()),
        pytest.raises(UnavailableError, match="without attending"),
    ):
        run(call())


def test_a_changed_scale_and_mask_are_used() -> None:
    with ll.intercept(lambda call: call.replace(scale=2.0, mask=None).attend()):
        output = run(call())
    assert torch.allclose(output, call(scale=2.0, mask=None).attend(), atol=1e-6)


@pytest.mark.parametrize("sinks", [None, torch.tensor([0.5, -1.0, 2.0, 0.0])])
@pytest.mark.parametrize("bias", [None, ll.alibi(4)])
def test_cut_links_with_and_without_renormalising(sinks: Tensor | None, bias: Any) -> None:
    plain = call(sinks=sinks, bias=bias)
    before = weights(plain)
    heads = torch.tensor([False, True, False, True])
    is_cut = torch.zeros_like(before, dtype=torch.bool)
    is_cut[:, heads, 4, 2] = True
    kept = before.masked_fill(is_cut, 0.0)
    output, seen = run_seen(plain.without(PAIR, heads=[1, 3], renormalise=False))
    assert torch.allclose(seen.dense(), kept, atol=1e-6)
    assert torch.allclose(seen.tile(slice(3, 6), slice(1, 4)), kept[:, :, 3:6, 1:4], atol=1e-6)
    assert torch.allclose(output, weighted(kept, plain.value), atol=1e-5)
    if sinks is None:
        again = weights(plain.without(PAIR, heads=[1, 3]))
        assert torch.allclose(again, kept / kept.sum(-1, keepdim=True), atol=1e-6)


@pytest.mark.parametrize("factors", [torch.rand(4, 1, 6) * 3, torch.rand(6, 6), torch.zeros(6)])
@pytest.mark.parametrize("bias", [None, ll.alibi(4)])
def test_weights_scaled_after_softmax(factors: Tensor, bias: Any) -> None:
    plain = call(bias=bias)
    expected = weights(plain) * factors
    output, seen = run_seen(plain.scaled(factors, renormalise=False))
    assert torch.allclose(seen.dense(), expected, atol=1e-5)
    assert torch.allclose(output, weighted(expected, plain.value), atol=1e-5)
    total = expected.sum(-1, keepdim=True)
    again = torch.where(total > 0, expected / total, 0.0)
    assert torch.allclose(weights(plain.scaled(factors)), again, atol=1e-5)


def test_statistics_are_of_the_weights_that_were_used() -> None:
    changed = call().scaled(torch.rand(6, 6) * 2, renormalise=False)
    lens = ll.Lens(top=2, entropy=True, distance=True, columns=(1,), band=1, received=True)
    rows = ll.Lens(top=2, entropy=True, distance=True, columns=(1,), band=1)
    table = weights(changed)
    for seen in (changed.attend(lens=lens)[1], changed.attend(lens=rows)[1]):
        assert torch.allclose(seen.top.weights, table.topk(2).values, atol=1e-5)
        assert torch.allclose(seen.entropy, -torch.special.xlogy(table, table).sum(-1), atol=1e-5)
        assert torch.allclose(seen.columns[..., 0], table[..., 1], atol=1e-5)
        away = (torch.arange(6)[:, None] - torch.arange(6)).abs()
        assert torch.allclose(seen.distance, (table * away).sum(-1), atol=1e-4)
        assert torch.allclose(seen.band, (table * (away <= 1)).sum(-1), atol=1e-5)
    assert torch.allclose(changed.attend(lens=lens)[1].received, table.sum(-2), atol=1e-5)


def test_gradients_flow_through_a_changed_call() -> None:
    plain = call()
    query = plain.query.clone().requires_grad_()
    run(plain.replace(query=query).without(PAIR, renormalise=False)).sum().backward()
    assert query.grad is not None
    assert torch.isfinite(query.grad).all()


def test_calls_of_the_drop_ins_are_intercepted() -> None:
    recorder = Recorder()
    x, y = torch.randn(2, 3, 5, 8), torch.randn(2, 5, 16)
    attention = ll.MultiheadAttention(16, 2, batch_first=True)
    layer = torch.nn.TransformerEncoderLayer(16, 2, 8, batch_first=True).eval()
    layer.self_attn = attention
    with ll.intercept(recorder), torch.no_grad():
        ll.scaled_dot_product_attention(x, x, x, is_causal=True)
        _, returned = attention(y, y, y, average_attn_weights=False)
        layer(y)  # whose own fast path would not call it
    assert [seen.extent[1] for seen in recorder.seen] == [3, 2, 2]
    assert torch.allclose(returned, recorder.seen[1].dense(), atol=1e-6)


def test_a_call_names_its_module_layer_and_forward_pass() -> None:
    model = ll.Decoder(
        ll.Config(kind="decoder", vocabulary=11, context=8, width=16, layers=2, heads=2)
    )
    sites: list[tuple[str, int | None, int, int]] = []

    def record(call: AttentionCall) -> Tensor:
        sites.append((call.path, call.layer, call.occurrence, call.forward))
        return call.attend()

    with ll.intercept(record, model):
        for _ in range(2):
            model(torch.tensor([[1, 2, 3]]))
    paths = {path for path, *_ in sites}
    assert paths == {name for name, part in model.named_modules() if isinstance(part, ll.Attention)}
    assert [site[1:] for site in sites] == [(0, 0, 0), (1, 0, 0), (0, 0, 1), (1, 0, 1)]


def test_wrong_changes_are_named(untyped: None) -> None:
    with pytest.raises(OptionError, match="head must be a whole number of at most 3, found 4"):
        call().without(PAIR, heads=[4])
    with pytest.raises(LimelightError, match=r"without names the link \(9, 0\)"):
        call().without([(9, 0)]).attend()
    with pytest.raises(OptionError, match="factors must be a tensor of numbers of at least 0"):
        call().scaled(torch.tensor([-1.0]))
    with pytest.raises(LimelightError, match="lse has shape"):
        call(lse=torch.zeros(3)).attend()
    with pytest.raises(OptionError, match="interceptor must be a function"), ll.intercept(3):
        pass


def test_without_interceptors_no_call_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that calls which nothing intercepts cost nothing more."""

    def described(*_: object, **__: object) -> None:
        raise AssertionError("a call was described")

    monkeypatch.setattr("limelight.layers.attention.AttentionCall", described)
    monkeypatch.setattr("limelight.ops.sdpa.AttentionCall", described)
    x = torch.randn(1, 5, 8)
    ll.Attention(8, heads=2)(x)
    ll.scaled_dot_product_attention(x, x, x)
    with ll.intercept(cut), pytest.raises(AssertionError, match="was described"):
        ll.Attention(8, heads=2)(x)
