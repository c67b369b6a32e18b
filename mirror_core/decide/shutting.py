"""Whether a mirror's source is to be closed to applications, where a command of the user's closes it. Pure.

Such a command knows no owner, and whoever calls it may have slept before: afterwards he looks at what the mirror's
state wants, and puts the cluster right.
"""

from __future__ import annotations

from mirror_core.decide.standing import failed_over
from mirror_core.model.run import Run, RunKind, RunState
from mirror_core.model.standing import Debt


def keeps_shut(debt: Debt | None, run: Run | None, *, begun: bool) -> bool | None:
    """None: a failback has gone on so far that only its way home knows. `run`: the one that holds the mirror; `begun`:
    it has called the command, or was about to."""
    if failed_over(debt):
        return True
    if run is None or run.state is RunState.ABORTING:
        return False
    return None if run.plan.kind is RunKind.FAILBACK else begun
