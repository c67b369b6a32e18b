"""The steps of a failback, and what the old source's state says of its reverse mirror."""

from __future__ import annotations

from mirror_core.model.errors import Refused, Unreachable
from mirror_core.model.names import MirrorName, reverse_name
from mirror_core.model.run import Run, RunKind, RunState
from mirror_core.state.link import Link, link_of
from mirror_core.state.records import State
from mirror_core.state.topic import read_state


def home_run(back: State, failback: str) -> Run | None:
    """Matched by run id: clocks of two hosts do not tell what came first."""
    wanted = (RunKind.FAILOVER, RunState.DONE, failback)
    return next((r for r in back.runs.values() if (r.plan.kind, r.state, r.homecoming) == wanted), None)


def reverse_link(link: Link) -> Link:
    state = read_state(link.source)
    state.require(reverse_name(link.mirror.name))
    mirror = state.mirrors.get(reverse_name(link.mirror.name))
    if mirror is None:
        raise Unreachable(f"mirror {reverse_name(link.mirror.name)} is not recorded on cluster {link.source.name}")
    return link_of(link.config, mirror)


def home_already(back: State, name: MirrorName, failback: str) -> bool:
    """Whether M-back moved applications back. Refused while it does: rights would be removed."""
    back.require(name)
    if run := back.active_run(name):
        raise Refused(
            f"failback {failback}: step create_reverse",
            [f"run {run.id} takes applications home already: `mirrorbook failover resume {name}` first"],
        )
    return home_run(back, failback) is not None


def refuse_unless_home(link: Link, back: State, failback: str) -> Run:
    run = home_run(back, failback)
    if run is None:
        raise Refused(
            f"failback {failback}: step reprotect",
            [f"mirror {link.mirror.name} is not failed over yet: applications are still on {link.source.name}"],
        )
    return run
