"""docs/how-to/foreign-weights.md: the mappings for checkpoints of llama2.c and minGPT."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

import limelight as ll
from limelight.errors import OptionError

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "foreign-weights.md"
M, H, LAYERS, V, N = 24, 3, 2, 31, 9


def table(section: str) -> dict[str, Any]:
    """The names that the first code block of a section defines: its config and its mapping."""
    text = PAGE.read_text(encoding="utf-8").split(f"## {section}\n")[1]
    block = re.search(r"```python\n(.*?)model = ", text, re.DOTALL)
    assert block is not None
    names: dict[str, Any] = {"ll": ll}
    exec(block[1], names)
    return names


class Llama2c(nn.Module):
    """llama2.c's model: rotary pairs are neighbouring channels, rotated as complex numbers."""

    def __init__(self) -> None:
        super().__init__()

        def linear(rows: int, columns: int) -> nn.Linear:
            return nn.Linear(columns, rows, bias=False)

        def block() -> nn.ModuleDict:
            attention = nn.ModuleDict({name: linear(M, M) for name in ("wq", "wk", "wv", "wo")})
            forward = nn.ModuleDict({"w1": linear(40, M), "w2": linear(M, 40), "w3": linear(40, M)})
            norms = {"attention_norm": nn.RMSNorm(M, 1e-5), "ffn_norm": nn.RMSNorm(M, 1e-5)}
            return nn.ModuleDict({"attention": attention, "feed_forward": forward, **norms})

        self.tok_embeddings = nn.Embedding(V, M)
        self.layers = nn.ModuleList(block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(M, 1e-5)
        self.output = linear(V, M)
        self.output.weight = self.tok_embeddings.weight

    def forward(self, ids: Tensor) -> Tensor:
        x, d = self.tok_embeddings(ids), M // H
        angles = torch.outer(torch.arange(N), 10000.0 ** (-torch.arange(0, d, 2) / d))
        rotations = torch.polar(torch.ones_like(angles), angles)

        def heads(table: Tensor) -> Tensor:
            return table.unflatten(-1, (H, d)).transpose(1, 2)

        def rotated(table: Tensor) -> Tensor:
            pairs = torch.view_as_complex(heads(table).unflatten(-1, (-1, 2)).contiguous())
            return torch.view_as_real(pairs * rotations).flatten(-2)

        for layer in self.layers:
            own, normed = layer["attention"], layer["attention_norm"](x)
            q, k, v = (
                rotated(own["wq"](normed)),
                rotated(own["wk"](normed)),
                heads(own["wv"](normed)),
            )
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + own["wo"](mixed.transpose(1, 2).flatten(2))
            own, normed = layer["feed_forward"], layer["ffn_norm"](x)
            x = x + own["w2"](F.silu(own["w1"](normed)) * own["w3"](normed))
        return self.output(self.norm(x))


class MinGpt(nn.Module):
    """minGPT's model, with the causal mask that its blocks keep among their weights."""

    def __init__(self) -> None:
        super().__init__()

        def block() -> nn.ModuleDict:
            attention = nn.ModuleDict({"c_attn": nn.Linear(M, 3 * M), "c_proj": nn.Linear(M, M)})
            attention.register_buffer("bias", torch.ones(N, N).tril().view(1, 1, N, N))
            mlp = nn.ModuleDict({"c_fc": nn.Linear(M, 4 * M), "c_proj": nn.Linear(4 * M, M)})
            norms = {"ln_1": nn.LayerNorm(M), "ln_2": nn.LayerNorm(M)}
            return nn.ModuleDict({"attn": attention, "mlp": mlp, **norms})

        self.transformer = nn.ModuleDict({
            "wte": nn.Embedding(V, M), "wpe": nn.Embedding(N, M),
            "h": nn.ModuleList(block() for _ in range(LAYERS)), "ln_f": nn.LayerNorm(M),
        })  # fmt: skip
        self.lm_head = nn.Linear(M, V, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        parts = self.transformer
        x = parts["wte"](ids) + parts["wpe"].weight
        for layer in parts["h"]:
            own = layer["attn"]
            q, k, v = (
                part.unflatten(-1, (H, -1)).transpose(1, 2)
                for part in own["c_attn"](layer["ln_1"](x)).chunk(3, dim=-1)
            )
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + own["c_proj"](mixed.transpose(1, 2).flatten(2))
            own = layer["mlp"]
            x = x + own["c_proj"](F.gelu(own["c_fc"](layer["ln_2"](x)), approximate="tanh"))
        return self.lm_head(parts["ln_f"](x))


@pytest.mark.parametrize(
    ("section", "peer_class", "names"),
    [("llama2.c", Llama2c, "llama2c"), ("minGPT", MinGpt, "mingpt")],
)
@torch.no_grad()
def test_the_mappings_of_the_page_load_the_weights(
    section: str, peer_class: type[nn.Module], names: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    peer = peer_class()
    for parameter in peer.parameters():
        parameter.normal_(std=0.3)
    sizes: dict[str, Any] = {"vocabulary": V, "width": M, "layers": LAYERS, "heads": H}
    if section == "llama2.c":
        sizes |= {"kv_heads": H, "hidden": 40}
    page = table(section)
    config = page["config"].changed(**sizes, context=N)
    ids = torch.randint(V, (2, N))
    path = tmp_path / "weights.safetensors"
    save_file({name: tensor.clone() for name, tensor in peer.state_dict().items()}, path)
    model = ll.Decoder(config).eval()
    assert not ll.compare_weights(model, path).fits
    ll.load_weights(model, path, rename=page[names])
    expected = peer(ids)
    assert (model(ids) - expected).abs().max() < 1e-4 * expected.abs().max()
    if section == "llama2.c":  # rotary_pairs matters
        halves = ll.Decoder(config.changed(rotary_pairs="halves")).eval()
        ll.load_weights(halves, path, rename=page[names])
        assert (halves(ids) - expected).abs().max() > 0.01 * expected.abs().max()


def test_tensors_that_cannot_be_joined_are_named() -> None:
    model = nn.Linear(2, 3)
    parts = {"a.0.w": torch.zeros(1, 2), "a.1.w": torch.zeros(2, 2), "bias": torch.zeros(3)}
    with pytest.raises(OptionError, match=r"different numbers of \*"):
        ll.compare_weights(model, parts, rename={"a.*.w": "weight"})
    joined = {"a.1.w": "weight", "a.0.w": "weight"}
    parts["a.1.w"] += 1
    ll.load_weights(model, parts, rename=joined)
    assert model.weight.tolist() == [[1, 1], [1, 1], [0, 0]]
    parts["a.0.w"] = torch.zeros(1, 5)
    with pytest.raises(OptionError, match=r"joined to weight may .* found \(2, 2\), \(1, 5\)"):
        ll.compare_weights(model, parts, rename=joined)
