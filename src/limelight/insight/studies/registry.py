"""The list of studies, and the function that runs one."""

from __future__ import annotations

import difflib
import importlib

from limelight.checks import check_whole
from limelight.errors import OptionError
from limelight.fields import checked
from limelight.insight.studies.study import Study

STUDIES = {
    "scaling": "dot products grow with the size of a head; 1/√d keeps softmax alive",
    "geometry": "a score measures how parallel query and key are",
    "roles": "one matrix for both roles makes scores symmetric and tokens look at themselves",
    "value": "a separate W_v lets a token be found by one property and contribute another",
    "order": "attention alone does not know the order of tokens",
    "reach": "recurrence forgets over distance, attention does not",
    "parallel": "attention takes all tokens at once, recurrence one after another",
    "cost": "time and memory grow with the square of the length",
    "heads": "several heads follow several relations at once",
    "lowrank": "values can pass through a smaller space with fewer parameters",
    "focus": "a growing context draws weight to tokens that do not matter",
    "explanation": "a high weight does not show that a token matters",
}
"""The name of each study, which is its file, and what it is about."""


@checked
def study(name: str, *, seed: int = 0) -> Study:
    """Measure one textbook claim about attention.

    Args:
        name: one of `STUDIES`.
        seed: the same seed gives the same numbers, except for times.

    >>> study("roles").verdict
    'holds'
    """
    check_whole("seed", seed, 0, (1 << 63) - 1)
    check_study(name)
    return importlib.import_module(f"limelight.insight.studies.{name}").run(seed)


def check_study(name: str) -> None:
    """Raise OptionError unless `name` is one of `STUDIES`."""
    if name not in STUDIES:
        near = difflib.get_close_matches(name[:40], STUDIES, 1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(STUDIES)}"
        raise OptionError(f"there is no study {name!r}: {hint}")
