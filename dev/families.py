"""Which Hugging Face families can be watched, and how: keeps docs/models.md.

    python dev/families.py            # walk all families (minutes) and write docs/models.md
    python dev/families.py bert gpt2  # print the rows of some

Each family is made at a tiny size with random weights and run within `watch`. Where no such model
can be made from the config alone, its source says how it attends.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import re
import sys
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

import limelight as ll
import limelight.huggingface
from limelight.errors import LimelightError
from limelight.seeing.watching.huggingface import is_own_attention

PAGE = Path(__file__).parents[1] / "docs" / "models.md"

SIZES: dict[str, Any] = {
    "vocab_size": 99, "hidden_size": 32, "d_model": 32, "n_embd": 32, "embed_dim": 32, "dim": 32,
    "emb_dim": 32, "hidden_dim": 32, "word_embed_proj_dim": 32, "embedding_size": 32,
    "intermediate_size": 40, "ffn_dim": 40, "d_ff": 40, "n_inner": 40, "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40, "ffn_hidden_size": 40, "moe_intermediate_size": 16,
    "num_hidden_layers": 2, "n_layer": 2, "n_layers": 2, "num_layers": 2, "encoder_layers": 2,
    "decoder_layers": 2, "num_decoder_layers": 2, "depth": 2, "num_encoder_layers": 2,
    "num_attention_heads": 4, "n_head": 4, "n_heads": 4, "num_heads": 4, "d_kv": 8, "head_dim": 8,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 64, "n_positions": 64, "max_seq_len": 64,
    "image_size": 32, "patch_size": 8, "num_experts": 4, "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
    "v_head_dim": 8, "num_mel_bins": 8, "rotary_dim": 4, "attention_window": 4,
    "decoder_start_token_id": 1, "layer_types": None, "projection_dim": 32,
    "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2, "first_k_dense_replace": 1,
    "n_group": 1, "topk_group": 1, "sliding_window": 8, "num_feat_extract_layers": 2,
    "conv_dim": (8, 8), "conv_stride": (4, 4), "conv_kernel": (8, 8), "max_source_positions": 50,
}  # fmt: skip
LIMIT = 20_000_000
"""Parameters of a model that is still tiny."""


class Row(NamedTuple):
    """How one family is seen."""

    family: str
    seen: str
    """fused, dense, in part, refused, or none"""
    known: str
    """run or read"""
    note: str = ""


def main(names: list[str]) -> None:
    """Print the rows of some families, or walk all and write the page."""
    rows = []
    for family in names or families():
        row = seen(family)
        print(*row, sep=" | ", flush=True)
        rows.append(row)
    if not names:
        PAGE.write_text(page(rows), encoding="utf-8")


def families() -> list[str]:
    """Every family in transformers that has attention."""
    import transformers.models

    root = Path(next(iter(transformers.models.__path__)))
    return sorted(
        folder.name for folder in root.iterdir() if any(map(_attends, folder.glob("modeling_*.py")))
    )


def _attends(file: Path) -> bool:
    return bool(re.search(r"class \w*Att(entio)?n\w*\(|Attention\(", file.read_text("utf-8")))


def seen(family: str) -> Row:
    """How a family is seen: by running it at a tiny size, or else by reading its source."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            model, inputs = tiny(family)
            with torch.no_grad():
                model(**inputs)
        except Exception:  # whatever a model says to a config it did not expect
            return read(family)
        said.clear()
        try:
            with torch.no_grad(), ll.watch(model, ll.Lens(top=2)) as watched:
                model(**inputs)
        except LimelightError as error:
            return Row(family, "refused", "run", str(error).partition(":")[0][:90])
    unseen = next((str(one.message) for one in said if "did not see" in str(one.message)), "")
    kinds = re.search(r"\(([\w, ]+)\)", unseen)
    note = kinds[1] if kinds else ""
    if not watched.order:
        return Row(family, "refused" if unseen else "none", "run", note)
    how = "dense" if watched.is_dense else "fused"
    return Row(family, f"{how} in part" if unseen else how, "run", note)


def read(family: str) -> Row:
    """What the source says, where no tiny model could be made."""
    own: set[str] = set()
    served = False
    for home in _modules(family):
        served = served or "get_interface(" in inspect.getsource(home)
        own |= {name for name, part in vars(home).items() if is_own_attention(part, home)}
    note = ", ".join(sorted(own))
    if own:
        return Row(family, "fused in part" if served else "dense or refused", "read", note)
    return Row(family, "fused" if served else "fused or refused", "read")


def _modules(family: str) -> list[Any]:
    import transformers.models

    folder = Path(next(iter(transformers.models.__path__))) / family
    found = []
    for file in sorted(folder.glob("modeling_*.py")):
        try:
            found.append(importlib.import_module(f"transformers.models.{family}.{file.stem}"))
        except ImportError:  # a package that is not installed here
            continue
    return found


def tiny(family: str) -> tuple[nn.Module, dict[str, Any]]:
    """The family's first model at a tiny size, and inputs for it."""
    from transformers import PreTrainedModel

    for home in _modules(family):
        kinds = [
            kind
            for kind in vars(home).values()
            if isinstance(kind, type) and issubclass(kind, PreTrainedModel)
            and kind.__module__ == home.__name__ and "PreTrained" not in kind.__name__
            and kind.config_class is not None
        ]  # fmt: skip
        kinds.sort(key=lambda kind: (not kind.__name__.endswith("Model"), len(kind.__name__)))
        for kind in kinds[:1]:
            config = kind.config_class(**options(kind.config_class))
            with torch.device("meta"):
                count = sum(one.numel() for one in kind(config).parameters())
            if count > LIMIT:
                raise ValueError(f"{kind.__name__} has {count} parameters at its smallest")
            torch.manual_seed(0)
            model = kind(config).eval()
            return model, inputs_of(model, config)
    raise ValueError("no model")


def options(config: type[Any], depth: int = 0) -> dict[str, Any]:
    """Small sizes for whatever a config has."""
    names = set(inspect.signature(config.__init__).parameters) | set(
        getattr(config, "__annotations__", {})
    )
    known = {name: size for name, size in SIZES.items() if name in names and size is not None}
    for name, part in getattr(config, "sub_configs", {}).items():
        if depth < 3 and isinstance(part, type) and part.__name__ != "AutoConfig":
            known[name] = options(part, depth + 1)
    return known


def inputs_of(model: Any, config: Any) -> dict[str, Any]:
    """Something that a model can read."""
    name = model.main_input_name
    ids = torch.randint(3, 60, (1, 12))
    parameters = inspect.signature(model.forward).parameters
    if name == "pixel_values":
        part = getattr(config, "vision_config", config)
        size = getattr(part, "image_size", 32)
        height, width = size if isinstance(size, list | tuple) else (size, size)
        found = {name: torch.randn(1, getattr(part, "num_channels", 3), height, width)}
        return found | ({"input_ids": ids} if "input_ids" in parameters else {})
    if name in ("input_values", "input_features"):
        bins = getattr(config, "num_mel_bins", 8)
        shape = (1, 2000) if name == "input_values" else (1, bins, 100)
        found = {name: torch.randn(shape)}
        return found | (
            {"decoder_input_ids": ids[:, :4]} if "decoder_input_ids" in parameters else {}
        )
    if name != "input_ids":
        raise ValueError(f"reads {name}")
    found = {"input_ids": ids}
    if "decoder_input_ids" in parameters and getattr(config, "is_encoder_decoder", False):
        found["decoder_input_ids"] = ids[:, :4]
    if "pixel_values" in parameters and "vision_config" in getattr(config, "sub_configs", {}):
        size = getattr(config.vision_config, "image_size", 32)
        found["pixel_values"] = torch.randn(1, 3, size, size)
    return found


def page(rows: list[Row]) -> str:
    """The table, and what its words mean."""
    import transformers

    count = {kind: sum(row.seen == kind for row in rows) for kind in sorted({r.seen for r in rows})}
    totals = ", ".join(f"{number} {kind}" for kind, number in count.items())
    lines = [
        "# Hugging Face families, and how each is seen",
        "",
        f"Written by `dev/families.py` with transformers {transformers.__version__}: {totals}.",
        "",
        "- **fused**: `watch` sees every call, exact, out of the kernel.",
        "- **dense**: the model computes attention with a softmax of its own and gives its weights",
        "  back (`output_attentions`): recorded from these, and `recording.made` says so.",
        "- **in part**: the modules named compute by themselves, unseen; a warning names them.",
        "- **refused**: nothing can be seen of it; a warning or an error says so in words.",
        "- **none**: its default model made no attention call.",
        "- *run*: a tiny model with random weights was run; *read*: its source was read, where no",
        "  tiny model can be made from the config alone.",
        "",
        "| family | seen | known by | computes by itself |",
        "|---|---|---|---|",
        *(f"| {row.family} | {row.seen} | {row.known} | {row.note} |" for row in rows),
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    assert limelight.huggingface
    logging.disable(logging.WARNING)
    main(sys.argv[1:])
