"""Which layer a call of attention belongs to, and which tokens it reads."""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch import Tensor, nn

from limelight.ops.calls import AttentionCall
from limelight.seeing.watching.stacks import Place, place_of


class Calls:
    """Follows a model through its forward calls, from one attention module to the next."""

    def __init__(self, model: nn.Module) -> None:
        self.places = _places(model)
        self._model = model
        self._names = {module: name for name, module in model.named_modules()}
        self._ids: dict[str, Tensor] = {}
        self._running = 0
        """how many models, one within the other, are in their forward call"""
        self._calls: Counter[nn.Module] = Counter()
        """of each attention module in this forward call"""
        self._repeats: Counter[str] = Counter()
        """of each stack in this forward call: calls of modules that had been called already"""

    def hooks(self) -> list[Any]:
        """Note when each model within the model begins, and the token ids that it is given."""
        from transformers import PreTrainedModel

        def begin(module: nn.Module, args: Any, options: dict[str, Any]) -> None:
            self._running += 1
            name = self._names[module]
            for one in [one for one in self._calls if _is_within(self._names[one], name)]:
                self._repeats.pop(self.places[one][0].stack, None)
                del self._calls[one]
            ids = options.get("input_ids", args[0] if args else None)
            if isinstance(ids, Tensor) and not ids.is_floating_point() and ids.ndim == 2:
                self._ids[name] = ids.detach()
            else:
                self._ids.pop(name, None)

        def end(*_: Any) -> None:
            self._running -= 1

        models = [one for one in self._model.modules() if isinstance(one, PreTrainedModel)]
        return [
            *(one.register_forward_pre_hook(begin, with_kwargs=True) for one in models),
            *(one.register_forward_hook(end, always_call=True) for one in models),
        ]

    def locate(self, call: AttentionCall) -> AttentionCall | None:
        """The call with its place in the model, or None where another model makes it."""
        if call.module is None or call.module not in self.places:
            return None
        place = self.place_of(call.module)
        path = self._names[call.module]
        return call.replace(path=path, stack=place.stack, layer=place.layer)

    def place_of(self, module: nn.Module) -> Place:
        """Where a call stands that a module begins.

        Layers that share a module call it one after the other in one forward call.
        """
        places = self.places[module]
        stack = places[0].stack
        before = self._calls[module] if self._running else 0
        if self._running:
            self._calls[module] += 1
        if before < len(places):
            return Place(stack, places[before].layer + self._repeats[stack])
        self._repeats[stack] += 1
        return Place(stack, places[-1].layer + self._repeats[stack])

    def ids_for(self, module: nn.Module, size: int) -> Tensor | None:
        """What the innermost model around a module was given, if it fits."""
        name = self._names[module]
        around = [one for one in self._ids if _is_within(name, one)]
        for one in sorted(around, key=len, reverse=True):
            if self._ids[one].shape[1] == size:
                return self._ids[one]
        return None

    def source_ids(self, size: int) -> Tensor | None:
        """What the encoder was given, if it fits."""
        for name, ids in self._ids.items():
            if "encoder" in name.lower() and ids.shape[1] == size:
                return ids
        return None


def _places(model: nn.Module) -> dict[nn.Module, list[Place]]:
    """Where each numbered module stands: once, or once for each layer that lists it as its own."""
    places: dict[nn.Module, list[Place]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        place = place_of(name)
        if place is None:
            continue
        known = places.setdefault(module, [])
        # Under another name for the whole stack it is the same layer again.
        if not known or (place.stack == known[0].stack and place not in known):
            known.append(place)
    return places


def _is_within(name: str, around: str) -> bool:
    return around == "" or name.startswith(around + ".")
