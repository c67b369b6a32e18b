"""Whether a user's fence_command must keep a mirror's source closed.

Such a command has no owner, and its caller may have been paused before: so afterwards the caller reads what the
mirror's state wants and corrects the cluster.
"""

from __future__ import annotations

from mirror_core.decide.standing import has_failed_over
from mirror_core.model.mirror import DesiredState, Mirror
from mirror_core.model.run import Run, RunKind, RunState
from mirror_core.model.standing import PendingFence


def must_stay_fenced(
    mirror: Mirror | None, pending_fence: PendingFence | None, run: Run | None, *, is_command_begun: bool
) -> bool | None:
    """None: unknown from this. `run`: holds the mirror; `begun`: it called the command, or was about to.

    Unknown: a failback so far on that only its reverse mirror knows; or a mirror deleted or stopped, whose source may
    be another mirror's destination by now.
    """
    if has_failed_over(pending_fence):
        return True
    if pending_fence is None and run is None and (mirror is None or mirror.desired is DesiredState.STOPPED):
        return None
    if run is None or run.state is RunState.ABORTING:
        return False
    return None if run.plan.kind is RunKind.FAILBACK else is_command_begun
