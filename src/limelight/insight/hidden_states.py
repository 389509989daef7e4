"""The hidden states of any model: the inputs and outputs of its blocks, one stage per layer.

A block is the part of a model that a layer's attention belongs to: "layers.3" of the call at
"layers.3.self_attn". Blocks are found by the paths of attention calls, which works alike for our
models, those of Hugging Face and any other module.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from limelight.errors import UnavailableError
from limelight.insight.runner import Runner, eval_mode, layer_of, through_the_seam
from limelight.ops.calls import AttentionCall, Interceptor, intercept
from limelight.ops.lens.seen import Seen
from limelight.ops.lens.spec import Lens


def attention_blocks(runner: Runner) -> list[nn.Module]:
    """The blocks of a model in the order in which they run; one shared by layers is listed once."""
    paths: dict[str, None] = {}

    def locate(call: AttentionCall) -> Tensor:
        paths[_block_path(call.path, call.stack)] = None
        return call.attend()

    _run(runner, locate)
    if not paths:
        raise UnavailableError(
            f"{runner.name} makes no attention call that goes through limelight, so its layers "
            "are unknown"
        )
    return [runner.model.get_submodule(path) for path in paths]


def hidden_states(runner: Runner, blocks: list[nn.Module]) -> tuple[Tensor, list[Seen]]:
    """Every token's vector before the first block and after each, `l+1 n m`; what layers saw."""
    stages: list[Tensor] = []
    seen: dict[int, Seen] = {}

    def enter(_block: nn.Module, args: Any, options: dict[str, Any]) -> None:
        if not stages:
            stages.append(_first_states((*args, *options.values()), runner))

    def leave(_block: nn.Module, _args: Any, output: Any) -> None:
        stages.append(_first_states(output if isinstance(output, tuple) else (output,), runner))

    def record(call: AttentionCall) -> Tensor:
        output, seen[layer_of(call)] = call.attend(lens=Lens())
        return output

    hooks = [block.register_forward_pre_hook(enter, with_kwargs=True) for block in blocks]
    hooks += [block.register_forward_hook(leave) for block in blocks]
    try:
        _run(runner, record)
    finally:
        for hook in hooks:
            hook.remove()
    if len({states.shape for states in stages}) > 1:
        widths = ", ".join(str(states.shape[-1]) for states in stages)
        raise UnavailableError(
            f"the blocks of {runner.name} must have vectors of equally many channels, to be "
            f"compared, found {widths}"
        )
    return torch.cat(stages).double().cpu(), [seen[number] for number in sorted(seen)]


def _run(runner: Runner, interceptor: Interceptor) -> None:
    """One pass over the text, with an interceptor that changes nothing."""
    model = runner.model
    with through_the_seam(model), eval_mode(model), torch.no_grad(), intercept(interceptor, model):
        runner.run(runner.rows(1), -1)


def _block_path(path: str, stack: str) -> str:
    """The path of the block around an attention call.

    >>> _block_path("model.layers.3.self_attn", "model.layers.*.self_attn")
    'model.layers.3'
    >>> _block_path("block.attention", "block.attention"), _block_path("attention", "attention")
    ('block', 'attention')
    """
    before, star, _ = stack.partition("*")
    if star:
        return before + path[len(before) :].partition(".")[0]
    return path.rpartition(".")[0] or path


def _first_states(values: tuple[Any, ...], runner: Runner) -> Tensor:
    """The first of some values that holds a vector for each token: 1 n m."""
    for value in values:
        vectors = isinstance(value, Tensor) and value.is_floating_point() and value.ndim == 3
        if vectors and value.shape[:2] == (1, len(runner.inputs)):
            return value
    raise UnavailableError(
        f"a block of {runner.name} must take and give vectors (1, n = {len(runner.inputs)}, m), "
        "found none"
    )
