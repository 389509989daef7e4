"""Named tensors in files, read one at a time: safetensors, in one file or in shards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

from torch import Tensor

from limelight.errors import FileError
from limelight.fields import check_value, take
from limelight.files import is_file, read_from, read_json, writing
from limelight.models.config import Config


@runtime_checkable
class Weights(Protocol):
    """A checkpoint's tensors by name, read on demand."""

    @property
    def path(self) -> Path:
        """The file or folder, for messages."""
        ...

    def names(self) -> Iterable[str]:
        """The names of all tensors."""
        ...

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, without reading it."""
        ...

    def stored_type(self, name: str) -> str:
        """The type that a tensor is stored in: F32, BF16, Q4_K …"""
        ...

    def read(self, name: str) -> Tensor:
        """A copy of a tensor, in its stored type (quantised ones in float32)."""
        ...

    def stored_name(self, name: str) -> str:
        """The name of a tensor in the file, for messages."""
        ...


def check_sizes(config: Config, weights: Weights) -> None:
    """Raise if the config has sizes that no tensor has, before anything is allocated.

    Every layer has at least one tensor, and each of these sizes is an axis of some tensor.
    """
    names = list(weights.names())
    for field, layers in (("layers", config.layers), ("decoder_layers", config.decoder_layers)):
        if layers is not None and layers > len(names):
            raise FileError(f"{weights.path}: holds {len(names)} tensors, but {field} is {layers}")
    longest = max((size for name in names for size in weights.shape(name)), default=0)
    sizes = {
        "vocabulary": config.vocabulary,
        "width": config.width,
        "hidden": config.hidden,
        "heads × head_size": config.heads * config.head_size,
        "segments": config.segments,
        "context": config.context if config.positions == "learned" else 0,
    }
    for field, size in sizes.items():
        if size > longest:
            raise FileError(
                f"{weights.path}: no axis of its tensors is longer than {longest}, "
                f"but {field} is {size}"
            )


def read_fitting(weights: Weights, name: str, shape: Sequence[int]) -> Tensor:
    """Read a tensor, and raise unless it has this shape and a floating-point type."""
    tensor = weights.read(name)
    prefix = f"{weights.path}: tensor {weights.stored_name(name)!r}"
    if tuple(tensor.shape) != tuple(shape):
        raise FileError(f"{prefix} has shape {tuple(tensor.shape)}, expected {tuple(shape)}")
    if not tensor.is_floating_point():
        raise FileError(f"{prefix} is {tensor.dtype}, expected a floating-point type")
    return tensor


class Safetensors:
    """Tensors in one safetensors file, or in the shards listed by an index."""

    def __init__(self, path: Path, files: Mapping[str, Path] | None = None) -> None:
        self.path = path
        opened: dict[Path, Any] = {}
        if files is None:
            opened[path] = _open(path)
            files = dict.fromkeys(cast("list[str]", opened[path].keys()), path)
        for file in dict.fromkeys(files.values()):
            if file not in opened:
                opened[file] = _open(file)
        held = {file: set(handle.keys()) for file, handle in opened.items()}
        for name, file in files.items():
            if name not in held[file]:
                raise FileError(f"{file}: holds no tensor {name!r}, which {path.name} puts there")
        self._handles = {name: opened[file] for name, file in files.items()}

    @classmethod
    def sharded(cls, index: Path) -> Safetensors:
        """The shards of a `model.safetensors.index.json`."""
        with read_from(index):
            files = take(read_json(index), "weight_map", dict, {})
            for name in files:
                check_value(f"weight_map[{name!r}]", files[name], str)
        if not files:
            raise FileError(f"{index}: has no weight_map from tensors to files")
        for name, file in files.items():
            if not file or Path(file).name != file or "\0" in file:
                raise FileError(
                    f"{index}: weight_map[{name!r}] is {file!r}, expected a file in its folder"
                )
        return cls(index, {name: index.parent / file for name, file in files.items()})

    @classmethod
    def in_folder(cls, folder: Path) -> Safetensors:
        """The weights of a Hugging Face folder, in one file or in shards; pickles raise."""
        single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
        if is_file(single):
            return cls(single)
        if is_file(index):
            return cls.sharded(index)
        for file in sorted(folder.iterdir()):
            refuse_pickle(file)
        raise FileError(f"{folder}: holds neither model.safetensors nor {index.name}")

    def names(self) -> Iterable[str]:
        return self._handles.keys()

    def stored_name(self, name: str) -> str:
        return name

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._handles[name].get_slice(name).get_shape())

    def stored_type(self, name: str) -> str:
        return str(self._handles[name].get_slice(name).get_dtype())

    def read(self, name: str) -> Tensor:
        try:
            # The library may return a view of the mapped file, which must not outlive it.
            return cast("Tensor", self._handles[name].get_tensor(name)).clone()
        except KeyError:
            raise FileError(f"{self.path}: holds no tensor {name!r}") from None


def refuse_pickle(path: Path) -> None:
    """Raise if the suffix is one of pickled weights."""
    if path.suffix.lower() in (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"):
        raise FileError(
            f"{path}: a pickle can run any code, so Limelight never opens one; "
            "convert it to model.safetensors"
        )


def save_safetensors(
    tensors: Mapping[str, Tensor], path: Path, metadata: Mapping[str, str]
) -> None:
    """Write tensors to a safetensors file, which is replaced atomically."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    dense = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    with writing(path) as temporary:
        try:
            save_file(dense, temporary, dict(metadata))
        except SafetensorError as error:  # also for a full disk
            raise FileError(f"{path}: cannot be written: {error}") from error


def _open(path: Path) -> Any:
    from safetensors import SafetensorError, safe_open

    if not is_file(path):
        raise FileError(f"{path}: no such file")
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise FileError(f"{path}: damaged or truncated: {error}") from error
