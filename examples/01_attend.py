"""The operation: exact attention, masks as rules, and a lens that records what was attended to."""

import torch

import limelight as ll

q, k, v = torch.randn(3, 1, 8, 1024, 64).unbind(0)

out = ll.attend(q, k, v, mask=ll.causal() & ll.window(256))
print("output", tuple(out.shape))
print(ll.explain_choice(q, k, v))
print((ll.causal() & ll.window(2)).draw(6))

lens = ll.Lens(top=3, entropy=True, received=True, map=(8, 8))
out, seen = ll.attend(q, k, v, mask=ll.causal(), lens=lens)
print("the last token of head 0 looks most at", seen.top.indices[0, 0, -1].tolist())
print("mean entropy of each head:", [round(x, 2) for x in seen.entropy.mean((0, 2)).tolist()])
exact = seen.tile(rows=slice(1020, 1024), columns=slice(0, 4))
print("any part of the weights, recomputed:", tuple(exact.shape))
