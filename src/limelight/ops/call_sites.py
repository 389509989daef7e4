"""The call sites of attention in a model: module, stack, layer, and which call of the pass."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import nn

from limelight.errors import OptionError
from limelight.ops.uncompiled import WRAPPED, uncompiled_module

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.|$)")
_NUMBERED_ENDING = re.compile(r"(?<=_)\d+(?=\.|$)")


def stack_and_layer(path: str) -> tuple[str, int | None]:
    """A module's stack and layer, by its path: the first number in it counts the layers.

    >>> stack_and_layer("model.layers.3.self_attn")
    ('model.layers.*.self_attn', 3)
    >>> stack_and_layer("attention")
    ('attention', None)
    """
    return next(iter(_candidates(path, _NUMBER)), (path, None))


class CallSite(NamedTuple):
    """Where in the model one call is made."""

    module: nn.Module
    path: str
    stack: str
    layer: int | None
    occurrence: int
    """how many calls of the same layer came before it in the same forward pass"""
    forward: int
    """the number of the forward pass, counted from 0"""


@dataclass(slots=True, eq=False)
class _Forward:
    """One forward pass: from the beginning to the end of the outermost module."""

    number: int
    calls: Counter[Any] = field(default_factory=Counter[Any])
    """how many so far, by (module, path), and by stack where layers share modules"""


class _Running(NamedTuple):
    """What runs in this context."""

    forward: _Forward | None = None
    modules: tuple[nn.Module, ...] = ()
    """outermost first"""
    mode: AbstractContextManager[Any] | None = None
    """the mode entered with the outermost"""


_running: ContextVar[Mapping[CallSites, _Running]] = ContextVar(
    "limelight_running", default=MappingProxyType({})
)

Begin = Callable[[nn.Module, str, tuple[Any, ...], dict[str, Any]], None]
"""Takes a module of the model that begins, its path, and its arguments."""
Mode = Callable[[], AbstractContextManager[Any]]
"""Makes the mode of one forward pass."""


class CallSites:
    """The paths of a model's modules, which of them run, and how often each attended.

    A call belongs to the innermost module that runs. Its layer is the number in the module's path;
    further calls of the module in the same forward pass are further occurrences of that layer.
    Two kinds of sharing make one module several layers: a module listed under several numbers, and
    a list that is shorter than the number of layers in the config around it (ALBERT).
    """

    def __init__(self, model: nn.Module) -> None:
        if not isinstance(model, nn.Module):
            raise OptionError(f"model must be a torch.nn.Module, found {type(model).__name__}")
        self.model = uncompiled_module(model)
        self.paths = _paths(self.model)
        """by module: several where it is listed under several layer numbers of one stack"""
        self._layers = _layers(itertools.chain.from_iterable(self.paths.values()))
        self._shared = _shared_stacks(self.paths, self._layers)
        known = [layer + 1 for _, layer in self._layers.values() if layer is not None]
        self.layers = max([1, *known, *self._shared.values()])
        """how many layers the longest stack has"""
        self._forwards = itertools.count()

    @contextmanager
    def tracking(self, begin: Begin | None = None, mode: Mode | None = None) -> Generator[None]:
        """Within the block, know which module runs, in this context only.

        Args:
            begin: called when a module begins.
            mode: entered for each forward pass, in the thread that runs it.
        """

        # Closures rather than partial methods: a copy of a hooked module must not copy the model.
        def enter(module: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> None:
            if self._enter(module, mode) and begin is not None:
                begin(module, self.paths[module][0], args, options)

        def leave(module: nn.Module, *_: Any) -> None:
            self._leave(module)

        hooks = [
            hook
            for module in self.paths
            if _may_attend(module)
            for hook in (
                module.register_forward_pre_hook(enter, prepend=True, with_kwargs=True),
                module.register_forward_hook(leave, always_call=True),
            )
        ]
        token = _running.set({**_running.get(), self: _Running()})
        try:
            yield
        finally:
            _running.reset(token)
            for hook in hooks:
                hook.remove()

    def _enter(self, module: nn.Module, mode: Mode | None) -> bool:
        """Record that a module begins; False in a thread or task that is not tracked."""
        current = _running.get()
        running = current.get(self)
        if running is None:
            return False
        if running.forward is None:
            entered = None if mode is None else mode()
            if entered is not None:
                entered.__enter__()
            running = _Running(_Forward(next(self._forwards)), (), entered)
        running = running._replace(modules=(*running.modules, module))
        _running.set({**current, self: running})
        return True

    def _leave(self, module: nn.Module) -> None:
        """Record that a module ended, or failed."""
        current = _running.get()
        running = current.get(self)
        if running is None or module not in running.modules:
            return
        depth = len(running.modules) - 1 - running.modules[::-1].index(module)
        rest = running._replace(modules=running.modules[:depth]) if depth else _Running()
        _running.set({**current, self: rest})
        if not depth and running.mode is not None:
            running.mode.__exit__(None, None, None)

    @property
    def forward(self) -> int:
        """The number of the running forward pass, or a new one where none runs."""
        running = _running.get().get(self, _Running())
        return next(self._forwards) if running.forward is None else running.forward.number

    def site(self, module: nn.Module | None) -> CallSite | None:
        """The site of a call that begins now, or None where it is made outside of this model.

        Where the caller does not name its module, it is the innermost one that runs.
        """
        running = _running.get().get(self, _Running())
        if module is None and running.modules:
            module = running.modules[-1]
        if module is None or module not in self.paths:
            return None
        forward = running.forward or _Forward(next(self._forwards))
        paths = self._paths_within(module, running.modules)
        earlier = forward.calls[module, paths[0]]
        forward.calls[module, paths[0]] += 1
        occurrence, index = divmod(earlier, len(paths))
        path = paths[index]
        stack, layer = self._layers[path]
        if stack in self._shared:
            occurrence, layer = divmod(forward.calls[stack], self._shared[stack])
            forward.calls[stack] += 1
        return CallSite(module, path, stack, layer, occurrence, forward.number)

    def stack_and_layer(self, path: str) -> tuple[str, int | None]:
        """The stack and the layer of a module, by its path."""
        return self._layers.get(path, (path, None))

    def _paths_within(self, module: nn.Module, running: tuple[nn.Module, ...]) -> list[str]:
        """The paths of a module below the innermost running module that has a single path."""
        paths = self.paths[module]
        if len(paths) == 1:
            return paths
        for outer in reversed(running):
            if outer is not module and len(self.paths[outer]) == 1:
                within = [path for path in paths if is_within(path, self.paths[outer][0])]
                return within or paths
        return paths


def is_within(path: str, outer: str) -> bool:
    """Whether a module's path is at or below another's.

    >>> is_within("model.layers.1", "model"), is_within("model2", "model")
    (True, False)
    """
    return outer in ("", path) or path.startswith(outer + ".")


def _paths(model: nn.Module) -> dict[nn.Module, list[str]]:
    """Each module's paths; a second name for a whole stack, as of tied modules, adds none."""
    paths: dict[nn.Module, list[str]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        if uncompiled_module(module) is not module:  # a compiled wrapper; its original follows
            continue
        path = ".".join(name for name in path.split(".") if name != WRAPPED)
        known = paths.setdefault(module, [])
        if not known or stack_and_layer(known[0])[0] == stack_and_layer(path)[0]:
            known.append(path)
    return paths


def _may_attend(module: nn.Module) -> bool:
    """Whether a module may call attention: of PyTorch's own leaf modules only one does."""
    is_torchs = type(module).__module__.startswith("torch.nn.modules")
    is_leaf = next(module.children(), None) is None
    return not is_torchs or isinstance(module, nn.MultiheadAttention) or not is_leaf


def _layers(paths: Iterable[str]) -> dict[str, tuple[str, int | None]]:
    """Stack and layer of each path: by the first of its numbers in which several paths differ.

    By the first number of all where there is none: a model of one layer. A path without numbers may
    name its layers by endings, "encoder_layer_3" (torchvision).
    """
    candidates = {
        path: _candidates(path, _NUMBER) or _candidates(path, _NUMBERED_ENDING) for path in paths
    }
    sizes = Counter(stack for options in candidates.values() for stack, _ in options)
    layers: dict[str, tuple[str, int | None]] = {}
    for path, options in candidates.items():
        default = stack_and_layer(path)
        layers[path] = next((option for option in options if sizes[option[0]] > 1), default)
    return layers


def _candidates(path: str, pattern: re.Pattern[str]) -> list[tuple[str, int]]:
    """A stack and a layer for each number in a path, as if that number counted the layers."""
    return [
        (f"{path[: number.start()]}*{path[number.end() :]}", int(number.group()))
        for number in pattern.finditer(path)
    ]


def _shared_stacks(
    paths: Mapping[nn.Module, list[str]], layers_of: Mapping[str, tuple[str, int | None]]
) -> dict[str, int]:
    """How many layers each stack has that has fewer modules than its config has layers."""
    configured = {
        path: getattr(config, "num_hidden_layers", None)
        for module, (path, *_) in paths.items()
        if (config := getattr(module, "config", None)) is not None
    }
    stacks: dict[str, set[str]] = {}
    numbers: dict[str, set[int]] = {}
    for stack, layer in layers_of.values():
        if layer is not None:
            root = stack.partition("*")[0]
            stacks.setdefault(root, set()).add(stack)
            numbers.setdefault(root, set()).add(layer)
    shared: dict[str, int] = {}
    for root, names in stacks.items():
        outer = max((path for path in configured if is_within(root, path)), key=len, default=None)
        layers = None if outer is None else configured[outer]
        if isinstance(layers, int) and layers > len(numbers[root]):
            shared |= dict.fromkeys(names, layers)
    return shared


def in_backward() -> bool:
    """Whether the backward pass runs, in which a call is a recomputation by checkpointing."""
    return torch._C._current_graph_task_id() != -1  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue, reportUnknownMemberType]
