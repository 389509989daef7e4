"""A whole training step: is it faster than that of the same model in plain PyTorch?"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import limelight as ll
from benchmarks.harness import Bench, Call, Case, DisagreementError, Target, at_least
from limelight.training.data import Batch
from limelight.training.evaluate import token_loss
from limelight.training.optimise import make_optimizer, optimizer_step
from limelight.training.settings import OptimizerSettings

TITLE = "training"
TARGET = "tokens/s ≥ 1.15x the same architecture on PyTorch SDPA, whole steps"

VOCABULARY = 66


class PlainBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.inputs = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)
        self.attention_norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.feedforward_norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        b, n, m = x.shape
        parts = self.inputs(self.attention_norm(x)).split(m, dim=-1)
        q, k, v = (part.view(b, n, self.heads, -1).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.output(y.transpose(1, 2).reshape(b, n, m))
        hidden = F.gelu(self.up(self.feedforward_norm(x)), approximate="tanh")
        return x + self.down(hidden)


class Plain(nn.Module):
    """GPT-2 in plain PyTorch, with the weights of one of our models."""

    def __init__(self, model: ll.Decoder) -> None:
        super().__init__()
        config = model.config
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.positions = nn.Embedding(config.context, config.width)
        self.blocks = nn.ModuleList(
            PlainBlock(config.width, config.heads) for _ in range(config.layers)
        )
        self.norm = nn.LayerNorm(config.width)
        # Both list their parameters in the same order.
        theirs, ours = list(self.parameters()), list(model.parameters())
        with torch.no_grad():
            for their, our in zip(theirs, ours, strict=True):
                their.copy_(our)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.tokens.weight)


def plain_step(model: ll.Decoder, batch: Batch, fused: bool) -> Call:
    plain = Plain(model)
    decayed = [p for p in plain.parameters() if p.ndim > 1]
    rest = [p for p in plain.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}],
        lr=1e-4, betas=(0.9, 0.99), fused=fused or None,
    )  # fmt: skip

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        logits = plain(batch.inputs["tokens"])
        F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten()).backward()
        nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        optimizer.step()

    return step


def our_step(model: ll.Decoder, batch: Batch) -> Call:
    settings = OptimizerSettings(learning_rate=1e-4, final_learning_rate=1e-4)
    optimizer = make_optimizer(model, settings)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        token_loss(model(**batch.inputs), batch).backward()
        optimizer_step(optimizer, settings.clip_norm)

    return step


def check(model: ll.Decoder, batch: Batch) -> None:
    """Check before timing that both models have the same loss and gradients."""
    plain = Plain(model)
    theirs = F.cross_entropy(plain(batch.inputs["tokens"]).flatten(0, 1), batch.targets.flatten())
    ours = token_loss(model(**batch.inputs), batch)
    ours.backward()
    theirs.backward()
    if not torch.allclose(ours, theirs, rtol=1e-5):
        raise DisagreementError(f"loss is {ours.item()}, PyTorch's {theirs.item()}")
    for our, their in zip(model.parameters(), plain.parameters(), strict=True):
        assert our.grad is not None
        assert their.grad is not None
        if not torch.allclose(our.grad, their.grad, atol=1e-5, rtol=1e-3):
            raise DisagreementError("gradients differ from PyTorch's")


def measure(bench: Bench) -> list[Target]:
    rows = []
    settings = ((4, 4, 128, 64, 12), (6, 6, 384, 256, 12))
    for layers, heads, width, context, b in bench.pick(settings, quick=settings[:1]):
        torch.manual_seed(0)
        config = ll.Config.gpt2(
            layers=layers, heads=heads, width=width, context=context, vocabulary=VOCABULARY
        )
        model = ll.Decoder(config).train()
        ids = torch.randint(VOCABULARY, (b, context + 1))
        batch = Batch({"tokens": ids[:, :-1]}, ids[:, 1:], b * context)
        check(model, batch)
        peers: dict[str, Callable[[], Call]] = {
            "PyTorch": partial(plain_step, model, batch, False),
            "PyTorch, fused AdamW": partial(plain_step, model, batch, True),
        }
        weights = sum(p.numel() for p in model.parameters() if p.ndim > 1)
        rows.append(
            bench.compare(
                Case(
                    f"layers {layers} width {width} block {context} batch {b}",
                    ours=our_step(model, batch),
                    peers=peers,
                    flops=6.0 * weights * b * context,
                )
            )
        )
    return [at_least(f"training step, {row.case}", bench.worst([row]), 1.15) for row in rows]
