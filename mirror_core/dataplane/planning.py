"""Plans the next epoch: which partitions, their lag, what is new, what has failed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from mirror_core.dataplane.again import again_ms, tried_again
from mirror_core.decide.deletions import counted
from mirror_core.kafka.client import ClusterClient, TopicView
from mirror_core.kafka.existing import hidden_among, undescribed
from mirror_core.kafka.offsets import Point, known_offsets, list_offsets
from mirror_core.kafka.placing import Heard, heard_ids
from mirror_core.kafka.topics import delete_records
from mirror_core.model.clock import now_ms
from mirror_core.model.copying import Aligned, Assigned, Failure
from mirror_core.model.errors import RemoteFault, Unreachable
from mirror_core.model.limits import LIMITS
from mirror_core.model.mirror import FailureKind, PartitionState, PartitionStatus
from mirror_core.model.names import Offset, Partition
from mirror_core.model.proof import Proved
from mirror_core.state.link import Link
from mirror_core.state.records import PartitionRecord, State
from mirror_core.state.table import Event, after
from mirror_core.sync.topics import Placement, create_missing, mirror_topics

COPIED = frozenset({PartitionState.LOG_ALIGNMENT, PartitionState.MIRRORING})
_known = partial(known_offsets, within_s=LIMITS.copied_leader_s)


@dataclass(frozen=True, slots=True)
class Work:
    partitions: Mapping[Partition, Assigned]
    lags: Mapping[Partition, int]
    """The source's last stable offset minus position, where both are known."""
    ends: Mapping[Partition, Offset]
    changes: tuple[PartitionRecord, ...]
    failed: Mapping[Partition, str]
    undecided: tuple[str, ...] = ()
    """Topics left out because it is unknown whether they exist: text for operators."""


@dataclass(slots=True)
class Planner:
    """Uses the control principal. Remembers topics missed once: metadata may lag."""

    link: Link
    source: ClusterClient
    destination: ClusterClient
    absent: set[str] = field(default_factory=set)
    began: dict[Partition, Offset] = field(default_factory=dict)
    unmoved: Mapping[Partition, str] = field(default_factory=dict)
    here: Mapping[str, TopicView] | None = None
    there: Mapping[str, TopicView] | None = None
    """Leaders by the last plan's metadata; None: request them."""
    shorter: set[Partition] = field(default_factory=set)
    undecided: list[str] = field(default_factory=list)

    def plan(self, state: State, *, all_ends: bool) -> Work:
        """Creates missing topics; returns what to copy.

        `all_ends`: every end is needed; raises Unreachable for a partition without a leader. Otherwise such partitions
        are left to their tasks, and hold up no others.
        """
        self.undecided = []
        known = state.partitions.get(self.link.mirror.name, {})
        topics = mirror_topics(self.link, self.source)
        placement = create_missing(self.link, state, self.source, self.destination, topics)
        again = tried_again(known, COPIED, now_ms(), held=state.active_run(self.link.mirror.name) is not None)
        fresh: dict[Partition, PartitionStatus] = {}
        for name, view in topics.items():
            for index in view.partitions:
                partition = Partition(name, index)
                fresh[partition] = _status(partition, again.get(partition, known.get(partition)), view, placement)
        self._leave_disputed(known, fresh)
        self._add_unlisted(known, topics, fresh, once=all_ends)
        self._begin(fresh)
        copied = [p for p, s in fresh.items() if s.state in COPIED]
        # Reuse the leaders just described unless topics were created: metadata costs more than offsets.
        made = all_ends or bool(placement.rows)
        self.here, self.there = (None, None) if made else (placement.ready, topics)
        # Positions first, so that ends are not below them.
        if all_ends:
            positions = list_offsets(self.destination, copied, Point.LOG_END)
            ends = list_offsets(self.source, copied, Point.STABLE_END)
        else:
            positions = _known(self.destination, copied, Point.LOG_END, led=self.here)
            ends = _known(self.source, copied, Point.STABLE_END, led=self.there)
        self._note_source_starts(fresh, positions, ends)
        return Work(
            partitions={p: assigned(fresh[p]) for p in copied},
            lags={p: end - positions[p] for p, end in ends.items() if p in positions},
            ends=ends,
            changes=tuple(PartitionRecord(self.link.mirror.name, s) for s in _changed(known, fresh)),
            failed={p: s.reason or "" for p, s in fresh.items() if s.state is PartitionState.FAILED},
            undecided=tuple(self.undecided),
        )

    def follow_log_start(self, partitions: Iterable[Partition]) -> list[Failure]:
        """Moves the destination's log starts up to the source's; it must not trim by its own clock.

        Returns what somebody else trimmed there, seen twice: a new leader may not know at once how far the old one had
        trimmed.
        """
        wanted = list(partitions)
        if not wanted:
            return []
        # In this order: what was trimmed here was trimmed there before.
        here = _known(self.destination, wanted, Point.START, led=self.here)
        there = _known(self.source, wanted, Point.START, led=self.there)
        starts = {p: (ours, theirs) for p, ours in here.items() if (theirs := there.get(p)) is not None}
        moved = {p for p, (ours, theirs) in starts.items() if ours < theirs}
        shorter = {p for p, (ours, theirs) in starts.items() if ours > theirs and ours > self.began.get(p, ours)}
        positions = _known(self.destination, moved | shorter, Point.HIGH_WATERMARK, led=self.here)
        shorter &= positions.keys()
        sure, self.shorter = sorted(shorter & self.shorter), shorter
        behind = {p: there[p] for p in sorted(moved & positions.keys()) if there[p] <= positions[p]}
        self.unmoved = {}
        try:
            if behind:
                delete_records(self.destination, behind)
        except Unreachable:
            raise
        except RemoteFault as error:  # the others are moved
            self.unmoved = {p: str(why) for p, why in error.refused.items()}
        return [_deleted(self.destination.name, p, there[p], here[p]) for p in sure]

    def _begin(self, fresh: dict[Partition, PartitionStatus]) -> None:
        """Records initial log starts in the state topic before the first record is copied, so that later
        trimming is found."""
        copied = {p: s for p, s in fresh.items() if s.state in COPIED}
        unknown = [p for p, s in copied.items() if s.began is None]
        starts = _known(self.destination, unknown, Point.START) if unknown else {}
        fresh.update({p: replace(copied[p], began=start) for p, start in starts.items()})
        self.began = {p: s.began for p in copied if (s := fresh[p]).began is not None}

    def _note_source_starts(
        self,
        fresh: dict[Partition, PartitionStatus],
        positions: Mapping[Partition, Offset],
        ends: Mapping[Partition, Offset],
    ) -> None:
        """Where no task has reported it and the copy has reached it. What the source trims from now on is
        counted."""
        unknown = [p for p, s in fresh.items() if s.source_start is None and p in positions and p in ends]
        starts = _known(self.source, unknown, Point.START) if unknown else {}
        reached = {p: start for p, start in starts.items() if start <= positions[p]}
        fresh.update({p: replace(fresh[p], source_start=start) for p, start in reached.items()})

    def hanging(self) -> str:
        names = [f"cluster {c.name}: broker {b}" for c in (self.source, self.destination) for b in sorted(c.silent)]
        return f" ({', '.join(names)})" if names else ""

    def _leave_disputed(
        self, known: Mapping[Partition, PartitionStatus], fresh: dict[Partition, PartitionStatus]
    ) -> None:
        """Topics that one broker reports as replaced and another does not, or may not: the next plan checks
        again."""
        new = [(s.partition, s.kind) for s in _changed(known, fresh)]
        for client, kind in ((self.source, FailureKind.RECREATED), (self.destination, FailureKind.REPLACED)):
            mine = [p for p, what in new if what is kind]
            heard = heard_ids(client, {p.topic for p in mine}) if mine else Heard({}, ())
            for partition in mine:
                old = known.get(partition)
                was = old and (old.source_topic_id if client is self.source else old.destination_topic_id)
                if old and was in heard.ids[partition.topic]:
                    fresh[partition] = old
                elif heard.silent:
                    del fresh[partition]
            if heard.silent:
                self._leave_undecided(client, {p.topic for p in mine if p not in fresh}, heard)

    def _add_unlisted(
        self,
        known: Mapping[Partition, PartitionStatus],
        topics: Mapping[str, TopicView],
        fresh: dict[Partition, PartitionStatus],
        *,
        once: bool,
    ) -> None:
        """Copied topics missing from the listing twice: a broker without controllers may list old metadata.

        What another broker knows is copied. It is deleted once all brokers say so. `once`: there is no next plan.
        """
        missing = {p.topic for p, s in known.items() if s.state in COPIED and p.topic not in topics}
        sure = missing if once else missing & self.absent
        self.absent = missing
        if not sure:
            return
        heard = heard_ids(self.source, sure)
        mine = {p: s for p, s in known.items() if p.topic in sure and s.state in COPIED}
        there = {p: s for p, s in mine.items() if s.source_topic_id in heard.ids[p.topic]}
        fresh.update(there)
        # Listings hide topics without DESCRIBE, too.
        denied = hidden_among(self.source, {p.topic for p in mine.keys() - there.keys()})
        for partition in mine.keys() - there.keys():
            topic = partition.topic
            if topic in denied:
                words = str(undescribed(self.source, [topic]))
                fresh[partition] = _failed(mine[partition], words, FailureKind.DENIED)
            elif not heard.silent:
                words = f"cluster {self.source.name}: topic {topic} is deleted"
                fresh[partition] = _failed(mine[partition], words, FailureKind.GONE)
        if left := {p.topic for p in mine if p not in fresh}:
            self._leave_undecided(self.source, left, heard)
        if there or left:
            self.source.ask_another()

    def _leave_undecided(self, client: ClusterClient, topics: Collection[str], heard: Heard) -> None:
        self.undecided += [f"cluster {client.name}, {heard.undecided(topic)}" for topic in sorted(topics)]


def _status(
    partition: Partition, old: PartitionStatus | None, source: TopicView, placement: Placement
) -> PartitionStatus:
    here, refusal = placement.ready.get(partition.topic), placement.refused.get(partition.topic)
    if old is not None and old.state not in COPIED:
        return old
    if old is not None and old.source_topic_id != source.id:
        return _failed(
            old,
            f"the source topic {partition.topic} was deleted and created anew under the same name (topic id "
            f"{source.id}, was {old.source_topic_id})",
            FailureKind.RECREATED,
        )
    if old is not None and here is not None and old.destination_topic_id != here.id:
        return _failed(
            old,
            f"the mirror topic {partition.topic} was deleted or replaced on the destination (topic id {here.id}, was "
            f"{old.destination_topic_id})",
            FailureKind.REPLACED,
        )
    new = old or PartitionStatus(
        partition=partition,
        state=after(PartitionState.UNKNOWN, Event.START, Event.ALIGNED),
        source_topic_id=source.id,
        destination_topic_id=here.id if here else "",
        source_epoch=source.partitions[partition.index].epoch,  # nothing is copied yet that could differ
    )
    return _failed(new, refusal, placement.kinds.get(partition.topic, FailureKind.REFUSED)) if refusal else new


def _changed(
    known: Mapping[Partition, PartitionStatus], fresh: Mapping[Partition, PartitionStatus]
) -> list[PartitionStatus]:
    return [s for p, s in fresh.items() if s is not (old := known.get(p)) and s != old]


def _failed(status: PartitionStatus, reason: str, kind: FailureKind) -> PartitionStatus:
    return fail(status, Failure(partition=status.partition, reason=reason, offset=None, kind=kind))


def _deleted(cluster: str, partition: Partition, there: Offset, here: Offset) -> Failure:
    reason = (
        f"cluster {cluster}, {partition}: records below {here} were deleted there, and the source still has those from "
        f"{there} on: by a retention on the mirror topic (retention.ms, retention.bytes), or by hand (DeleteRecords)"
    )
    return Failure(partition=partition, reason=reason, offset=there, kind=FailureKind.DELETED)


def aligned(status: PartitionStatus, found: Aligned) -> PartitionStatus:
    state = after(status.state, Event.ALIGNED) if status.state is PartitionState.LOG_ALIGNMENT else status.state
    start = found.source_start if status.source_start is None else status.source_start
    return replace(status, state=state, source_epoch=found.source_epoch, source_start=start, filled=found.filled)


def fail(status: PartitionStatus, failure: Failure) -> PartitionStatus:
    return replace(
        status,
        state=after(status.state, Event.FAIL),
        reason=failure.reason,
        failed_at=failure.offset,
        kind=failure.kind,
        again_ms=again_ms(failure.kind, now_ms()),
    )


def assigned(status: PartitionStatus, until: Offset | None = None, proved: Proved | None = None) -> Assigned:
    """`until`: the next offset to copy at which it is done."""
    return Assigned(
        partition=status.partition,
        source_topic_id=status.source_topic_id,
        destination_topic_id=status.destination_topic_id,
        until=until,
        source_epoch=status.source_epoch,
        proved_end=None if proved is None else Offset(proved.end),
        proved_epoch=-1 if proved is None else proved.epoch,
        counted=counted(status),
    )
