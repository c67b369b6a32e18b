"""Retries a step that lost the data plane's lease."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mirror_core.model.errors import LostOwnership
from mirror_core.model.run import Evidence
from mirror_core.runbook.acts import Acts

_TIMES: Final = 3


def insisting(acts: Acts, step: str, act: Callable[[], Evidence]) -> Evidence:
    """Run `action`, which takes the data plane's lease, and may be repeated.

    A data plane that read the state before this step began may take the lease after us. It then reads that the step
    has begun, and ends.
    """
    for _ in range(_TIMES):
        try:
            return act()
        except LostOwnership:
            begun = acts.journal.record(step)
            if begun is None:
                raise
            acts.writer.put(begun)  # fails here if the run itself was lost
            acts.say("a data plane that was just starting has taken the lease; it ends by itself, and this begins anew")
    return act()
