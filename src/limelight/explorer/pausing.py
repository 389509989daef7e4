"""Pauses a job at every attention call, where others can go first or the job can end."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator
from contextlib import contextmanager

from torch import Tensor

from limelight.explorer.worker import Job
from limelight.ops.calls import AttentionCall, intercept


@contextmanager
def pausing(job: Job, report: Callable[[int], None] | None = None) -> Generator[None]:
    """Within the block, the job pauses before every attention call of our models.

    `report` is called before each pause, with the number of calls made so far.
    """
    calls = itertools.count()

    def pause(call: AttentionCall) -> Tensor:
        if report is not None:
            report(next(calls))
        job.pause()
        return call.attend()

    # Our own models never call PyTorch's attention, so it need not be intercepted.
    with intercept(pause, locate=lambda call: call):
        yield
