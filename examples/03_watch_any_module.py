"""Watch a GPT written from scratch, without any change to it."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import limelight as ll


class CausalSelfAttention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.c_attn(x).chunk(3, dim=-1)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = CausalSelfAttention(width, heads)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, vocabulary: int, width: int = 32, heads: int = 4, layers: int = 3) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(64, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


torch.manual_seed(0)
text = "to be or not to be"
letters = sorted(set(text))
ids = torch.tensor([[letters.index(letter) for letter in text]])
model = GPT(len(letters))

# A hundred steps on one line are enough for the heads to learn a pattern.
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for _ in range(100):
    loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[0, 1:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

with torch.no_grad(), ll.watch(model, ll.Lens(top=4, entropy=True)) as watched:
    logits = model(ids)

print("modules that attended:", *watched.order)
seen = watched.seen("blocks.1.attn")
links = seen.top
print("blocks.1.attn, head 0: the last letter looks at", end=" ")
for weight, key in zip(links.weights[0, 0, -1], links.indices[0, 0, -1], strict=True):
    print(f"{text[key]!r} ({weight:.2f})", end=" ")
print()

with torch.no_grad(), ll.serving():  # the same model on limelight's kernels, not recorded
    print("the same numbers:", torch.allclose(model(ids), logits, atol=1e-5))
