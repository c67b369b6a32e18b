"""The fence of a run's source: the command that closes it, the file that lifts it, the lift at abort."""

from __future__ import annotations

from dataclasses import replace

from mirror_core.kafka.client import ClusterClient
from mirror_core.model.chronicle import AuditEntryKind
from mirror_core.model.clock import now_ms
from mirror_core.model.errors import LostOwnership, MirrorError
from mirror_core.model.run import Run, RunState
from mirror_core.model.standing import FenceAction, PendingFence
from mirror_core.state.journal import make_audit_entry
from mirror_core.state.link import MirrorLink
from mirror_core.state.records import Tombstone
from mirror_core.state.writer import StateWriter
from mirror_core.sync.closing_commands import FenceCommandFailed, build_command_target
from mirror_core.sync.closings import has_closed_source
from mirror_core.sync.fence import lift_fence, list_fence_entries
from mirror_core.sync.identity import check_source_id
from mirror_core.sync.kept_closed import format_held_topics
from mirror_core.sync.shutting import open_cluster, write_or_reconcile


def lift_fence_or_record(link: MirrorLink, writer: StateWriter, run: Run) -> str:
    """Returns what is left of the fence, as text. Idempotent."""
    name, is_closed, held_closed = link.source.name, has_closed_source(writer.state, run), frozenset[str]()
    pending_fence = PendingFence(
        mirror=link.mirror.name,
        cluster=name,
        action=FenceAction.LIFT,
        run=run.id,
        since_ms=now_ms(),
        by_command=is_closed,
    )
    if run.state is not RunState.ABORTING:
        # Recorded first: then the denials are found after any crash.
        writer.put(
            replace(run, state=RunState.ABORTING),
            make_audit_entry(writer.state, run, AuditEntryKind.ABORTING, {}),
            pending_fence,
        )
    topics = {p.topic for p in writer.state.partitions.get(link.mirror.name, {})}
    closable_cluster = build_command_target(link, link.source.name, run.id, topics)
    try:
        with ClusterClient(link.source) as source:
            if list_fence_entries(link.mirror, writer, source):  # else ask nothing of a source that may be dead
                check_source_id(link, source)
                lift_fence(link.mirror, writer, source)
            if is_closed:
                check_source_id(link, source)
                held_closed = open_cluster(link, writer.state, closable_cluster, lambda: writer.put(pending_fence))
        if is_closed:
            write_or_reconcile(link, closable_cluster, lambda: writer.put(Tombstone(pending_fence)))
        else:
            writer.put(Tombstone(pending_fence))
    except LostOwnership:
        raise
    except MirrorError as error:
        writer.put(replace(pending_fence, problem=str(error)))
        if isinstance(error, FenceCommandFailed):
            return f"{name} is still closed to applications: {error}. A watcher tries it again"
        if error.retryable:
            return f"{name} does not answer, and its fence is still there: it is lifted when it does"
        return f"the fence on {name} is still there: {error}. A watcher tries it again"
    return " ".join(format_held_topics(name, held_closed))
