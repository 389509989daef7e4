"""Checks of values against type annotations, for what callers pass and what files hold.

    check_fields(config)                        # each field of a dataclass has a value of its type
    take(table, "rope_theta", float, 10000.0)   # a value of a file's table, or the default
    @checked                                    # a function's arguments, before it runs

Each error names the value, what was found and what was expected.
"""

from __future__ import annotations

import builtins
import inspect
import numbers
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import cache, lru_cache, wraps
from typing import (
    Any,
    Literal,
    ParamSpec,
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
P = ParamSpec("P")

_WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "true or false",
    dict: "a table",
    list: "a list",
    tuple: "a list",
    type(None): "None",
    Sequence: "a list",
    Iterable: "a list",
    Mapping: "a table",
}
_SEVERAL: dict[Any, str] = {int: "whole numbers", float: "numbers", str: "texts"}
_WHOLE, _REAL = (int, numbers.Integral), (int, float, numbers.Real)
"""What callers may pass as a number, numpy's included; files hold Python's own."""


def check_fields(instance: Any, prefix: str = "") -> None:
    """Raise unless each field of a dataclass holds what its annotation says.

    The error names the field with `prefix` before it.

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
        check_value(f"{prefix}{name}", getattr(instance, name), hint)


def check_value(name: str, value: Any, hint: Any) -> None:
    """Raise unless the value is what the annotation `hint` says."""
    if not _fits(value, hint):
        raise OptionError(f"{name} must be {_in_words(hint)}, found {value!r}")


def as_list(name: str, values: Iterable[T]) -> list[T]:
    """The values as a list, or an OptionError that names the argument.

    >>> as_list("links", (3, 4))
    [3, 4]
    """
    try:
        return list(values)
    except (TypeError, RuntimeError):  # a tensor of one number or of nested ones has no length
        raise OptionError(f"{name} must be a list, found {_short(values)}") from None


def checked(function: Callable[P, T]) -> Callable[P, T]:
    """A function whose arguments are checked by their annotations before it runs.

    Annotations that only a type checker can resolve are skipped.

    >>> @checked
    ... def repeat(text: str, times: int = 1) -> str:
    ...     return text * times
    >>> repeat("ab", None)
    Traceback (most recent call last):
    ...
    limelight.errors.OptionError: times must be a whole number, found None
    """
    signature = inspect.signature(function)

    @wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> T:
        arguments = signature.bind(*args, **options).arguments
        for name, hint in _argument_hints(function).items():
            if name in arguments and not _fits(arguments[name], hint, _WHOLE, _REAL):
                raise OptionError(
                    f"{name} must be {_in_words(hint)}, found {_short(arguments[name])}"
                )
        return function(*args, **options)

    return call


@cache
def _argument_hints(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of the parameters as types, those that can be resolved at run time."""
    known = {**vars(builtins), **vars(sys.modules[function.__module__])}
    hints: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        try:
            hints[name] = eval(parameter.annotation, known)  # of our own source, as typing does
        except (NameError, TypeError):
            continue
    return hints


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 and "\n" not in text else f"a {type(value).__name__}"


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


def _fits(
    value: Any,
    hint: Any,
    integers: tuple[type, ...] = (int,),
    reals: tuple[type, ...] = (int, float),
) -> bool:
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any or isinstance(hint, TypeVar | str):
        return True
    if origin in (Union, types.UnionType):
        return any(_fits(value, member, integers, reals) for member in inner)
    if origin is Literal:
        return isinstance(value, str) and value in inner
    if origin is tuple:
        return isinstance(value, tuple) and all(
            _fits(each, inner[0], integers, reals) for each in cast("tuple[Any, ...]", value)
        )
    # A bool is an int in Python, but is never meant as a number here.
    if hint in (int, float):
        kinds = integers if hint is int else reals
        return isinstance(value, kinds) and not isinstance(value, bool)
    if not isinstance(value, origin or hint):
        return False
    is_sequence = isinstance(value, list | tuple | bytes) and origin in (list, Sequence, Iterable)
    return not is_sequence or all(
        _fits(each, inner[0], integers, reals) for each in cast("Sequence[Any]", value)
    )


def _in_words(hint: Any) -> str:
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(map(_in_words, get_args(hint)))
    if origin is Literal:
        return "one of " + ", ".join(map(repr, get_args(hint)))
    kind, inner = origin or hint, get_args(hint)
    if kind in (Sequence, Iterable, list) and inner and inner[0] in _SEVERAL:
        return f"a list of {_SEVERAL[inner[0]]}"
    article = "an" if kind.__name__[0] in "AEIOU" else "a"
    return _WORDS.get(kind) or f"{article} {kind.__name__}"
