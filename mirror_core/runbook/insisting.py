"""The data plane's lease in a run's hands: a data plane that starts at this very moment does not end the step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mirror_core.model.errors import LostOwnership
from mirror_core.model.run import Evidence
from mirror_core.runbook.acts import Acts

_TIMES: Final = 3


def insisting(acts: Acts, step: str, act: Callable[[], Evidence]) -> Evidence:
    """`act` takes the lease of the data plane, and may be repeated from its start.

    A data plane that had read the state before this step began takes the lease after us. Then it reads that the step
    has begun, and ends. LostOwnership when another process conducts the run by now, or when this does not end.
    """
    for _ in range(_TIMES):
        try:
            return act()
        except LostOwnership:
            begun = acts.journal.record(step)
            if begun is None:
                raise
            acts.writer.put(begun)  # who has lost the run itself learns it here, and takes nothing from his successor
            acts.say("a data plane that was just starting has taken the lease; it ends by itself, and this begins anew")
    return act()
