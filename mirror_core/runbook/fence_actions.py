"""The fence of a run's source. Its file is written before any denial."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from mirror_core.evidence.fence_file import FenceFile, fence_file_path, list_names, read_fence_file, write_fence_file
from mirror_core.kafka.client import ClusterClient
from mirror_core.model.acl import Acl, Resource
from mirror_core.model.audit_log import AuditEntryKind
from mirror_core.model.errors import BadRequest, LostOwnership, MirrorError
from mirror_core.model.files import Unwritable
from mirror_core.model.pending_fence import FenceAction, PendingFence
from mirror_core.model.run import Run, RunState
from mirror_core.model.text import format_shell_command
from mirror_core.model.timing import now_ms
from mirror_core.runbook.run_services import EVIDENCE_ADVICE, Services, StepContext
from mirror_core.state.journal import make_audit_entry
from mirror_core.state.mirror_link import MirrorLink, check_source_id
from mirror_core.state.state_records import Tombstone
from mirror_core.state.writer import StateWriter
from mirror_core.sync.fence_acls import lift_fence, list_fence_entries
from mirror_core.sync.fence_command import ClusterClosed, FenceCommandFailed, build_command_target, has_closed_source
from mirror_core.sync.fence_command_runner import close_cluster, format_held_topics, open_cluster, write_or_reconcile


def lift_fence_or_record(link: MirrorLink, writer: StateWriter, run: Run) -> str:
    """Returns what is left of the fence, as text. Idempotent."""
    name, is_closed, held_closed = link.source.name, has_closed_source(writer.state, run), frozenset[str]()
    pending_fence = PendingFence(
        mirror=link.mirror.name,
        cluster=name,
        action=FenceAction.LIFT,
        run=run.id,
        since_ms=writer.now_ms(),
        by_command=is_closed,
    )
    if run.state is not RunState.ABORTING:
        # Recorded first: then the denials are found after any crash.
        writer.put(
            replace(run, state=RunState.ABORTING),
            make_audit_entry(writer, run, AuditEntryKind.ABORTING, {}),
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
        writer.put(pending_fence.record_failure(error))
        if isinstance(error, FenceCommandFailed):
            return f"{name} is still closed to applications: {error}. A watcher tries it again"
        if error.retryable:
            return f"{name} does not answer, and its fence is still there: it is lifted when it does"
        return f"the fence on {name} is still there: {error}. A watcher tries it again"
    return " ".join(format_held_topics(name, held_closed))


LIFT_COMMAND_KEY: Final = "if_the_destination_dies"


class LiftFile:
    """Written whenever what is about to be denied grows."""

    def __init__(self, context: StepContext, *, needed: bool = True, prints_command: bool = True) -> None:
        """`needed`: deny nobody unless it is written. Else the fence matters more.

        `prints_command`: say how to open the source should the destination die. Wrong in a failback: applications write
        on the destination, and the source's copy may be half made.
        """
        self._context = context
        self._needed = needed
        self._prints_command = prints_command
        self._path = _lift_file_path(context.services, context.journal.run_id)
        self.text = ""

    def __call__(self, acls: Collection[Acl]) -> None:
        self._write(list_names(acls, Resource.TOPIC), list_names(acls, Resource.TRANSACTIONAL_ID), command=False)

    def write_for_command(self, topics: Collection[str]) -> None:
        self._write(tuple(sorted(topics)), (), command=True)

    def _write(self, topics: tuple[str, ...], transactional_ids: tuple[str, ...], *, command: bool) -> None:
        link, names = self._context.link, frozenset(topics)
        fence = FenceFile(
            run=self._context.journal.run_id,
            mirror=link.mirror.name,
            cluster=link.source.name,
            cluster_id=link.mirror.source_id,
            destination=link.destination.name,
            written_ms=now_ms(),
            topics=topics,
            transactional_ids=transactional_ids,
            kind=self._context.journal.run.plan.kind,
            command=command,
            topic_ids={p.topic: s.source_topic_id for p, s in self._context.statuses().items() if p.topic in names},
        )
        try:
            write_fence_file(self._path, fence, EVIDENCE_ADVICE)
        except Unwritable as error:
            if self._needed:
                raise
            self.text = f"no file to lift it by: {error}"
            return
        command_line = format_shell_command(
            "mirrorbook", "cluster", "unfence", link.source.name, "--from", str(self._path)
        )
        if command_line != self.text:
            self.text = command_line
            if self._prints_command:
                self._context.print_line(
                    f"should {link.destination.name} die while {link.source.name} is fenced: {command_line}"
                )


def read_lift_file(services: Services, run_id: str) -> FenceFile | None:
    """None if the run was conducted elsewhere or had no disk space. Then only the cluster can tell."""
    try:
        return read_fence_file(_lift_file_path(services, run_id))
    except BadRequest:
        return None


def is_known_to_stand(services: Services, run_id: str) -> bool:
    """The file is here and unused. Nothing else tells of a silent source."""
    file = read_lift_file(services, run_id)
    return file is not None and file.lifted_ms is None


def _lift_file_path(services: Services, run_id: str) -> Path:
    return fence_file_path(services.evidence_dir / f"run-{run_id}", run_id)


@dataclass(frozen=True, slots=True)
class CommandFence:
    """Returns False if the source has no command.

    Recorded before the call, so that an abort opens the source again.
    """

    context: StepContext
    step: str
    lift_file: LiftFile
    once: bool = False

    def __call__(self, topics: Collection[str]) -> bool:
        link = self.context.link
        if link.source.ruling.fence_command is None:
            return False
        closable_cluster = build_command_target(link, link.source.name, self.context.journal.run_id, topics)
        self.lift_file.write_for_command(topics)
        return close_cluster(link, closable_cluster, self._record_closing, once=self.once)

    def _record_closing(self) -> None:
        self.context.journal.save_checkpoint(self.step, ClusterClosed(cluster=self.context.link.source.name))
