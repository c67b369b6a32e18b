"""The steps of a failback, and what the old source's state says of its reverse mirror."""

from __future__ import annotations

from mirror_core.model.errors import Refused, Unreachable
from mirror_core.model.names import MirrorName, format_reverse_name
from mirror_core.model.run import Run, RunKind, RunState
from mirror_core.state.link import MirrorLink, make_mirror_link
from mirror_core.state.records import State
from mirror_core.state.topic import read_state


def find_reverse_failover(reverse_state: State, failback_run_id: str) -> Run | None:
    """Matched by run id: clocks of two hosts do not tell what came first."""
    expected = (RunKind.FAILOVER, RunState.DONE, failback_run_id)
    return next(
        (run for run in reverse_state.runs.values() if (run.plan.kind, run.state, run.failback_run) == expected), None
    )


def load_reverse_link(link: MirrorLink) -> MirrorLink:
    state = read_state(link.source)
    state.require_readable(format_reverse_name(link.mirror.name))
    mirror = state.mirrors.get(format_reverse_name(link.mirror.name))
    if mirror is None:
        raise Unreachable(
            f"mirror {format_reverse_name(link.mirror.name)} is not recorded on cluster {link.source.name}"
        )
    return make_mirror_link(link.config, mirror)


def is_already_home(reverse_state: State, name: MirrorName, failback_run_id: str) -> bool:
    """Whether M-back moved applications back. Refused while it does: rights would be removed."""
    reverse_state.require_readable(name)
    if run := reverse_state.active_run(name):
        raise Refused(
            f"failback {failback_run_id}: step create_reverse",
            [f"run {run.id} takes applications home already: `mirrorbook failover resume {name}` first"],
        )
    return find_reverse_failover(reverse_state, failback_run_id) is not None


def require_reverse_failover(link: MirrorLink, reverse_state: State, failback_run_id: str) -> Run:
    run = find_reverse_failover(reverse_state, failback_run_id)
    if run is None:
        raise Refused(
            f"failback {failback_run_id}: step reprotect",
            [f"mirror {link.mirror.name} is not failed over yet: applications are still on {link.source.name}"],
        )
    return run
