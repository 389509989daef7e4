"""GGUF files of the Llama and Gemma 3 families: metadata, dequantised weights, tokenizer.

The file is mapped into memory and parsed by the `gguf` package. Two things are done here because
the package is slow at them: reading long arrays of strings, and dequantising the commonest
formats, which takes a handful of whole-tensor operations. Weights are in blocks of 32:

    Q4_0  18 bytes:  d·(q − 8)       d, m: float16, one per block
    Q4_1  20 bytes:  d·q + m         q: 4 bits (low nibbles first) or int8
    Q8_0  34 bytes:  d·q
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from limelight.checks import check_whole
from limelight.errors import FileError, UnavailableError
from limelight.fields import check_value
from limelight.files import read_from
from limelight.layers.rotary import Llama3Scaling, plain_angles

if TYPE_CHECKING:
    from gguf import ReaderTensor

T = TypeVar("T")

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


class Gguf:
    """One GGUF file, with its tensors under their Hugging Face names.

    Satisfies `limelight.models.loading.weights.Weights`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        reader = _open(path)
        self._fields = cast("dict[str, Any]", reader.fields)
        architecture = self.get("general.architecture")
        if architecture not in _NAMES:
            known = " or ".join(map(repr, _NAMES))
            raise FileError(f"{path}: architecture {architecture!r} is unknown, expected {known}")
        self.architecture = str(architecture)
        self._names = _NAMES[self.architecture]
        self._stored_names = {hf_name: name for name, hf_name in self._names.items()}
        if self.architecture_value("expert_count", 0):
            raise FileError(f"{path}: a mixture of experts, expected one feed-forward per layer")
        self._tensors = {self._hugging_face_name(t.name): t for t in reader.tensors}

    def get(self, name: str, default: Any = None) -> Any:
        """A metadata value: a number, a string, or a list of them."""
        field = self._fields.get(name)
        if field is None:
            return default
        part = field.parts[field.data[-1]]
        try:
            return part if isinstance(part, list) else field.contents()
        except UnicodeDecodeError as error:
            raise FileError(f"{self.path}: metadata {name!r} is not UTF-8 text") from error

    def architecture_value(self, name: str, default: Any = None) -> Any:
        """A metadata value whose name begins with the architecture's."""
        return self.get(f"{self.architecture}.{name}", default)

    def require(self, name: str, kind: type[T], default: T | None = None) -> T:
        """A metadata value that must be there and of this type; an int must be at least 1."""
        value = self.get(name, default)
        if value is None:
            raise FileError(f"{self.path}: metadata holds no {name!r}, which this model needs")
        with read_from(self.path):
            check_value(name, value, kind)
            if kind is int:
                check_whole(name, value)
        return value

    def names(self) -> Iterable[str]:
        return self._tensors.keys() - {"rope_freqs.weight"}

    def read(self, name: str) -> Tensor:
        tensor = self._tensors.get(name)
        if tensor is None:
            raise FileError(f"{self.path}: holds no tensor {name!r}")
        try:
            weights = _dequantise(tensor)
        except NotImplementedError as error:
            raise FileError(
                f"{self.path}: tensor {self.stored_name(name)!r} is stored as "
                f"{tensor.tensor_type.name}, which cannot be read"
            ) from error
        if self.architecture != "llama":
            # Gemma's norms multiply by 1 + weight; a GGUF file stores the sum.
            return weights - 1 if name.endswith("norm.weight") else weights
        if not name.endswith(("self_attn.q_proj.weight", "self_attn.k_proj.weight")):
            return weights
        heads = self._heads() if "q_proj" in name else self._kv_heads()
        if not weights.shape[0] or weights.shape[0] % (2 * heads):
            raise FileError(
                f"{self.path}: tensor {self.stored_name(name)!r} has shape "
                f"{tuple(weights.shape)}, expected a multiple of {2 * heads} rows: "
                f"two halves of each of {heads} heads"
            )
        return _rotary_halves(weights, heads)

    def stored_name(self, name: str) -> str:
        parts = re.fullmatch(r"(?:model\.layers\.(\d+)\.)?([\w.]+)\.(weight|bias)", name)
        if parts is None or parts[2] not in self._stored_names:
            return name
        layer = "" if parts[1] is None else f"blk.{parts[1]}."
        return f"{layer}{self._stored_names[parts[2]]}.{parts[3]}"

    def _hugging_face_name(self, name: str) -> str:
        parts = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)", name)
        if parts is None or parts[2] not in self._names:
            return name
        layer = "" if parts[1] is None else f"model.layers.{parts[1]}."
        return f"{layer}{self._names[parts[2]]}.{parts[3]}"

    def _heads(self) -> int:
        return self._require("attention.head_count", int)

    def _kv_heads(self) -> int:
        return self._require("attention.head_count_kv", int, self._heads())

    def _require(self, name: str, kind: type[T], default: T | None = None) -> T:
        return self.require(f"{self.architecture}.{name}", kind, default)

    def config(self) -> dict[str, Any]:
        """The metadata as the contents of a Hugging Face `config.json`."""
        for name in ("attention.head_count", "attention.head_count_kv"):
            if isinstance(self.architecture_value(name), list):
                raise FileError(
                    f"{self.path}: {self.architecture}.{name} differs from layer to layer, "
                    "expected one number for all"
                )
        config = {
            "model_type": "llama",
            "hidden_size": self._require("embedding_length", int),
            "num_hidden_layers": self._require("block_count", int),
            "num_attention_heads": self._heads(),
            "num_key_value_heads": self._kv_heads(),
            "head_dim": self.architecture_value("attention.key_length"),
            "intermediate_size": self._require("feed_forward_length", int),
            "max_position_embeddings": self._require("context_length", int),
            "rms_norm_eps": self._require("attention.layer_norm_rms_epsilon", float, 1e-6),
            "vocab_size": self.shape("model.embed_tokens.weight")[0],
            "hidden_act": "silu",
            "attention_bias": "model.layers.0.self_attn.q_proj.bias" in self._tensors,
            "tie_word_embeddings": "lm_head.weight" not in self._tensors,
            "rope_theta": self._base(),
            "rope_scaling": self._rope_scaling(),
            "bos_token_id": self.get("tokenizer.ggml.bos_token_id"),
            "eos_token_id": self.get("tokenizer.ggml.eos_token_id"),
        }
        return config if self.architecture == "llama" else {**config, **self._gemma_config()}

    def _gemma_config(self) -> dict[str, Any]:
        """The fields in which Gemma 3 differs, from the file and fixed by the family."""
        size = self._require("attention.key_length", int)
        return {
            "model_type": "gemma3_text",
            "hidden_act": None,
            "hidden_activation": "gelu_pytorch_tanh",
            "sliding_window": self._require("attention.sliding_window", int),
            # Only the largest model (27B) uses width / heads, 5376 / 32, instead of the head size.
            "query_pre_attn_scalar": 168 if self._require("block_count", int) == 62 else size,
        }

    def _base(self) -> float:
        return self._require("rope.freq_base", float, 10000.0)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, rows first, without reading it."""
        if name not in self._tensors:
            stored = self.stored_name(name)
            raise FileError(f"{self.path}: holds no tensor {stored!r}, which this model needs")
        return tuple(int(size) for size in reversed(self._tensors[name].shape))

    def stored_type(self, name: str) -> str:
        return str(self._tensors[name].tensor_type.name)

    def _rope_scaling(self) -> dict[str, Any] | None:
        kind = self.architecture_value("rope.scaling.type", "none")
        factor = self._require("rope.scaling.factor", float, 1.0)
        original = self.architecture_value("rope.scaling.original_context_length")
        if "rope_freqs.weight" in self._tensors:
            return self._llama3_scaling()
        if kind == "none" or factor == 1.0:
            return None
        if kind == "linear":
            return {"rope_type": "linear", "factor": factor}
        if kind == "yarn" and original:
            return {
                "rope_type": "yarn",
                "factor": factor,
                "original_max_position_embeddings": original,
            }
        raise FileError(f"{self.path}: rotary scaling {kind!r} is unknown, expected linear or yarn")

    def _llama3_scaling(self) -> dict[str, Any]:
        """Llama 3's scaling, recovered from the divisors of the angles, which the file stores."""
        factors = self.read("rope_freqs.weight").double()
        base = self._base()
        # The slowest angle is divided by the full factor, which is at least 1.
        scaling = Llama3Scaling(max(1.0, round(float(factors.max()), 3)), trained=8192)
        size = 2 * len(factors)
        expected = plain_angles(base, size) / scaling.angles(base, size, longest=scaling.trained)
        if not torch.allclose(factors, expected.double(), rtol=1e-3):
            raise FileError(
                f"{self.path}: tensor 'rope_freqs.weight' does not match the scaling of Llama 3, "
                "the only one known"
            )
        return {
            "rope_type": scaling.kind,
            "factor": scaling.factor,
            "low_freq_factor": scaling.low,
            "high_freq_factor": scaling.high,
            "original_max_position_embeddings": scaling.trained,
        }


_LLAMA = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


_NAMES = {
    "llama": _LLAMA,
    "gemma3": {
        **_LLAMA,
        "attn_q_norm": "self_attn.q_norm",
        "attn_k_norm": "self_attn.k_norm",
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    },
}
"""For each architecture, GGUF's names of modules and those of Hugging Face."""


def _rotary_halves(weights: Tensor, heads: int) -> Tensor:
    """Rows reordered from GGUF's adjacent rotary pairs to two halves per head."""
    return weights.view(heads, -1, 2, *weights.shape[1:]).transpose(1, 2).reshape(weights.shape)


def _open(path: Path) -> Any:
    if not path.is_file():
        raise FileError(f"{path}: no such file")
    reader = _reader_class()
    try:
        return reader(path)
    except FileError:
        raise
    except (
        ValueError, IndexError, KeyError, OverflowError, TypeError, struct.error, OSError
    ) as error:  # fmt: skip
        raise FileError(f"{path}: not a whole GGUF file: {error}") from error


def _reader_class() -> type:
    """The package's reader, faster on long arrays and with errors that name the tensor."""
    try:
        from gguf import GGUFReader, GGUFValueType
    except ImportError as error:
        raise UnavailableError("gguf is not installed: pip install limelight[models]") from error

    class Reader(GGUFReader):
        def __setattr__(self, name: str, value: Any) -> None:
            # Slicing a memmap costs ten times as much as slicing a plain view of it.
            if name == "data":
                self._file = Path(value.filename)
                value = value.view(np.ndarray)
            super().__setattr__(name, value)

        def _get_field_parts(
            self, orig_offs: int, raw_type: Any
        ) -> tuple[int, list[Any], list[int], list[GGUFValueType]]:
            if raw_type == GGUFValueType.ARRAY:
                inner, count = struct.unpack_from(
                    "<IQ", memoryview(cast("Any", self.data)), orig_offs
                )
                start = orig_offs + 12
                if inner == GGUFValueType.STRING:
                    values, end = _strings(self.data, start, count)
                    types = [GGUFValueType.ARRAY, GGUFValueType.STRING]
                    return end - orig_offs, [values], [0], types
                if inner == GGUFValueType.ARRAY:
                    raise ValueError("the metadata holds an array of arrays")
                kind = self.gguf_scalar_to_np.get(GGUFValueType(inner))
                if kind is not None:
                    raw = self._get(start, kind, count)
                    if len(raw) != count:
                        raise ValueError("the metadata is truncated")
                    size = 12 + int(raw.nbytes)
                    return size, [raw.tolist()], [0], [GGUFValueType.ARRAY, GGUFValueType(inner)]
            return super()._get_field_parts(orig_offs, raw_type)

        def _build_tensors(self, start_offs: int, fields: list[Any]) -> None:
            from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

            for field in fields:
                _, name, _, sizes, kind, offset = field.parts
                tensor = bytes(name).decode(errors="replace")
                block, size = GGML_QUANT_SIZES[GGMLQuantizationType(kind[0])]
                if not len(sizes) or not all(map(int, sizes)):
                    raise FileError(
                        f"{self._file}: tensor {tensor!r} has shape "
                        f"{tuple(map(int, reversed(sizes)))}, expected at least 1 on each axis"
                    )
                needed = start_offs + int(offset[0]) + math.prod(map(int, sizes)) // block * size
                if needed > len(self.data):
                    raise FileError(
                        f"{self._file}: truncated: tensor {tensor!r} needs "
                        f"{needed} bytes, found {len(self.data)}"
                    )
            super()._build_tensors(start_offs, fields)

    return Reader


def _strings(data: Any, start: int, count: int) -> tuple[list[str], int]:
    """`count` strings, each preceded by its length in 8 bytes, and the end of the last one."""
    view = memoryview(data)
    read_length = struct.Struct("<Q").unpack_from
    values: list[str] = []
    for _ in range(count):
        end = start + 8 + read_length(view, start)[0]
        if end > len(view):
            raise ValueError("the metadata is truncated")
        values.append(str(view[start + 8 : end], "utf-8"))
        start = end
    return values, start


def _dequantise(tensor: ReaderTensor) -> Tensor:
    """The tensor in float32, as a copy."""
    shape = tuple(int(size) for size in reversed(tensor.shape))
    block = _BLOCKS.get(tensor.tensor_type.name)
    if block is not None:
        size, dequantise = block
        return torch.from_numpy(dequantise(tensor.data.reshape(-1, size)).reshape(shape))
    if tensor.tensor_type.name == "F32":
        return torch.from_numpy(tensor.data.reshape(shape).copy())
    from gguf import dequantize

    return torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).reshape(shape))


# NumPy rather than torch: for hundreds of short operations the synchronisation of threads costs
# more than it saves, above all on a busy machine.


def _scales(blocks: Bytes, count: int) -> Floats:
    """The float16 numbers at the start of each block, as columns."""
    return np.ascontiguousarray(blocks[:, : 2 * count]).view(np.float16).astype(np.float32)


def _nibbles(codes: Bytes) -> Floats:
    """4-bit codes as float32: the low halves of 16 bytes, then the high halves."""
    out = np.empty((len(codes), 2, 16), np.float32)
    out[:, 0] = codes & np.uint8(15)
    out[:, 1] = codes >> np.uint8(4)
    return out.reshape(len(codes), 32)


def _q4_0(blocks: Bytes) -> Floats:
    out = _nibbles(blocks[:, 2:])
    out -= 8
    out *= _scales(blocks, 1)
    return out


def _q4_1(blocks: Bytes) -> Floats:
    scales, out = _scales(blocks, 2), _nibbles(blocks[:, 4:])
    out *= scales[:, :1]
    out += scales[:, 1:]
    return out


def _q8_0(blocks: Bytes) -> Floats:
    out = blocks[:, 2:].view(np.int8).astype(np.float32)
    out *= _scales(blocks, 1)
    return out


_BLOCKS: dict[str, tuple[int, Callable[[Bytes], Floats]]] = {
    "Q4_0": (18, _q4_0),
    "Q4_1": (20, _q4_1),
    "Q8_0": (34, _q8_0),
}
"""The bytes of a block, and the function that dequantises blocks."""
