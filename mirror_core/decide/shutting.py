"""Whether a mirror's source is to be closed to applications, where a command of the user's closes it. Pure.

Such a command knows no owner, and whoever calls it may have slept before: afterwards he looks at what the mirror's
state wants, and puts the cluster right.
"""

from __future__ import annotations

from mirror_core.decide.standing import failed_over
from mirror_core.model.mirror import Desired, Mirror
from mirror_core.model.run import Run, RunKind, RunState
from mirror_core.model.standing import Debt


def keeps_shut(mirror: Mirror | None, debt: Debt | None, run: Run | None, *, begun: bool) -> bool | None:
    """None: nobody knows by this. A failback has gone on so far that only its way home does; or the mirror was deleted,
    or stopped, as a way home is that has ended: its source may be a mirror's destination by now. `run`: the one that
    holds the mirror; `begun`: it has called the command, or was about to."""
    if failed_over(debt):
        return True
    if debt is None and run is None and (mirror is None or mirror.desired is Desired.STOPPED):
        return None
    if run is None or run.state is RunState.ABORTING:
        return False
    return None if run.plan.kind is RunKind.FAILBACK else begun
