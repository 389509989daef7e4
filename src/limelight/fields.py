"""Values as their annotations want them: what callers and files give is checked in one place.

check_fields(config)                      # each field of a dataclass holds what it is said to
take(table, "rope_theta", float, 10000.0)   # a value of a file, or what stands in its place
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping
from dataclasses import fields
from functools import lru_cache
from typing import (
    Any,
    Literal,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

from limelight.errors import OptionError

T = TypeVar("T")

_WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "true or false",
    dict: "a table",
    list: "a list",
    tuple: "a list",
    type(None): "None",
}


def check_fields(instance: Any, called: str = "") -> None:
    """Raise unless each field of a dataclass holds what its annotation says.

    `called` is put before the names of the fields.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Sizes:
    ...     width: int
    >>> check_fields(Sizes("8"), "my ")
    Traceback (most recent call last):
    ...
    limelight.errors.OptionError: my width must be a whole number, found '8'
    """
    for name, hint in _hints(type(instance)).items():
        check_value(f"{called}{name}", getattr(instance, name), hint)


def check_value(name: str, value: Any, hint: Any) -> None:
    """Raise unless the value is what the annotation `hint` says."""
    if not _fits(value, hint):
        raise OptionError(f"{name} must be {_in_words(hint)}, found {value!r}")


@overload
def take(table: Mapping[str, Any], name: str, kind: type[T]) -> T | None: ...
@overload
def take(table: Mapping[str, Any], name: str, kind: type[T], default: T) -> T: ...
def take(table: Mapping[str, Any], name: str, kind: type[T], default: T | None = None) -> T | None:
    """The value of this name in a file's table; where it is missing or null, the default.

    >>> take({"rope_theta": "x"}, "rope_theta", float, 10000.0)
    Traceback (most recent call last):
    ...
    limelight.errors.OptionError: rope_theta must be a number, found 'x'
    """
    value = table.get(name)
    if value is None:
        return default
    check_value(name, value, kind)
    return cast("T", float(value)) if kind is float else value


def check_names(what: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Raise unless each name is among the known ones."""
    known = list(known)
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise OptionError(
            f"{what} has unknown fields: {', '.join(unknown)}; it has {', '.join(known)}"
        )


@lru_cache
def _hints(kind: type) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {each.name: hints[each.name] for each in fields(kind)}


def _fits(value: Any, hint: Any) -> bool:
    origin = get_origin(hint)
    if hint is Any:
        return True
    if origin in (Union, types.UnionType):
        return any(_fits(value, arm) for arm in get_args(hint))
    if origin is Literal:
        return isinstance(value, str) and value in get_args(hint)
    if origin is tuple:
        return isinstance(value, tuple) and all(
            _fits(each, get_args(hint)[0]) for each in cast("tuple[Any, ...]", value)
        )
    # A bool is an int to Python, and never one that was meant here.
    if hint in (int, float) and isinstance(value, bool):
        return False
    return isinstance(value, (int, float) if hint is float else (origin or hint))


def _in_words(hint: Any) -> str:
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(map(_in_words, get_args(hint)))
    if origin is Literal:
        return "one of " + ", ".join(map(repr, get_args(hint)))
    kind = origin or hint
    return _WORDS.get(kind) or f"a {kind.__name__}"
