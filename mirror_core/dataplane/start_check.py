"""Checks whether the data plane may run, by clusters and state topic."""

from __future__ import annotations

from typing import Final

from mirror_core.decide.command_rules import explain_held_by, explain_not_copied
from mirror_core.decide.fence_state import has_failed_over
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import Principal
from mirror_core.model.errors import HeldByRun, Refused
from mirror_core.model.mirror import DesiredState
from mirror_core.model.pending_fence import FenceAction
from mirror_core.model.run import RunKind
from mirror_core.state.mirror_link import MirrorLink
from mirror_core.state.run_heartbeat import observe_conductor
from mirror_core.state.state_records import State


def check_data_principal(link: MirrorLink) -> None:
    """Raises when a cluster rejects its login."""
    for cluster in (link.source, link.destination):
        with ClusterClient(cluster, Principal.DATA, timeout_s=10.0) as client:
            client.metadata(())


_TAKEOVER_STEPS: Final = ("drain", "settle")
"""From these steps on a failover has the data plane to itself: the lease that they take expires."""


def check_may_run(state: State, link: MirrorLink) -> None:
    """Raises Refused when the mirror must not be copied now."""
    name = link.mirror.name
    mirror = state.mirrors.get(name)
    run = state.active_run(name)
    pending_fence = state.pending_fences.get(name)
    if mirror is None:
        raise Refused(f"mirror {name}", ["it has been deleted"], reason_code="mirror_deleted")
    # Until a failover takes over, the data plane keeps the lag small.
    is_taken_over = run is not None and any((run.id, step) in state.steps for step in _TAKEOVER_STEPS)
    if run is not None and (run.plan.kind is not RunKind.FAILOVER or is_taken_over):
        raise HeldByRun(
            f"mirror {name}: replicate",
            [f"{explain_held_by(run, observe_conductor(link.destination, state, run))}; it copies the rest itself"],
        )
    if mirror.desired is not DesiredState.STARTED:
        reason = explain_not_copied(mirror, has_failed_over=has_failed_over(pending_fence))
        raise Refused(f"mirror {name}", [reason], reason_code="mirror_not_started")
    if run is None and pending_fence is not None and pending_fence.action is FenceAction.LIFT:
        # Nobody can write there until the fence is lifted.
        problem = f"cluster {pending_fence.cluster} still has the fence of run {pending_fence.run}, which was given up"
        raise Refused(
            f"mirror {name}",
            [f"{problem}: `mirrorbook mirror watch {name}` lifts it when it answers"],
            reason_code="fence_not_lifted",
        )
