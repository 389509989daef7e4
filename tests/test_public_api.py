"""The public names: few, all there, all described."""

from __future__ import annotations

import inspect

import limelight as ll


def test_every_public_name_is_there_and_described() -> None:
    for name in ll.__all__:
        value = getattr(ll, name)
        assert inspect.getdoc(value), f"{name} has no docstring"


def test_the_namespace_is_what_all_says() -> None:
    assert sorted(ll.__all__) == sorted(ll._HOME)
    assert set(ll.__all__) <= set(dir(ll))
    stray = {n for n in vars(ll) if not n.startswith("_")} - set(ll.__all__)
    assert stray <= {"annotations", "importlib", "TYPE_CHECKING"} | submodules()


def submodules() -> set[str]:
    return {name for name, value in vars(ll).items() if inspect.ismodule(value)}
