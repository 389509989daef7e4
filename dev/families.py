"""Which Hugging Face families can be watched, and how: writes docs/models.md.

    python dev/families.py              # test all families (minutes) and write docs/models.md
    python dev/families.py bert gpt2    # print the rows of some
    python dev/families.py --why bert   # and why some of their models could not be run

Tiny models of a family with random weights are run within `watch` until every attention module of
the family has run. Their sizes follow from the names of config fields, and where that is not enough
from `families.toml`. How a module that cannot be run computes attention is read from its source.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import re
import sys
import tomllib
import warnings
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from stand_ins import stand_ins
from torch import nn

import limelight as ll
import limelight.huggingface
from limelight.errors import LimelightError
from limelight.seeing.watching.huggingface import is_own_attention
from limelight.seeing.watching.unseen import ATTENTION

PAGE = Path(__file__).parents[1] / "docs" / "models.md"
BY_HAND: dict[str, dict[str, Any]] = tomllib.loads(
    Path(__file__).with_suffix(".toml").read_text("utf-8")
)
"""By family: a model's class, its config and its inputs; or why only its source is read."""

SIZES: dict[str, Any] = {
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
    "head_dim": 8, "d_kv": 8, "n_inner": 40, "rotary_dim": 4,
    "attention_window": 4, "sliding_window": 8, "first_k_dense_replace": 1, "n_group": 1,
    "topk_group": 1, "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2,
    "num_feat_extract_layers": 2, "conv_dim": (8, 8), "conv_stride": (4, 4), "conv_kernel": (8, 8),
    "num_mel_bins": 8, "spatial_merge_size": 1, "temporal_patch_size": 1, "num_frames": 2,
    "frames_per_clip": 2, "word_embed_proj_dim": 32,
    "max_source_positions": 50, "vision_feature_layer": -1, "index_topk": 4,
    "num_codebooks": 2, "mamba_n_groups": 1, "n_groups": 1, "window_size": 2,
    "use_timm_backbone": False, "use_pretrained_backbone": False, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8, "v_head_dim": 8, "n_routed_experts": 4, "prediction_length": 4,
    "context_length": 8, "num_experts_per_tok": 2, "num_time_features": 1,
    "default_language": "en_XX",
    "attention_types": [[["global", "local"], 1]], "axial_pos_embds_dim": (8, 24),
    "axial_pos_shape": (4, 3), "coordinate_size": 6, "shape_size": 4, "num_input_channels": 1,
    "num_windows": 4,
    "vocab_size": 99, "n_shared_experts": 1, "num_groups": 1, "context_size": 8,
    "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_expand": 2,
}  # fmt: skip
"""Small values by field name."""

RULES: list[tuple[str, int]] = [
    (r"vocab", 99),
    (r"(key_value|kv)_heads", 2),
    (r"heads$|n_head$", 4),
    (r"head_dim|head_size|kv_channels|d_head|d_kv", 8),
    (r"state_size|d_state", 8),
    (r"lora_rank", 16),
    (r"moe_intermediate|expert\w*intermediate|expert\w*hidden", 16),
    (r"intermediate|ffn|mlp_dim|d_ff|n_inner|feed_?forward|d_inner|ff_dim", 40),
    (r"layers$|n_layer$|depth$|num_blocks$", 2),
    (r"hidden_(size|dim)|d_model|n_embd|dim$|embed_dim|embedding_size|d_embed|hidden_channels", 32),
    (r"(^|_)(output|out|projection|proj|feature|latents?)_?(size|dim)$|feature_size|d_latents", 32),
    (r"positions|max_seq|position_embeddings", 64),
    (r"(image|img|crop|input)_size", 32),
    (r"patch_size", 8),
    (r"experts?$", 4),
    (r"per_tok|top_?k|moe_k$", 2),
    (r"num_quer|query_tokens|num_latents", 5),
]
"""Small sizes by patterns of field names, for fields whose default is larger."""

LISTS: list[tuple[str, list[int]]] = [
    (r"depth|layers|blocks", [1] * 8),
    (r"head", [1, 2, 2, 4, 4, 4, 4, 4]),
    (r"hidden|dims?$|channels|embed|width", [8, 16, 24, 32, 32, 32, 32, 32]),
]
"""The same for fields with one number per stage."""

BACKBONE: dict[str, Any] = {
    "model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 8, 16, 16],
    "depths": [1, 1, 1, 1], "layer_type": "basic",
    "out_features": ["stage1", "stage2", "stage3", "stage4"],
}  # fmt: skip
"""In place of one that would be downloaded, or made by a package that is not installed."""

MULTIMODAL_ROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
VARIANTS: list[dict[str, Any]] = [
    {},
    {"num_key_value_heads": 4, "head_dim": None},
    {"rope_parameters": MULTIMODAL_ROPE},
    {"layer_types": ["full_attention"] * 2},
    {"stages": None},  # the default sizes of stages
    {"hidden_size": 48, "head_dim": None},
    {"hidden_size": 128, "head_dim": None, "num_key_value_heads": 4},
    {"image_size": 128},
]
"""Changes to the small sizes, tried in this order; None means the default."""

WATCHED_CALLS = ("get_interface(", "scaled_dot_product_attention(", "nn.MultiheadAttention(")
"""Calls in a source that `watch` can see."""

MAX_PARAMETERS = 20_000_000
"""Parameters of a model that still counts as tiny."""
MAX_MODELS = 6
"""Model classes of a family that are tried."""


class Row(NamedTuple):
    """How one family is seen."""

    family: str
    seen: str
    """fused, dense, in part, refused, or none"""
    known: str
    """run or read"""
    note: str = ""


class Run(NamedTuple):
    """What `watch` saw of one model."""

    fused: bool = False
    dense: bool = False
    unseen: frozenset[str] = frozenset()
    refused: str = ""
    ran: frozenset[str] = frozenset()
    """classes of its attention modules that ran"""


def main(names: list[str]) -> None:
    """Print the rows of some families, or test all and write the page."""
    explain = "--why" in names
    names = [name for name in names if name != "--why"]
    rows: list[Row] = []
    for family in names or families():
        row = seen(family, explain=explain)
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


def seen(family: str, *, explain: bool = False) -> Row:
    """How a family is seen: by tiny models that are run, and by the source of other modules."""
    source_modules = _source_modules(family)
    with stand_ins(family, source_modules):
        return _seen(family, source_modules, explain=explain)


def _seen(family: str, source_modules: list[Any], *, explain: bool) -> Row:
    parts = {
        name: is_own_attention(part, source_module)
        for source_module in source_modules
        for name, part in vars(source_module).items()
        if isinstance(part, type) and issubclass(part, nn.Module)
        and part.__module__ == source_module.__name__ and ATTENTION.search(name)
    }  # fmt: skip
    entry = BY_HAND.get(family, {})
    runs = [watched_run(*by_hand(source_modules, **entry))] if "model" in entry else []
    for tried, model_class in enumerate(_model_classes(source_modules)[:MAX_MODELS]):
        ran = frozenset().union(*(run.ran for run in runs))
        missing = parts.keys() - ran
        # modules on the interface are seen wherever they run: two models of them are enough
        if runs and not (any(parts[name] for name in missing) or (missing and len(runs) < 2)):
            break
        variants = VARIANTS[:1] if runs or tried > 1 else VARIANTS
        for variant in variants:
            try:
                model, inputs = tiny(model_class, variant)
            except Exception as error:  # a model may raise anything for an unexpected config
                if explain:
                    name = f"{model_class.__name__} {variant or ''}"
                    print(f"  {name}: {type(error).__name__}: {error!s:.200}")
                continue
            runs.append(watched_run(model, inputs))
            break
    return _row(family, source_modules, parts, runs)


def _row(family: str, source_modules: list[Any], parts: dict[str, bool], runs: list[Run]) -> Row:
    # in a family with attention, a model without any (such as its backbone) shows nothing
    runs = [run for run in runs if not parts or run.fused or run.refused or run.ran & parts.keys()]
    reason = BY_HAND.get(family, {}).get("read")
    known = "run" if runs else f"read: {reason}" if reason else "read"
    source = "".join(inspect.getsource(source_module) for source_module in source_modules)
    ran = frozenset().union(*(run.ran for run in runs))
    unseen = frozenset().union(*(run.unseen for run in runs))
    fused, dense = any(run.fused for run in runs), any(run.dense for run in runs)
    refused = {run.refused for run in runs if run.refused}
    if refused and not fused and not dense:
        return Row(family, "refused", known, ", ".join(sorted(refused)))
    # modules that did not run, by their source
    own = {name for name, by_itself in parts.items() if by_itself and name not in ran}
    on_interface = {name for name, by_itself in parts.items() if not by_itself and name not in ran}
    watched = any(call in source for call in WATCHED_CALLS)
    if not fused and not dense:
        # a family without attention of its own consists of other models, made by AutoModel
        fused = (watched and bool(on_interface)) or (not (runs or own) and "AutoModel" in source)
        dense = False  # only a run shows whether returned weights are those of tokens
    unseen |= refused | (own if fused else set())
    if not fused and not dense:
        unseen |= own
        return Row(family, "refused" if unseen else "none", known, ", ".join(sorted(unseen)))
    how = "dense" if dense else "fused"
    return Row(family, f"{how} in part" if unseen else how, known, ", ".join(sorted(unseen)))


def watched_run(model: nn.Module, inputs: dict[str, Any]) -> Run:
    """Run a model within `watch`."""
    with warnings.catch_warnings(record=True) as caught, torch.no_grad():
        warnings.simplefilter("always")
        ran: set[str] = set()
        hook = nn.modules.module.register_module_forward_pre_hook(
            lambda module, _: ran.add(type(module).__name__)
        )
        try:
            with ll.watch(model, ll.Lens(top=2)) as watched:
                model(**inputs)
        except LimelightError as error:
            reason, *_ = re.split(" instead of |:", str(error))  # without what to do about it
            return Run(refused=reason, ran=frozenset(ran))
        except Exception as error:
            if "output_attentions" not in "".join(getattr(error, "__notes__", ())):
                raise
            return Run(refused="it fails with output_attentions=True", ran=frozenset(ran))
        finally:
            hook.remove()
    messages = [str(warning.message) for warning in caught]
    unseen_warning = next((message for message in messages if "did not see" in message), "")
    classes = re.search(r"\(([\w, ]+)\)", unseen_warning)
    return Run(
        bool(watched.order) and not watched.is_dense, watched.is_dense,
        frozenset(classes[1].split(", ") if classes else ()), "", frozenset(ran),
    )  # fmt: skip


@cache
def _source_modules(family: str) -> list[Any]:
    import transformers.models

    folder = Path(next(iter(transformers.models.__path__))) / family
    source_modules: list[Any] = []
    for file in sorted(folder.glob("modeling_*.py")):
        try:
            source_modules.append(
                importlib.import_module(f"transformers.models.{family}.{file.stem}")
            )
        except ImportError:  # a package that is not installed here
            continue
    return source_modules


def _model_classes(source_modules: list[Any]) -> list[type[Any]]:
    """The model classes of a family, those without a head first."""
    from transformers import PreTrainedModel

    classes = [
        each
        for source_module in source_modules
        for each in vars(source_module).values()
        if isinstance(each, type) and issubclass(each, PreTrainedModel)
        and each.__module__ == source_module.__name__ and "PreTrained" not in each.__name__
        and each.config_class is not None
    ]  # fmt: skip
    return sorted(classes, key=lambda each: ("For" in each.__name__, len(each.__name__)))


def tiny(model_class: type[Any], variant: dict[str, Any]) -> tuple[nn.Module, dict[str, Any]]:
    """A tiny model of this class, and inputs that it accepts."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        config = model_class.config_class(**options(model_class.config_class, variant))
        if (count := _parameters(model_class, config)) > MAX_PARAMETERS:
            raise ValueError(
                f"the tiny model has {count:,} parameters, expected at most {MAX_PARAMETERS:,}"
            )
        torch.manual_seed(0)
        model = model_class(config).eval()
        return model, inputs_for(model, config)


def by_hand(
    source_modules: list[Any], model: str, config: dict[str, Any], inputs: dict[str, Any]
) -> tuple[nn.Module, dict[str, Any]]:
    """The model of an entry in `families.toml`, and its inputs."""
    model_class = next(getattr(each, model) for each in source_modules if hasattr(each, model))
    torch.manual_seed(0)

    def make_input(name: str, shape: list[int] | dict[str, Any]) -> Any:
        if isinstance(shape, dict):
            return torch.tensor(shape["values"])
        if name.endswith("ids"):
            return torch.randint(30, 60, shape)
        return torch.ones(shape) if name.endswith("mask") else torch.rand(shape)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tiny_model = model_class(model_class.config_class(**config)).eval()
    return tiny_model, {name: make_input(name, shape) for name, shape in inputs.items()}


def _parameters(model_class: type[Any], config: Any) -> int:
    """How many parameters a model has, without allocating them."""
    try:
        with torch.device("meta"):
            return sum(parameter.numel() for parameter in model_class(config).parameters())
    except Exception:  # a constructor that computes with values, which "meta" lacks
        return 0


@cache
def _default(config: type[Any]) -> Any:
    return config()


def options(config: type[Any], variant: dict[str, Any], depth: int = 0) -> dict[str, Any]:
    """Small sizes for the fields of a config and of the configs inside it."""
    default = _default(config)
    names = {name for each in config.__mro__ for name in getattr(each, "__annotations__", {})}
    names |= set(inspect.signature(config.__init__).parameters)
    parts = getattr(config, "sub_configs", {})
    small: dict[str, Any] = {}
    stages = "stages" not in variant
    special = iter(range(3, 30))
    for name in sorted(names - parts.keys() - {"self", "kwargs", "args"}):
        value = smaller(name, _value(default, name), special, stages=stages)
        if name == "num_key_value_heads" and _value(default, "num_attention_heads") == _value(
            default, name
        ):
            value = 4  # not grouped
        value = deepcopy(variant.get(name, value))
        if value is not None:
            small[name] = value
    layers = next((small[name] for name in ("num_hidden_layers", "n_layer") if name in small), 2)
    for name in names & {"layer_types", "layers_block_type", "mlp_layer_types"} - variant.keys():
        if isinstance(layer_types := _value(default, name), list):
            distinct = list(dict.fromkeys(layer_types))
            small[name] = [*distinct, *distinct[-1:] * layers][:layers]
    for name in parts:
        part = _value(default, name)
        if name == "backbone_config" and getattr(part, "model_type", "timm").startswith("timm"):
            small[name] = BACKBONE
        elif depth < 3 and hasattr(part, "to_dict"):
            inner = options(type(part), variant, depth + 1)
            small[name] = {"model_type": part.model_type, **inner}
    return small


def _value(config: Any, name: str) -> Any:
    try:
        return getattr(config, name, None)
    except Exception:  # a field that exists only per layer
        return None


def smaller(name: str, value: Any, special: Iterator[int], *, stages: bool) -> Any:
    """A small value for a field with this default; None to keep the default."""
    if name in SIZES:
        listed = isinstance(SIZES[name], tuple)
        if value is None or listed == isinstance(value, list | tuple):
            return type(value)(SIZES[name]) if listed and value else SIZES[name]
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        if re.search(r"token_(id|index)$|_token$", name):
            return next(special) if value > 98 else None
        size = next((size for rule, size in RULES if re.search(rule, name)), None)
        return None if size is None or value <= size else size
    if isinstance(value, list | tuple) and value and all(type(item) is int for item in value):
        if re.search(r"image_size|patch_size", name):
            return type(value)(32 if "image" in name else 8 for _ in value)
        sizes = next((sizes for rule, sizes in LISTS if re.search(rule, name)), None)
        if not stages or sizes is None or len(value) > 8:
            return None
        return type(value)(map(min, value, sizes))
    return None


def inputs_for(model: Any, config: Any) -> dict[str, Any]:
    """The first inputs that the model accepts."""
    first_error: Exception | None = None
    for inputs in _inputs(model, config):
        try:
            model(**inputs)
        except Exception as error:
            first_error = first_error or error
        else:
            return inputs
    raise first_error or ValueError(f"no inputs are known for {model.main_input_name}")


def _inputs(model: Any, config: Any) -> Iterator[dict[str, Any]]:
    """Inputs that a model may accept, the likeliest first."""
    name = model.main_input_name
    parameters = inspect.signature(model.forward).parameters
    ids = torch.randint(30, 60, (1, 12))
    extra: dict[str, Any] = {}
    if "decoder_input_ids" in parameters:
        extra["decoder_input_ids"] = ids[:, :4]
    for each, parameter in parameters.items():
        if parameter.default is parameter.empty and re.search(r"_(pixel_values|masks)$", each):
            extra[each] = torch.randn(next(_pixel_shapes(config)))
    if "visual_feats" in parameters:
        size = getattr(config, "visual_feat_dim", 32)
        extra |= {"visual_feats": torch.randn(1, 5, size), "visual_pos": torch.randn(1, 5, 4)}
    if "bbox" in parameters:
        extra["bbox"] = torch.randint(0, 50, (1, 12, 4)).sort(-1).values
    if name == "input_ids" or "input_ids" in parameters:
        for shape in _pixel_shapes(config):
            if "pixel_values" in parameters:
                yield {"input_ids": ids, "pixel_values": torch.randn(shape), **extra}
        yield {"input_ids": ids, **extra}
        yield {"input_ids": ids, "attention_mask": torch.ones_like(ids), **extra}
        yield {"input_ids": ids}
    if name.startswith("pixel_values") or "pixel_values" in parameters:
        name = name if name in parameters else "pixel_values"
        for shape in _pixel_shapes(config):
            yield {name: torch.randn(shape), **extra}
            yield {name: torch.randn(shape)}
    if "grid_thw" in parameters:
        part = getattr(config, "vision_config", config)
        side = getattr(part, "patch_size", 8)
        for frames in (1, 2):
            yield {
                name if name in parameters else "hidden_states": torch.randn(
                    16, 3 * frames * side * side
                ),
                "grid_thw": torch.tensor([[1, 4, 4]]),
            }
    if "past_values" in parameters:
        length = getattr(config, "context_length", 8)
        past = length + max(getattr(config, "lags_sequence", None) or [0])
        future = getattr(config, "prediction_length", 4)
        yield {
            "past_values": torch.randn(1, past), "past_time_features": torch.randn(1, past, 1),
            "past_observed_mask": torch.ones(1, past), "future_values": torch.randn(1, future),
            "future_time_features": torch.randn(1, future, 1),
        }  # fmt: skip
        for channels in (1, getattr(config, "num_input_channels", 1)):
            yield {"past_values": torch.randn(1, length, channels)}
    bins = getattr(config, "num_mel_bins", None) or getattr(config, "feature_size", None) or 8
    length = getattr(config, "max_length", None) or 100
    shapes = [
        (1, length, bins),
        (1, bins, 100),
        (1, 100, bins),
        (1, 2000),
        (1, 1, 2000),
        (1, 12, 32),
        (1, 64),
    ]
    for sound in ("input_features", "input_values", "inputs", "past_values", "inputs_embeds"):
        if sound in parameters:
            for shape in shapes:
                yield {sound: torch.randn(shape), **extra}
                yield {sound: torch.randn(shape)}


def _pixel_shapes(config: Any) -> Iterator[tuple[int, ...]]:
    part = getattr(config, "vision_config", config)
    size = getattr(part, "image_size", None) or 32
    height, width = size if isinstance(size, list | tuple) else (size, size)
    channels = getattr(part, "num_channels", 3) or 3
    yield 1, channels, height, width
    yield 1, 2, channels, height, width
    yield 1, channels, 64, 64
    yield 2, channels, height, width
    yield 1, channels, 128, 128


def page(rows: list[Row]) -> str:
    """The page: the table, and what its terms mean."""
    import transformers

    counts = Counter(row.seen for row in rows)
    totals = ", ".join(f"{count} {seen}" for seen, count in sorted(counts.items()))
    ran = sum(row.known == "run" for row in rows)
    lines = [
        "# Hugging Face families, and how each is seen",
        "",
        f"Written by `dev/families.py` with transformers {transformers.__version__}: {totals}; "
        f"{ran} of {len(rows)} were run.",
        "",
        "- **fused**: `watch` sees every call, with exact weights from the kernel.",
        "- **dense**: the model computes attention with a softmax of its own and returns its",
        "  weights (`output_attentions`); these are recorded, and `recording.made` says so.",
        "- **in part**: the modules in the last column compute attention themselves and are not",
        "  seen; a warning names them.",
        "- **refused**: none of the model's attention can be seen; a warning or an error says so.",
        "- **none**: the models made no attention call.",
        "- *run*: tiny models with random weights were run; *read*: only the source was read, for",
        "  the reason given.",
        "",
        "| family | seen | known by | not seen |",
        "|---|---|---|---|",
        *(f"| {row.family} | {row.seen} | {row.known} | {row.note} |" for row in rows),
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    assert limelight.huggingface
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    main(sys.argv[1:])
