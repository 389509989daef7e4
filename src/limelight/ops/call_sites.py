"""The call sites of attention in a model: module, stack, layer, and which call of the forward."""

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
_ENDING = re.compile(r"(?<=_)\d+(?=\.|$)")


def stack_and_layer(path: str) -> tuple[str, int | None]:
    """A module's stack and layer, by its path: the first number in it counts the layers.

    >>> stack_and_layer("model.layers.3.self_attn")
    ('model.layers.*.self_attn', 3)
    >>> stack_and_layer("attention")
    ('attention', None)
    """
    number = _NUMBER.search(path)
    if number is None:
        return path, None
    return f"{path[: number.start()]}*{path[number.end() :]}", int(number.group())


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
    """One forward pass: from where the outermost module begins to where it ends."""

    number: int
    calls: Counter[Any] = field(default_factory=Counter[Any])
    """so far: by (module, path), and by stack where layers share modules"""


class _Running(NamedTuple):
    """What runs in this context."""

    forward: _Forward | None = None
    modules: tuple[nn.Module, ...] = ()
    """outermost first"""
    mode: AbstractContextManager[Any] | None = None
    """what was entered with the outermost"""


_running: ContextVar[Mapping[CallSites, _Running]] = ContextVar(
    "limelight_running", default=MappingProxyType({})
)

Begin = Callable[[nn.Module, str, tuple[Any, ...], dict[str, Any]], None]
"""Takes a module of the model that begins, its path, and its arguments."""
End = Callable[[nn.Module, str], None]
"""Takes a module that ended, or failed, and its path."""


class CallSites:
    """Where each module of a model stands, which of them run, and how often they attended.

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
        """all names of each module; under another name for the whole stack it is the same"""
        self._layers = _layers(itertools.chain.from_iterable(self.paths.values()))
        self._shared = _shared_stacks(self.paths, self._layers)
        known = [layer + 1 for _, layer in self._layers.values() if layer is not None]
        self.layers = max([1, *known, *self._shared.values()])
        """how many layers the longest stack has"""
        self._forwards = itertools.count()

    @contextmanager
    def following(
        self,
        begin: Begin | None = None,
        end: End | None = None,
        mode: Callable[[], AbstractContextManager[Any]] | None = None,
    ) -> Generator[None]:
        """Within the block, know which module runs, in this context only.

        Args:
            begin: is called when a module begins.
            end: is called when a module has ended, or failed.
            mode: makes what is entered for each forward pass, in the thread that runs it.
        """

        def enter(module: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> None:
            current = _running.get()
            running = current.get(self)
            if running is None:  # another thread or task, which is not followed
                return
            if running.forward is None:
                entered = None if mode is None else mode()
                if entered is not None:
                    entered.__enter__()
                running = _Running(_Forward(next(self._forwards)), (), entered)
            running = running._replace(modules=(*running.modules, module))
            _running.set({**current, self: running})
            if begin is not None:
                begin(module, self.paths[module][0], args, options)

        def leave(module: nn.Module, *_: Any) -> None:
            current = _running.get()
            running = current.get(self)
            if running is None or module not in running.modules:
                return
            depth = len(running.modules) - 1 - running.modules[::-1].index(module)
            rest = running._replace(modules=running.modules[:depth]) if depth else _Running()
            _running.set({**current, self: rest})
            if not depth and running.mode is not None:
                running.mode.__exit__(None, None, None)
            if end is not None:
                end(module, self.paths[module][0])

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

    @property
    def forward(self) -> int:
        """The number of the forward pass that runs."""
        running = _running.get().get(self, _Running())
        return next(self._forwards) if running.forward is None else running.forward.number

    def site(self, module: nn.Module | None) -> CallSite | None:
        """The site of a call that begins now, or None where it is made outside of this model.

        A caller that does not say which module it is (`module` None) is the innermost that runs.
        """
        running = _running.get().get(self, _Running())
        if module is None and running.modules:
            module = running.modules[-1]
        if module is None or module not in self.paths:
            return None
        forward = running.forward or _Forward(next(self._forwards))
        paths = self._paths_within(module, running.modules)
        before = forward.calls[module, paths[0]]
        forward.calls[module, paths[0]] += 1
        occurrence, which = divmod(before, len(paths))
        path = paths[which]
        stack, layer = self._layers[path]
        if stack in self._shared:
            occurrence, layer = divmod(forward.calls[stack], self._shared[stack])
            forward.calls[stack] += 1
        return CallSite(module, path, stack, layer, occurrence, forward.number)

    def stack_and_layer(self, path: str) -> tuple[str, int | None]:
        """The stack and the layer of a module, by its path."""
        return self._layers.get(path, (path, None))

    def _paths_within(self, module: nn.Module, running: tuple[nn.Module, ...]) -> list[str]:
        """The names of a module below the innermost module that runs and has one name only."""
        paths = self.paths[module]
        if len(paths) == 1:
            return paths
        for around in reversed(running):
            if around is not module and len(self.paths[around]) == 1:
                within = [path for path in paths if is_within(path, self.paths[around][0])]
                return within or paths
        return paths


def is_within(path: str, around: str) -> bool:
    """Whether a module's path lies at or below another's.

    >>> is_within("model.layers.1", "model"), is_within("model2", "model")
    (True, False)
    """
    return around in ("", path) or path.startswith(around + ".")


def _paths(model: nn.Module) -> dict[nn.Module, list[str]]:
    paths: dict[nn.Module, list[str]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        if uncompiled_module(module) is not module:  # the parts of what torch.compile made follow
            continue
        path = ".".join(name for name in path.split(".") if name != WRAPPED)
        known = paths.setdefault(module, [])
        if not known or stack_and_layer(known[0])[0] == stack_and_layer(path)[0]:
            known.append(path)
    return paths


def _may_attend(module: nn.Module) -> bool:
    """Whether a module may call attention: PyTorch's own without parts of their own do not."""
    plain = type(module).__module__.startswith("torch.nn.modules")
    has_parts = next(module.children(), None) is not None
    return not plain or isinstance(module, nn.MultiheadAttention) or has_parts


def _layers(paths: Iterable[str]) -> dict[str, tuple[str, int | None]]:
    """Stack and layer of each path: by the first of its numbers that tells several modules apart.

    The first number of all where none does: a model of one layer. A path without numbers may name
    its layers by endings, "encoder_layer_3" (torchvision).
    """
    known = list(paths)
    ways = {path: _ways(path, _NUMBER) or _ways(path, _ENDING) for path in known}
    sizes = Counter(stack for counted in ways.values() for stack, _ in counted)
    layers: dict[str, tuple[str, int | None]] = {}
    for path, counted in ways.items():
        alone = counted[0] if _NUMBER.search(path) else (path, None)
        layers[path] = next((way for way in counted if sizes[way[0]] > 1), alone)
    return layers


def _ways(path: str, pattern: re.Pattern[str]) -> list[tuple[str, int]]:
    """The stack and the layer that each number of a path would make."""
    return [
        (f"{path[: number.start()]}*{path[number.end() :]}", int(number.group()))
        for number in pattern.finditer(path)
    ]


def _shared_stacks(
    paths: Mapping[nn.Module, list[str]], layers_of: Mapping[str, tuple[str, int | None]]
) -> dict[str, int]:
    """Of each stack whose modules are fewer than its layers by the config: how many layers."""
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
        around = max((path for path in configured if is_within(root, path)), key=len, default=None)
        layers = None if around is None else configured[around]
        if isinstance(layers, int) and layers > len(numbers[root]):
            shared |= dict.fromkeys(names, layers)
    return shared


def in_backward() -> bool:
    """Whether autograd runs: a call is then one of before, computed again by checkpointing."""
    return torch._C._current_graph_task_id() != -1  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue, reportUnknownMemberType]
