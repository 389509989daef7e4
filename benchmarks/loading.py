"""How long does loading a quantised model take?"""

from __future__ import annotations

import limelight as ll
from benchmarks.generate import hugging_face
from benchmarks.harness import Bench, Call, Case, Target, at_least

TITLE = "loading SmolLM2-135M from its Q4_1 GGUF"
TARGET = "under half of transformers' own time (ours brings the tokenizer, theirs does not)"


def measure(bench: Bench) -> list[Target]:
    bench.compare(
        Case(
            "load, dequantise",
            ours=lambda: ll.load("smollm2").stack.norm.weight,  # pyright: ignore
            peers={"transformers": _theirs},
        )
    )
    return [at_least("loading", bench.worst(), 2.0)]


def _theirs() -> Call:
    return lambda: hugging_face().model.norm.weight
