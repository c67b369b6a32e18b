"""Checks whether the data plane may run, by clusters and state topic."""

from __future__ import annotations

from typing import Final

from mirror_core.decide.verbs import held_by
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import Principal
from mirror_core.model.errors import HeldByRun, Refused
from mirror_core.model.mirror import Desired
from mirror_core.model.run import RunKind
from mirror_core.model.standing import Owed
from mirror_core.state.link import Link
from mirror_core.state.pulse import conducted
from mirror_core.state.records import State


def check_data_principal(link: Link) -> None:
    """Raises when a cluster rejects its login."""
    for cluster in (link.source, link.destination):
        with ClusterClient(cluster, Principal.DATA, timeout_s=10.0) as client:
            client.metadata(())


_TAKE_OVER: Final = ("drain", "settle")
"""From these steps on a failover has the data plane to itself: the lease that they take expires."""


def refuse_to_run(state: State, link: Link) -> None:
    """Raises Refused when the mirror must not be copied now."""
    name = link.mirror.name
    mirror = state.mirrors.get(name)
    run = state.active_run(name)
    if mirror is None:
        raise Refused(f"mirror {name}", ["it has been deleted"])
    # Until a failover takes over, the data plane keeps the lag small.
    taken = run is not None and any((run.id, step) in state.steps for step in _TAKE_OVER)
    if run is not None and (run.plan.kind is not RunKind.FAILOVER or taken):
        raise HeldByRun(
            f"mirror {name}: replicate", [f"{held_by(run, conducted(state, run))}; it copies the rest itself"]
        )
    if mirror.desired is not Desired.STARTED:
        how = {Desired.PAUSED: "resume", Desired.STOPPED: "start"}[mirror.desired]
        raise Refused(f"mirror {name}", [f"it is {mirror.desired}: `mirrorbook mirror {how} {name}` lets it run"])
    debt = state.debts.get(name)
    if run is None and debt is not None and debt.owed is Owed.UNFENCE:
        # Nobody can write there until the fence is lifted.
        what = f"cluster {debt.cluster} still has the fence of run {debt.run}, which was given up"
        raise Refused(f"mirror {name}", [f"{what}: `mirrorbook mirror watch {name}` lifts it when it answers"])
