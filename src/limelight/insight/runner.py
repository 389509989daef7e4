"""A model of any kind, ready to run one text: rows of tokens in, the output at one place out.

Our encoders and decoders, Hugging Face models and plain modules differ in how they are called.
Interventions and head measures need one interface: run some rows of the same text through the
seam, and return the final vector, or the next-token logits, at one place of each row.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from limelight.checks import check_tensor
from limelight.errors import DeviceError, OptionError, UnavailableError
from limelight.insight.patching import DecoderPatcher, EncoderPatcher
from limelight.models.decoder import Decoder
from limelight.models.encoder import Encoder
from limelight.models.loading.pretrained import load
from limelight.models.transformer import Transformer
from limelight.ops.calls import AttentionCall
from limelight.seeing.recording.tokens import Token, place_tokens, plain_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

ROW_TOKENS = 8192
"""Tokens that go through a model at once."""


@dataclass(frozen=True, eq=False)
class Runner:
    """A model and the text it reads."""

    model: nn.Module
    name: str
    inputs: Tensor
    """n token ids, or n m vectors"""
    text: str
    """what the tokens' places refer to"""
    tokens: tuple[Token, ...]
    predicts: bool
    """True: what comes out are logits of the next token; False: the token's final vector"""
    run: Callable[[Tensor, int | Tensor], Tensor]
    """rows `b n` and a place → `b c`: the output there in each row; several places → `b p c`"""
    embedding: nn.Module | None
    """the module that turns token ids into vectors"""
    piece: Callable[[int], str] = str
    """a token id as text"""

    @property
    def batch(self) -> int:
        """Rows of this text that go through the model at once."""
        return max(1, ROW_TOKENS // max(1, len(self.inputs)))

    def rows(self, count: int) -> Tensor:
        """The text `count` times: `b n`, or `b n m`."""
        return self.inputs[None].expand(count, *self.inputs.shape)

    def upto(self, place: int) -> Runner:
        """The text up to `place`, all that a causal model reads to predict what follows it."""
        if not self.predicts:
            return self
        upto = slice(place + 1)
        return replace(self, inputs=self.inputs[upto], tokens=self.tokens[upto])

    def patcher(self, place: int) -> EncoderPatcher | DecoderPatcher | None:
        """The run without cuts, which can be resumed at a layer; None for models that cannot."""
        if isinstance(self.model, Encoder):
            return EncoderPatcher(self.model, self.inputs, place)
        if isinstance(self.model, Decoder):
            return DecoderPatcher(self.model, self.inputs)
        return None


def runner_for(
    model: str | Path | nn.Module,
    text: str | Tensor,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> Runner:
    """A model ready to read a text.

    Args:
        model: a name or path for `load`, one of our models, a Hugging Face model, or any module
            that takes `b n` token ids or `b n m` vectors and gives `b n c`.
        text: what to read; for a module without a tokenizer its input for one text, `n` or `n m`.
        tokenizer: of a model that has none of its own, in transformers' form.
    """
    if isinstance(model, str | Path):
        model = load(model)
    if not isinstance(model, nn.Module):
        raise OptionError(f"model must be a name, a path or a module, found {type(model).__name__}")
    if isinstance(text, str) and not text.strip():
        raise OptionError("text is empty: there is nothing to attend to")
    if isinstance(model, Transformer):
        raise UnavailableError(
            "a model that reads one text and writes another has no single row of links to cut: "
            "use cutting(model, links, stack=...) around a run of it"
        )
    if isinstance(model, Encoder | Decoder):
        return _own_runner(model, text)
    if is_hugging_face(model):
        return _hugging_face_runner(model, text, tokenizer)
    return _module_runner(model, text, tokenizer)


def is_hugging_face(model: nn.Module) -> bool:
    """Whether a module is one of transformers', without importing the library."""
    library = sys.modules.get("transformers")
    return library is not None and isinstance(model, library.PreTrainedModel)


@contextmanager
def through_the_seam(model: nn.Module) -> Generator[None]:
    """Within the block, the model's attention goes through the seam.

    Our layers and PyTorch's own calls do so anyway; a Hugging Face model is switched to our
    attention for the block.
    """
    if not is_hugging_face(model):
        yield
        return
    from limelight.seeing.watching.huggingface import check_model, switched

    check_model(model)
    with switched(model):
        yield


@contextmanager
def eval_mode(model: nn.Module) -> Generator[None]:
    """Within the block, the model is in eval mode; its mode is restored afterwards."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


def layer_of(call: AttentionCall) -> int:
    """The layer that makes a call, counted from 0."""
    return call.layer or 0


def _own_runner(model: Encoder | Decoder, text: str | Tensor) -> Runner:
    device = next(model.parameters()).device
    if isinstance(text, Tensor):
        prompt, tokens = _numbered_tokens(text)
        ids = text.to(device)
    elif model.tokens is None:
        raise UnavailableError("this model came without a tokenizer: pass token ids, a tensor of n")
    else:
        encoded = model.tokens.encode(text, limit=model.config.context)
        special = [token in model.tokens.special for token in encoded.ids]
        tokens = place_tokens(text, encoded.spans, encoded.pieces, special)
        ids, prompt = torch.tensor(encoded.ids, device=device), text

    def run(rows: Tensor, place: int | Tensor) -> Tensor:
        if isinstance(model, Decoder):
            return model.logits(model.hidden(rows)[:, place])
        return model(rows)[:, place]

    name = model.name or type(model).__name__
    predicts = isinstance(model, Decoder)
    known = model.tokens
    piece: Callable[[int], str] = str if known is None else lambda token: known.decode([token])
    return Runner(model, name, ids, prompt, tokens, predicts, run, model.embedding.tokens, piece)


def _hugging_face_runner(
    model: nn.Module, text: str | Tensor, tokenizer: PreTrainedTokenizerBase | None
) -> Runner:
    from limelight.seeing.watching.hf_tokens import tokens_of_ids

    foreign: PreTrainedModel = model  # pyright: ignore[reportAssignmentType]
    if isinstance(text, Tensor):
        ids = text.to(foreign.device)
        prompt, tokens = tokens_of_ids(tokenizer, ids.tolist(), len(ids), None)
    elif tokenizer is None:
        raise OptionError("a Hugging Face model needs its tokenizer= to read a text")
    else:
        ids, prompt, tokens = _tokenized(text, tokenizer)
        ids = ids.to(foreign.device)
    if getattr(foreign.config, "is_encoder_decoder", False):
        raise UnavailableError(
            f"{type(model).__name__} reads one text and writes another: "
            "use cutting(model, links, stack=...) around a run of it"
        )

    def run(rows: Tensor, place: int | Tensor) -> Tensor:
        outputs: Any = foreign(input_ids=rows)
        return (outputs.logits if predicts else outputs.last_hidden_state)[:, place]

    predicts = foreign.can_generate()
    if not predicts:  # the head of an encoder, such as a classifier, is left out
        body: Any = foreign.base_model
        foreign = body
    embedding: Any = foreign.get_input_embeddings()
    piece = str if tokenizer is None else _decode_with(tokenizer)
    name = type(model).__name__
    return Runner(foreign, name, ids, prompt, tokens, predicts, run, embedding, piece)


def _decode_with(tokenizer: PreTrainedTokenizerBase) -> Callable[[int], str]:
    """A function that gives a token id as text."""
    known: Any = tokenizer
    return lambda token: str(known.decode([token]))


def _module_runner(
    model: nn.Module, text: str | Tensor, tokenizer: PreTrainedTokenizerBase | None
) -> Runner:
    """Any module; a causal one that gives logits of its vocabulary predicts."""
    name = type(model).__name__
    piece: Callable[[int], str] = str
    if isinstance(text, str):
        if tokenizer is None:
            raise OptionError(
                f"a {name} has no tokenizer: give tokenizer=, or the input of one text as a "
                "tensor, n token ids or n m vectors"
            )
        inputs, prompt, tokens = _tokenized(text, tokenizer)
        piece = _decode_with(tokenizer)
    else:
        inputs, (prompt, tokens) = text, _numbered_tokens(text)
    if inputs.ndim not in (1, 2) or (inputs.ndim == 1) == inputs.is_floating_point():
        raise OptionError(
            "the input of one text must be n token ids or n m vectors, found "
            f"{inputs.dtype} of shape {tuple(inputs.shape)}"
        )
    embedding = next((part for part in model.modules() if isinstance(part, nn.Embedding)), None)
    with eval_mode(model), torch.no_grad():
        outputs = _first_tensor(model(inputs[None]))
        predicts = _predicts(model, inputs, outputs, embedding)
    last_only = predicts and outputs.shape[1] == 1 < len(inputs)

    def run(rows: Tensor, place: int | Tensor) -> Tensor:
        if last_only and isinstance(place, Tensor):
            # a causal model that returns only its last token's logits is run once for each place
            return torch.stack([_first_tensor(model(rows[:, : p + 1]))[:, -1] for p in place], 1)
        outputs = _first_tensor(model(rows))
        return outputs[:, -1] if last_only else outputs[:, place]

    if not last_only and (outputs.ndim != 3 or outputs.shape[1] != len(inputs)):
        raise OptionError(
            f"model must give a tensor (b, n, c) for {(1, *inputs.shape)}, "
            f"found {tuple(outputs.shape)}"
        )
    return Runner(model, name, inputs, prompt, tokens, predicts, run, embedding, piece)


def _first_tensor(output: Any) -> Tensor:
    """The output of a module, or its first element, as of (logits, loss)."""
    first = output[0] if isinstance(output, tuple | list) else output
    if not isinstance(first, Tensor):
        raise OptionError(f"model must give a tensor (b, n, c), found {type(first).__name__}")
    return first


def _predicts(
    model: nn.Module, inputs: Tensor, outputs: Tensor, embedding: nn.Embedding | None
) -> bool:
    """Whether a module gives logits of its vocabulary and no token sees a later one."""
    vocabulary = None if embedding is None else embedding.num_embeddings
    logits = outputs.ndim == 3 and outputs.shape[-1] == vocabulary
    if not logits or inputs.is_floating_point() or len(inputs) < 2:
        return False
    if outputs.shape[1] == 1:
        return True
    other = inputs.clone()
    other[-1] = (other[-1] + 1) % outputs.shape[-1]
    changed = _first_tensor(model(other[None]))
    return bool(torch.allclose(changed[:, :-1], outputs[:, :-1], atol=1e-5))


def _tokenized(
    text: str, tokenizer: PreTrainedTokenizerBase
) -> tuple[Tensor, str, tuple[Token, ...]]:
    """Token ids, the text, and the tokens with their spans where the tokenizer reports them."""
    from limelight.seeing.watching.hf_tokens import tokens_of_ids

    known: Any = tokenizer
    if not getattr(known, "is_fast", False):
        ids = known(text, return_tensors="pt")["input_ids"][0]
        return ids, *tokens_of_ids(tokenizer, ids.tolist(), len(ids), text)
    encoded = known(text, return_offsets_mapping=True, return_special_tokens_mask=True)
    ids, special = encoded["input_ids"], [bool(added) for added in encoded["special_tokens_mask"]]
    spans = [
        (0, 0) if added else (int(start), int(end))
        for (start, end), added in zip(encoded["offset_mapping"], special, strict=True)
    ]
    pieces = known.convert_ids_to_tokens(ids)
    return torch.tensor(ids), text, place_tokens(text, spans, pieces, special)


def _numbered_tokens(inputs: Tensor) -> tuple[str, tuple[Token, ...]]:
    """Tokens that are named by their number, for an input without a text."""
    check_tensor("text", inputs)
    if inputs.is_meta:
        raise DeviceError("text is on meta, expected a device that holds numbers")
    if not inputs.ndim:
        raise OptionError("text must be the input of one text, found a tensor of one number")
    return plain_tokens([str(number) for number in range(len(inputs))])
