"""Write docs/heads.md: what the heads of MiniLM and SmolLM2 do. `python docs/make_heads.py`."""

from __future__ import annotations

from pathlib import Path

import limelight as ll
from limelight.insight.ablation import Ablation, ablate_role, repeat_loss
from limelight.insight.heads import HeadRoles

HERE = Path(__file__).parent


def main() -> None:
    """Measure both models and write the page with its figures."""
    parts = [INTRODUCTION]
    for name, title in (("minilm", "MiniLM"), ("smollm2", "SmolLM2-135M")):
        model = ll.load(name)
        roles = ll.heads(model, progress=True)
        roles.save(HERE / "figures" / f"heads-{name}.svg")
        parts.append(section(title, name, roles))
        if isinstance(model, ll.Decoder):
            parts.append(ablation(model, roles, ablate_role(model, roles, progress=True)))
    (HERE / "heads.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def section(title: str, name: str, roles: HeadRoles) -> str:
    named = sum(bool(roles.roles(x, y)) for x in range(roles.layers) for y in range(roles.heads))
    return (
        f"## {title}\n\n{roles.table().markdown()}\n\n"
        f"{named} of {roles.layers * roles.heads} heads have a role, coloured below "
        f"with its score.\n\n![What the heads of {title} do](figures/heads-{name}.svg)"
    )


def ablation(model: ll.Decoder, roles: HeadRoles, found: Ablation) -> str:
    given = int(roles.scores["induction"].given.sum())
    best = ", ".join(
        f"layer {layer} head {head} ({score:.2f})" for layer, head, score in roles.top("induction")
    )
    mean = sum(found.random) / len(found.random)
    median = sorted(found.random)[len(found.random) // 2]
    more = sum(found.without > loss for loss in found.random)
    return (
        "### The induction heads, taken out\n\n"
        f"{given} heads have the induction role. The five strongest: {best}.\n\n"
        "The opening token and 48 random tokens twice: on the second run the loss is "
        f"{found.whole:.2f} nats a token with all heads, {found.without:.2f} without these five, "
        f"and without five others drawn at random {mean:.2f} on average, {median:.2f} in the "
        f"median ({min(found.random):.2f} to {max(found.random):.2f} over {len(found.random)} "
        f"draws). Taking out the induction heads costs more than {more} of the "
        f"{len(found.random)} random draws{exceptions(model, found)}. Zeroing a head also takes "
        "away whatever else it did, and other heads may step in: this says that these heads matter "
        "for copying here, not that they are all that does."
    )


def exceptions(model: ll.Decoder, found: Ablation) -> str:
    """The draws that cost as much, and the head of each that costs most by itself."""
    said = ""
    for heads, loss in zip(found.drawn, found.random, strict=True):
        if loss < found.without:
            continue
        names = ", ".join(f"{layer}·{head}" for layer, head in sorted(heads))
        alone = {head: repeat_loss(model, [head]) for head in heads}
        layer, head = max(alone, key=lambda head: alone[head])
        said += (
            f"; the draw that costs {loss:.2f} takes out {names}, of which {layer}·{head} "
            f"costs most by itself ({alone[layer, head]:.2f})"
        )
    return said


INTRODUCTION = """# What heads do

Made by `python docs/make_heads.py`; `limelight heads MODEL` prints the same for any model, and
`ll.heads(model, texts)` takes your own corpus. Layers and heads are counted from 0.

A role is given only where a head beats the chance level by the margin on both halves: the texts,
random tokens or words it is chosen by, and those held out (`needed` = chance + margin). Chance is
even weights for positions and copying, the best fixed offset for syntax (Clark et al. 2019), 0
for the correlation of weights with the cosine of static embeddings ("semantics"). `by value` is
the same measured on ‖weight · value‖ (Kobayashi et al. 2020): a head may pay a token much and
take little from it. Induction: an opening token, then random tokens twice; the weight on what
followed last time. Retrieval (Wu et al. 2024): of the needle's tokens that the model copies, the
share at which the head's strongest key is that token in the needle. Syntax: the share of 120
sentences of each half, made from templates over words of which the halves share none, in which a
word's strongest key, special tokens and the first token left out, is the other word; the arrow is
the direction that served better on the half for choosing."""


if __name__ == "__main__":
    main()
