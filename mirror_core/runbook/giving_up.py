"""The fence of a run's source: the command that closes it, the file that lifts it, the lift at abort."""

from __future__ import annotations

from dataclasses import replace

from mirror_core.kafka.client import ClusterClient
from mirror_core.model.chronicle import Kind
from mirror_core.model.clock import now_ms
from mirror_core.model.errors import LostOwnership, MirrorError
from mirror_core.model.run import Run, RunState
from mirror_core.model.standing import Debt, Owed
from mirror_core.state.journal import told
from mirror_core.state.link import Link
from mirror_core.state.records import Forget
from mirror_core.state.writer import StateWriter
from mirror_core.sync.closing_commands import CommandFailed, closable
from mirror_core.sync.closings import has_shut
from mirror_core.sync.fence import lift_fence, standing
from mirror_core.sync.identity import check_source
from mirror_core.sync.kept_closed import stay_closed
from mirror_core.sync.shutting import opened_through, owned_after


def lift_or_owe(link: Link, writer: StateWriter, run: Run) -> str:
    """Returns what is left of the fence, as text. Idempotent."""
    name, shut, kept = link.source.name, has_shut(writer.state, run), frozenset[str]()
    owed = Debt(
        mirror=link.mirror.name, cluster=name, owed=Owed.UNFENCE, run=run.id, since_ms=now_ms(), by_command=shut
    )
    if run.state is not RunState.ABORTING:
        # Recorded first: then the denials are found after any crash.
        writer.put(replace(run, state=RunState.ABORTING), told(writer.state, run, Kind.ABORTING, {}), owed)
    topics = {p.topic for p in writer.state.partitions.get(link.mirror.name, {})}
    where = closable(link, link.source.name, run.id, topics)
    try:
        with ClusterClient(link.source) as source:
            if standing(link.mirror, writer, source):  # else ask nothing of a source that may be dead
                check_source(link, source)
                lift_fence(link.mirror, writer, source)
            if shut:
                check_source(link, source)
                kept = opened_through(link, writer.state, where, lambda: writer.put(owed))
        if shut:
            owned_after(link, where, lambda: writer.put(Forget(owed)))
        else:
            writer.put(Forget(owed))
    except LostOwnership:
        raise
    except MirrorError as error:
        writer.put(replace(owed, trouble=str(error)))
        if isinstance(error, CommandFailed):
            return f"{name} is still closed to applications: {error}. A watcher tries it again"
        if error.retryable:
            return f"{name} does not answer, and its fence is still there: it is lifted when it does"
        return f"the fence on {name} is still there: {error}. A watcher tries it again"
    return " ".join(stay_closed(name, kept))
