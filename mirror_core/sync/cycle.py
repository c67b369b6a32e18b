"""Topics, their settings, access rights and groups' offsets: compared, and brought over. Drift is a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from mirror_core.kafka.client import ClusterClient, TopicView
from mirror_core.model.drift import CHANGES, Deed, DriftRow, Part
from mirror_core.model.errors import Refused
from mirror_core.model.mirror import Mirror
from mirror_core.state.journal import Log
from mirror_core.state.link import Link
from mirror_core.state.records import State
from mirror_core.state.writer import StateWriter
from mirror_core.sync.access import sync_acls
from mirror_core.sync.groups import groups_in_scope, sync_groups
from mirror_core.sync.topics import Placement, create_missing, mirror_topics, stopped_topics, sync_configs

__all__ = [
    "ALL_PARTS",
    "Placement",
    "SyncReport",
    "create_missing",
    "mirror_topics",
    "refuse_beside_run",
    "survey",
    "sync",
]

ALL_PARTS: Final = frozenset(Part)


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncReport:
    """What differed, and what was done about it; a row for every group in scope, also when nothing was to be done."""

    mirror: str
    dry_run: bool
    parts: tuple[Part, ...]
    rows: tuple[DriftRow, ...]

    @property
    def refused(self) -> tuple[DriftRow, ...]:
        """Rows that need a person."""
        return tuple(row for row in self.rows if row.deed is Deed.REFUSE)

    @property
    def pending(self) -> tuple[DriftRow, ...]:
        """Changes that were not carried out; all of them, in a dry run."""
        return tuple(row for row in self.rows if row.deed in CHANGES and not row.done)

    def as_json(self) -> dict[str, Any]:
        """For machines: a stable shape."""
        return {
            "mirror": self.mirror,
            "dry_run": self.dry_run,
            "parts": [str(part) for part in self.parts],
            "rows": [asdict(row) for row in self.rows],
        }


def survey(link: Link, state: State, *, only: frozenset[Part] = ALL_PARTS) -> SyncReport:
    """What a sync would do now. Takes nothing over and writes nothing."""
    return _sync(link, state, None, only)


def sync(
    link: Link,
    writer: StateWriter,
    *,
    only: frozenset[Part] = ALL_PARTS,
    dry_run: bool = False,
    run_id: str | None = None,
) -> SyncReport:
    """Bring the destination in line with the source. Refused while a run holds the mirror, unless it is `run_id`'s.

    Goes by `writer.state`, which is what the state topic said when the writer was entered, and what it wrote since.
    Topics that this mirror has stopped (given to the applications) are left alone. May be repeated at any time.
    """
    refuse_beside_run(writer.state, link.mirror, run_id)
    return _sync(link, writer.state, None if dry_run else writer, only)


def refuse_beside_run(state: State, mirror: Mirror, run_id: str | None = None) -> None:
    """Refused when another run than `run_id` holds the mirror. Ask before becoming the writer: that fences the run."""
    active = state.active_run(mirror.name)
    if active is not None and active.id != run_id:
        raise Refused(
            f"mirror {mirror.name} cannot be synced now",
            [f"{active.plan.kind} {active.id} holds it: wait for its end, or resume or abort it"],
        )


def _sync(link: Link, state: State, log: Log | None, only: frozenset[Part]) -> SyncReport:
    rows: list[DriftRow] = []
    with ClusterClient(link.source) as source, ClusterClient(link.destination) as destination:
        _check_identity(link, source, destination)
        chosen = mirror_topics(link, source)
        stopped = stopped_topics(link, state)
        placement = create_missing(
            link, state, source, destination, chosen, dry_run=log is None or Part.TOPICS not in only
        )
        if Part.TOPICS in only:
            rows += placement.rows
            rows += [_stopped(name) for name in sorted(stopped & chosen.keys())]
        ready = placement.ready
        if Part.CONFIGS in only:
            found, remember = sync_configs(link, state, source, destination, ready, dry_run=log is None)
            rows += found
            if log is not None and remember:
                log.put(*remember)
        # A mirror that has given up all its topics has no say any more in who may do what, and where groups stand.
        if Part.ACLS in only and (ready or not stopped):
            groups = groups_in_scope(link, source)
            rows += sync_acls(link, state, log, source, destination, _names(ready, chosen, placement), groups)
        if Part.GROUPS in only and (ready or not stopped):
            rows += sync_groups(link, source, destination, ready, dry_run=log is None)
    parts = tuple(part for part in Part if part in only)
    return SyncReport(mirror=link.mirror.name, dry_run=log is None, parts=parts, rows=tuple(rows))


def _names(ready: Mapping[str, TopicView], chosen: Mapping[str, TopicView], placement: Placement) -> frozenset[str]:
    """Topics whose access rights are the mirror's business: those there, and those about to be created."""
    coming = {row.subject for row in placement.rows if row.deed is Deed.CREATE}
    return frozenset(ready) | (coming & chosen.keys())


def _check_identity(link: Link, source: ClusterClient, destination: ClusterClient) -> None:
    """A cluster id is for life: another one under the same name is another cluster, with other topics."""
    mirror = link.mirror
    sides = ((source, mirror.source_id), (destination, mirror.destination_id))
    reasons = [
        f"cluster {client.name} is {found} now, it was {recorded} when the mirror was created: correct the address in "
        f"{link.config.path}, or delete the mirror and create it anew"
        for client, recorded in sides
        if (found := client.metadata(()).cluster_id) != recorded
    ]
    if reasons:
        raise Refused(f"mirror {mirror.name} cannot be synced", reasons)


def _stopped(name: str) -> DriftRow:
    return DriftRow(
        part=Part.TOPICS,
        subject=name,
        source="",
        destination="",
        deed=Deed.SKIP,
        reason="was stopped: it is the applications' topic now, and nothing of it is synced",
    )
