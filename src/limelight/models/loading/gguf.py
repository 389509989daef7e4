"""GGUF files of the Llama and Gemma 3 families: metadata, dequantised weights, tokenizer.

The file is mapped into memory and parsed by the `gguf` package. Two things are done here because
the package does them slowly: reading long arrays of strings, and undoing the commonest
quantisations, which a handful of whole-tensor operations do.

    Q4_0  18 bytes a block of 32:  d·(q − 8)            d, m: float16 a block
    Q4_1  20 bytes a block of 32:  d·q + m              q: 4 bits (low nibbles first) or int8
    Q8_0  34 bytes a block of 32:  d·q
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
    """One GGUF file, its tensors under the names that Hugging Face gives them.

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
        self._stored_names = {theirs: own for own, theirs in self._names.items()}
        if self.about("expert_count", 0):
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

    def about(self, name: str, default: Any = None) -> Any:
        """A metadata value of the architecture."""
        return self.get(f"{self.architecture}.{name}", default)

    def require(self, name: str, kind: type[T], default: T | None = None) -> T:
        """A metadata value that the model cannot do without; a whole number is a count."""
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
            # Gemma's norms multiply by 1 + weight, which a GGUF file has added up.
            return weights - 1 if name.endswith("norm.weight") else weights
        if not name.endswith(("self_attn.q_proj.weight", "self_attn.k_proj.weight")):
            return weights
        heads = self._heads() if "q_proj" in name else self._key_heads()
        if not weights.shape[0] or weights.shape[0] % (2 * heads):
            raise FileError(
                f"{self.path}: tensor {self.stored_name(name)!r} has shape "
                f"{tuple(weights.shape)}, expected a multiple of {2 * heads} rows: "
                f"two halves of each of {heads} heads"
            )
        return _halves_apart(weights, heads)

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

    def _key_heads(self) -> int:
        return self._require("attention.head_count_kv", int, self._heads())

    def _require(self, name: str, kind: type[T], default: T | None = None) -> T:
        return self.require(f"{self.architecture}.{name}", kind, default)

    def config(self) -> dict[str, Any]:
        """The metadata as a Hugging Face `config.json` would say it."""
        for name in ("attention.head_count", "attention.head_count_kv"):
            if isinstance(self.about(name), list):
                raise FileError(
                    f"{self.path}: {self.architecture}.{name} differs from layer to layer, "
                    "expected one"
                )
        described = {
            "model_type": "llama",
            "hidden_size": self._require("embedding_length", int),
            "num_hidden_layers": self._require("block_count", int),
            "num_attention_heads": self._heads(),
            "num_key_value_heads": self._key_heads(),
            "head_dim": self.about("attention.key_length"),
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
        return described if self.architecture == "llama" else {**described, **self._gemma()}

    def _gemma(self) -> dict[str, Any]:
        """What a file of Gemma 3 says besides, and what its family takes for granted."""
        size = self._require("attention.key_length", int)
        return {
            "model_type": "gemma3_text",
            "hidden_act": None,
            "hidden_activation": "gelu_pytorch_tanh",
            "sliding_window": self._require("attention.sliding_window", int),
            # The largest one alone divides by the width of a head's share: 5376 / 32.
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
        """How a tensor is stored."""
        return str(self._tensors[name].tensor_type.name)

    def _rope_scaling(self) -> dict[str, Any] | None:
        kind = self.about("rope.scaling.type", "none")
        factor = self._require("rope.scaling.factor", float, 1.0)
        original = self.about("rope.scaling.original_context_length")
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
        """Llama 3's rule, found again from the factors that the file holds in its place."""
        factors = self.read("rope_freqs.weight").double()
        base = self._base()
        # The slowest angle is divided by the whole factor, which is at least 1 in any rule.
        rule = Llama3Scaling(max(1.0, round(float(factors.max()), 3)), trained=8192)
        size = 2 * len(factors)
        expected = plain_angles(base, size) / rule.angles(base, size, longest=rule.trained)
        if not torch.allclose(factors, expected.double(), rtol=1e-3):
            raise FileError(
                f"{self.path}: tensor 'rope_freqs.weight' follows no known scaling rule"
            )
        return {
            "rope_type": rule.kind,
            "factor": rule.factor,
            "low_freq_factor": rule.low,
            "high_freq_factor": rule.high,
            "original_max_position_embeddings": rule.trained,
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


def _halves_apart(weights: Tensor, heads: int) -> Tensor:
    """Rows as the rotary halves want them; GGUF keeps the two rows of a rotated pair together."""
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
    """The package's reader, quick on long arrays of strings and naming the tensor that is cut."""
    try:
        from gguf import GGUFReader, GGUFValueType
    except ImportError as error:
        raise UnavailableError("gguf is not installed: pip install limelight[models]") from error

    class Reader(GGUFReader):
        def __setattr__(self, name: str, value: Any) -> None:
            # Slicing a memmap costs ten times what slicing its plain view does.
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
                        raise ValueError("the metadata is cut short")
                    size = 12 + int(raw.nbytes)
                    return size, [raw.tolist()], [0], [GGUFValueType.ARRAY, GGUFValueType(inner)]
            return super()._get_field_parts(orig_offs, raw_type)

        def _build_tensors(self, start_offs: int, fields: list[Any]) -> None:
            from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

            for field in fields:
                _, name, _, sizes, kind, offset = field.parts
                called = bytes(name).decode(errors="replace")
                block, size = GGML_QUANT_SIZES[GGMLQuantizationType(kind[0])]
                if not len(sizes) or not all(int(each) for each in sizes):
                    raise FileError(
                        f"{self._file}: tensor {called!r} has shape "
                        f"{tuple(map(int, reversed(sizes)))}, expected at least 1 on each axis"
                    )
                needed = start_offs + int(offset[0]) + math.prod(map(int, sizes)) // block * size
                if needed > len(self.data):
                    raise FileError(
                        f"{self._file}: cut short: tensor {called!r} needs "
                        f"{needed} bytes, found {len(self.data)}"
                    )
            super()._build_tensors(start_offs, fields)

    return Reader


def _strings(data: Any, start: int, count: int) -> tuple[list[str], int]:
    """`count` strings, each after its length in 8 bytes, and where the last one ends."""
    view = memoryview(data)
    length = struct.Struct("<Q").unpack_from
    values: list[str] = []
    for _ in range(count):
        end = start + 8 + length(view, start)[0]
        if end > len(view):
            raise ValueError("the metadata is cut short")
        values.append(str(view[start + 8 : end], "utf-8"))
        start = end
    return values, start


def _dequantise(tensor: ReaderTensor) -> Tensor:
    """The tensor in float32, a copy of its own."""
    shape = tuple(int(size) for size in reversed(tensor.shape))
    quick = _QUICK.get(tensor.tensor_type.name)
    if quick is not None:
        size, undo = quick
        return torch.from_numpy(undo(tensor.data.reshape(-1, size)).reshape(shape))
    if tensor.tensor_type.name == "F32":
        return torch.from_numpy(tensor.data.reshape(shape).copy())
    from gguf import dequantize

    return torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).reshape(shape))


# NumPy rather than torch: hundreds of short parallel regions cost more in waiting for one another
# than they save, above all on a machine that has other things to do.


def _scales(blocks: Bytes, count: int) -> Floats:
    """The float16 numbers that open each block, as columns."""
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


_QUICK: dict[str, tuple[int, Callable[[Bytes], Floats]]] = {
    "Q4_0": (18, _q4_0),
    "Q4_1": (20, _q4_1),
    "Q8_0": (34, _q8_0),
}
"""Bytes a block, and how to undo it."""
