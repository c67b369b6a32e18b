"""One sync: topics, settings, ACLs and group offsets, compared and brought over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from mirror_core.decide.verbs import held_by
from mirror_core.kafka.client import ClusterClient, TopicView
from mirror_core.model.clock import FRESH_S, now_ms
from mirror_core.model.documents import Document
from mirror_core.model.drift import CHANGES, Action, DriftRow, Part
from mirror_core.model.errors import HeldByRun, Refused
from mirror_core.model.logs import logger
from mirror_core.model.mirror import FailureKind, GroupsSeen
from mirror_core.state.journal import Log
from mirror_core.state.link import Link
from mirror_core.state.pulse import conducted
from mirror_core.state.records import Forget, Record, State
from mirror_core.state.topic import read_whole
from mirror_core.sync.access import sync_acls
from mirror_core.sync.group_commits import GroupCommits
from mirror_core.sync.groups import groups_in_scope, sync_groups
from mirror_core.sync.identity import check_identity
from mirror_core.sync.topics import (
    Placement,
    create_missing,
    hidden_rows,
    left_out_rows,
    mirror_topics,
    stopped_topics,
    sync_configs,
)

_log = logger(__name__)

ALL_PARTS: Final = frozenset(Part)


class SyncDocument(Document, frozen=True, kw_only=True):
    """Differences, and what was done about each; groups in scope always have a row."""

    mirror: str
    dry_run: bool
    parts: tuple[Part, ...]
    rows: tuple[DriftRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncReport:
    mirror: str
    dry_run: bool
    parts: tuple[Part, ...]
    rows: tuple[DriftRow, ...]
    topics: frozenset[str] = frozenset()
    """Topics that were compared."""

    @property
    def refused(self) -> tuple[DriftRow, ...]:
        """Rows that need a person."""
        return tuple(row for row in self.rows if row.action is Action.REFUSE)

    @property
    def pending(self) -> tuple[DriftRow, ...]:
        """Changes not carried out; in a dry run, all."""
        return tuple(row for row in self.rows if row.action in CHANGES and not row.done)

    @property
    def document(self) -> SyncDocument:
        return SyncDocument(mirror=self.mirror, dry_run=self.dry_run, parts=self.parts, rows=self.rows)


def survey(link: Link, state: State, *, only: frozenset[Part] = ALL_PARTS) -> SyncReport:
    """Changes nothing."""
    return _sync(link, state, None, only)


def sync(
    link: Link,
    log: Log,
    *,
    only: frozenset[Part] = ALL_PARTS,
    run_id: str | None = None,
) -> SyncReport:
    """HeldByRun while another run than `run_id` holds the mirror. May be repeated."""
    active = log.state.active_run(link.mirror.name)
    if active is not None and active.id != run_id:
        raise HeldByRun(f"mirror {link.mirror.name}: sync", [held_by(active, conducted(log.state, active))])
    return _sync(link, log.state, log, only, run_id)


def _sync(link: Link, state: State, log: Log | None, only: frozenset[Part], run_id: str | None = None) -> SyncReport:
    rows: list[DriftRow] = []
    with ClusterClient(link.source) as source, ClusterClient(link.destination) as destination:
        check_identity(link, source, destination)
        chosen = mirror_topics(link, source)
        stopped = stopped_topics(link, state)
        placement = create_missing(
            link, state, source, destination, chosen, dry_run=log is None or Part.TOPICS not in only
        )
        if Part.TOPICS in only:
            rows += [*placement.rows, *hidden_rows(link, state, source, chosen)]
            rows += [_stopped(name) for name in sorted(stopped & chosen.keys())]
        ready = placement.ready
        # Copies of topics recreated on the source keep their rights and group offsets.
        kept = {**ready, **{n: chosen[n] for n, kind in placement.kinds.items() if kind is FailureKind.RECREATED}}
        if Part.CONFIGS in only:
            rows += left_out_rows(placement) if log is None else []
            found, remember = sync_configs(link, state, source, destination, ready, dry_run=log is None)
            rows += found
            if log is not None and remember:
                log.put(*remember)
        # A mirror without topics left manages no ACLs and offsets any more.
        if Part.ACLS in only and (kept or not stopped):
            groups = groups_in_scope(link, source)
            rows += sync_acls(link, state, log, source, destination, _names(kept, chosen, placement), groups)
        if Part.GROUPS in only and (kept or not stopped):
            began = now_ms()
            if log is None:
                rows += sync_groups(link, state, source, destination, kept, None).rows
            else:
                still_ours = None if run_id else partial(_still_ours, link, frozenset(ready))
                with GroupCommits(destination, still_ours) as commits:
                    followed = run_id is None and _followed(link, log.state, began)
                    synced = sync_groups(link, log.state, source, destination, kept, commits, followed=followed)
                rows += synced.rows
                _remember_groups(link, log, began, synced.records)
    for row in rows:
        if row.done or row.action in (Action.SKIP, Action.REFUSE):
            did = row.action if row.done else f"{row.action}, since {row.reason}"
            _log.info("%s %s: %s", row.part, row.subject, did, mirror=link.mirror.name)
    return SyncReport(
        mirror=link.mirror.name,
        dry_run=log is None,
        parts=tuple(part for part in Part if part in only),
        rows=tuple(rows),
        topics=frozenset(ready),
    )


def _still_ours(link: Link, topics: frozenset[str]) -> None:
    """Raises when a run has begun, or a topic was stopped, meanwhile."""
    state, name = read_whole(link.destination), link.mirror.name
    active = state.active_run(name)
    if active is not None:
        raise HeldByRun(f"mirror {name}: sync", [held_by(active, conducted(state, active))])
    gone = topics & stopped_topics(link, state)
    if gone:
        raise Refused(f"mirror {name}: sync", [f"topic {topic} was stopped meanwhile" for topic in sorted(gone)])


def _followed(link: Link, state: State, now: int) -> bool:
    seen = state.groups.get(link.mirror.name)
    return seen is not None and seen.followed and now - seen.synced_ms < FRESH_S * 1000


def _remember_groups(link: Link, log: Log, began_ms: int, records: Iterable[Record | Forget]) -> None:
    """A follower's record is newer than ours."""
    seen, told = log.state.groups.get(link.mirror.name), list(records)
    if seen is None or seen.synced_ms < began_ms:
        told.append(GroupsSeen(mirror=link.mirror.name, synced_ms=began_ms, followed=False))
    if told:
        log.put(*told)


def _names(ready: Mapping[str, TopicView], chosen: Mapping[str, TopicView], placement: Placement) -> frozenset[str]:
    coming = {row.subject for row in placement.rows if row.action is Action.CREATE}
    return frozenset(ready) | (coming & chosen.keys())


def _stopped(name: str) -> DriftRow:
    return DriftRow(
        part=Part.TOPICS,
        subject=name,
        source="",
        destination="",
        action=Action.SKIP,
        reason="was stopped: it is the applications' topic now, and nothing of it is synced",
    )
