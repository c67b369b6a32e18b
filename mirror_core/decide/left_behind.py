"""A source that answers again during an unplanned run: when a person must confirm, and the ways on.

The confirmation is `failover resume NAME --leave-behind`: what was not copied stays on the source.
"""

from __future__ import annotations

from mirror_core.model.names import ClusterName, MirrorName


def needs_confirmation(*, has_answered: bool, fence_held: bool, was_silent: bool, was_stalled: bool) -> bool:
    """Whether leaving records on a source that `answers` needs a person's confirmation.

    Yes if it was `silent` when the plan was approved: nobody agreed to give up a source that answers. Yes if the run
    was `held_up` while the source may have taken writes, unless its fence `stands` all the time.
    """
    return has_answered and (was_silent or (was_stalled and not fence_held))


def format_ways_on(mirror: MirrorName, source: ClusterName) -> str:
    return (
        f"`mirrorbook failover abort {mirror}`: applications go on writing on {source}, and nothing is lost. Or "
        f"`mirrorbook failover resume {mirror} --leave-behind`: these records stay on {source} only, until a failback "
        "saves them"
    )


def format_ways_on_unfenced(mirror: MirrorName, source: ClusterName, reason: str) -> str:
    """Its brokers may be unreachable for everybody, so there is also a way without fencing it."""
    return (
        f"{source} answers now and could not be fenced, so both clusters would take writes ({reason}). Stop its brokers "
        f"and `mirrorbook failover resume {mirror}`. Or `mirrorbook failover abort {mirror}`, and plan again. Or keep "
        f"its applications stopped and `mirrorbook failover resume {mirror} --leave-behind`: the run promotes beside "
        f"{source}, and the fence stays pending"
    )


def format_run_kept(mirror: MirrorName, source: ClusterName) -> str:
    """Why a waiting run is kept while its source is silent again: a new run would not ask."""
    return (
        f"kept: {source} answered when the run was about to promote, and it is silent now. `mirrorbook failover resume "
        f"{mirror} --leave-behind` goes on, and so does action leave_behind of DAG mirror_control: what was not copied "
        f"stays on {source} only. If {source} comes back, `mirrorbook failover abort {mirror}`, or action abort of DAG "
        "mirror_control, loses nothing"
    )


def format_planned_failover_hint(source: ClusterName) -> str:
    return (
        f"{source} answers: DAG mirror_failover loses nothing. Or trigger this DAG again: its plan says that {source} "
        "answers, and who approves it leaves behind what is not copied"
    )
