"""Plans the next epoch.

Retries FAILED partitions whose cause may pass by itself, after another look at both logs. Where logs differ, or another
topic took the place, operators decide.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from mirror_core.decide.deletion_hold import LogStarts, decide_holds, find_newer_starts
from mirror_core.decide.failure_remedies import make_deletion_failure, make_written_failure
from mirror_core.decide.gaps_and_resume import find_counted_end
from mirror_core.decide.mirror_change import ENDED_STATES, list_leaving_topics
from mirror_core.decide.task_assignment import (
    assign_partitions,
    share_rate,
)
from mirror_core.kafka.client import ClusterClient, TopicMetadata
from mirror_core.kafka.log_offsets import OffsetPoint, list_known_offsets, list_offsets
from mirror_core.kafka.reassignment import TopicIds, fetch_topic_ids
from mirror_core.kafka.topic_existence import (
    check_presence,
    describe_denied_error,
    find_existing_topics,
    find_hidden_topics,
)
from mirror_core.kafka.topics import delete_records
from mirror_core.model.errors import RemoteFault, Unreachable
from mirror_core.model.logs import get_logger
from mirror_core.model.mirror import DesiredState, FailureKind, HeldDeletion, Mirror, PartitionState, PartitionStatus
from mirror_core.model.names import Offset, Partition
from mirror_core.model.parity_verdict import VerifiedEnd
from mirror_core.model.task_messages import (
    AlignedPartition,
    Assignment,
    DriverAddress,
    PartitionAssignment,
    PartitionFailure,
)
from mirror_core.model.text import format_time
from mirror_core.model.timing import TIMEOUTS, now_ms
from mirror_core.state.mirror_link import MirrorLink
from mirror_core.state.partition_transitions import PartitionEvent, apply_events
from mirror_core.state.state_records import STATE_TOPIC, PartitionRecord, State
from mirror_core.sync.mirror_topics import TopicPlacement, create_missing_topics, list_mirror_topics

RETRY_INTERVAL_S: Final = 300.0
RETRIED_KINDS: Final = frozenset({FailureKind.DENIED, FailureKind.REFUSED})


def compute_retry_ms(kind: FailureKind, at_ms: int) -> int | None:
    """Returns None where operators see to it."""
    return at_ms + int(RETRY_INTERVAL_S * 1000) if kind in RETRIED_KINDS else None


def select_retries(
    statuses: Mapping[Partition, PartitionStatus],
    copied_states: frozenset[PartitionState],
    at_ms: int,
    *,
    is_held: bool,
    paused_topics: Collection[str],
) -> dict[Partition, PartitionStatus | None]:
    """FAILED partitions that are due, as they restart; None: as if never seen, since nothing was copied.

    Empty while a run holds the mirror (`is_held`): its plan relies on which partitions were FAILED. Of a topic of which
    nothing is copied (`copied_states`) only one is tried: a missing right is missing for all.
    """
    if is_held:
        return {}
    open_topics = {p.topic for p, status in statuses.items() if status.state in copied_states}
    chosen, trial_topics = dict[Partition, PartitionStatus | None](), set[str]()
    due = (p for p, status in statuses.items() if p.topic not in paused_topics and _is_retry_due(status, at_ms))
    for partition in sorted(due):
        is_obstructed = _is_obstructed(statuses[partition])
        if is_obstructed or partition.topic in open_topics or partition.topic not in trial_topics:
            chosen[partition] = reset_failed(statuses[partition])
            trial_topics.add(partition.topic)
    return chosen


def format_failure_reason(status: PartitionStatus, mirror: Mirror) -> str | None:
    is_copied = mirror.desired is DesiredState.STARTED and status.partition.topic not in mirror.paused_topics
    if status.state is not PartitionState.FAILED or status.retry_at_ms is None or not is_copied:
        return status.reason
    return f"{status.reason}. The data plane tries again: {format_time(status.retry_at_ms)}"


def _is_retry_due(status: PartitionStatus, at_ms: int) -> bool:
    """Without a time: now. So is a time further away than any was: the clock was set back."""
    is_retried = status.kind in RETRIED_KINDS or _is_obstructed(status)
    is_due = status.retry_at_ms is None or not 0 < status.retry_at_ms - at_ms <= RETRY_INTERVAL_S * 1000
    return status.state is PartitionState.FAILED and is_retried and is_due


def _is_obstructed(status: PartitionStatus) -> bool:
    """Nothing was ever copied: the plan alone finds out whether the place is free."""
    return status.kind is FailureKind.OCCUPIED and not status.destination_topic_id


def reset_failed(status: PartitionStatus) -> PartitionStatus | None:
    """As it restarts. Topic ids stay, so that a replaced topic is noticed.

    None: as if never seen.
    """
    if not status.destination_topic_id:
        return None
    state = apply_events(status.state, PartitionEvent.RECOVER)
    return replace(status, state=state, reason=None, failed_at=None, kind=None, retry_at_ms=None)


COPIED_STATES = frozenset({PartitionState.LOG_ALIGNMENT, PartitionState.MIRRORING})
_fetch_known_offsets = partial(list_known_offsets, within_s=TIMEOUTS.copy_leader_s)


@dataclass(frozen=True, slots=True)
class CopyPlan:
    partitions: Mapping[Partition, PartitionAssignment]
    lags: Mapping[Partition, int]
    """Last stable offset of the source minus position, where both are known."""
    ends: Mapping[Partition, Offset]
    changes: tuple[PartitionRecord, ...]
    failed: Mapping[Partition, str]
    undecided_topics: tuple[str, ...] = ()
    """Left out because it is unknown whether they exist: text for operators."""


@dataclass(slots=True)
class Planner:
    """Uses the control principal. Remembers topics missed once: metadata may lag."""

    link: MirrorLink
    source: ClusterClient
    destination: ClusterClient
    missing_topics: set[str] = field(default_factory=set)
    initial_starts: dict[Partition, Offset] = field(default_factory=dict)
    unmoved_starts: Mapping[Partition, str] = field(default_factory=dict)
    destination_leaders: Mapping[str, TopicMetadata] | None = None
    source_leaders: Mapping[str, TopicMetadata] | None = None
    """By the last plan's metadata; None: request them."""
    trimmed_early: set[Partition] = field(default_factory=set)
    undecided_topics: list[str] = field(default_factory=list)
    hold_ms: int = 0
    read_broker_clock_ms: Callable[[], int | None] = lambda: None
    """By the destination's brokers: a host's clock that is set ahead would end a hold."""
    followed_starts: dict[Partition, Offset] = field(default_factory=dict)
    destination_starts: Mapping[Partition, Offset] = field(default_factory=dict)
    """As last read, also where the source does not answer."""
    changed_starts: Mapping[Partition, Offset] = field(default_factory=dict)
    """To be recorded as `PartitionStatus.followed_start`, before log starts are moved."""
    due_starts: Mapping[Partition, Offset] = field(default_factory=dict)
    held_deletions: dict[Partition, HeldDeletion] = field(default_factory=dict)
    changed_holds: Mapping[Partition, HeldDeletion | None] = field(default_factory=dict)
    """To be recorded. A deletion follows only what an earlier call left here."""
    leaving: set[Partition] = field(default_factory=set)
    """Never given to a task again, also where a plan was not recorded."""
    may_be_written: Callable[[Partition], bool] = lambda partition: True
    """A task may still append to it."""

    def plan(self, state: State, *, all_ends: bool) -> CopyPlan:
        """Creates missing topics; returns what to copy.

        `all_ends`: every end is needed; raises Unreachable for a partition without a leader. Otherwise such partitions
        are left to their tasks.
        """
        self.undecided_topics = []
        mirror = self.link.mirror.name
        if (current := state.mirrors.get(mirror, self.link.mirror)) != self.link.mirror:
            self.link = replace(self.link, mirror=current)
        all_recorded = state.partitions.get(mirror, {})
        leaving_topics = list_leaving_topics(self.link.mirror, all_recorded)
        leaving = {p: status for p, status in all_recorded.items() if p.topic in leaving_topics}
        recorded = {p: status for p, status in all_recorded.items() if p not in leaving} if leaving else all_recorded
        topics = list_mirror_topics(self.link, self.source)
        placement = create_missing_topics(self.link, state, self.source, self.destination, topics)
        paused_topics = frozenset(self.link.mirror.paused_topics)
        is_held = state.active_run(mirror) is not None
        retries = select_retries(recorded, COPIED_STATES, now_ms(), is_held=is_held, paused_topics=paused_topics)
        planned: dict[Partition, PartitionStatus] = {}
        for name, description in topics.items():
            for index in description.partitions:
                partition = Partition(name, index)
                planned[partition] = _plan_status(
                    partition, retries.get(partition, recorded.get(partition)), description, placement
                )
        planned |= _fail_lost_partitions(recorded, planned, placement)
        self._skip_disputed(recorded, planned)
        self._refuse_written_newcomers(recorded, planned, all_ends=all_ends)
        self._add_unlisted(recorded, topics, planned, is_only_plan=all_ends)
        self._note_initial_starts(planned)
        copied = [p for p, s in planned.items() if s.state in COPIED_STATES and p.topic not in paused_topics]
        self.followed_starts = {p: start for p in copied if (start := planned[p].followed_start) is not None}
        self.held_deletions = {p: held for p in copied if (held := planned[p].held_deletion) is not None}
        # Reuse the leaders just described unless topics were created: metadata costs more than offsets.
        must_refresh = all_ends or bool(placement.rows)
        self.destination_leaders, self.source_leaders = (None, None) if must_refresh else (placement.ready, topics)
        # Positions first, so that ends are not below them.
        if all_ends:
            positions = list_offsets(self.destination, copied, OffsetPoint.LOG_END)
            ends = list_offsets(self.source, copied, OffsetPoint.STABLE_END)
        else:
            positions = _fetch_known_offsets(
                self.destination, copied, OffsetPoint.LOG_END, topics=self.destination_leaders
            )
            ends = _fetch_known_offsets(self.source, copied, OffsetPoint.STABLE_END, topics=self.source_leaders)
        self._note_source_starts(planned, positions, ends)
        self.leaving.difference_update(planned)
        self.leaving.update(leaving)
        if leaving and not is_held:  # a run holds which partitions there are
            planned |= self._plan_departures(leaving)
        return CopyPlan(
            partitions={p: to_assigned(planned[p], hold_ms=self.hold_ms) for p in copied},
            lags={p: end - positions[p] for p, end in ends.items() if p in positions},
            ends=ends,
            changes=tuple(
                PartitionRecord(self.link.mirror.name, status) for status in _find_changed(all_recorded, planned)
            ),
            failed={p: status.reason or "" for p, status in planned.items() if status.state is PartitionState.FAILED},
            undecided_topics=tuple(self.undecided_topics),
        )

    def _plan_departures(self, leaving: Mapping[Partition, PartitionStatus]) -> dict[Partition, PartitionStatus]:
        """STOPPING first. STOPPED with an LMO at a later plan, once no task can append."""
        planned = {p: to_stopping(status) for p, status in leaving.items()}
        quiet = {
            p: status
            for p, status in leaving.items()
            if status.state is PartitionState.STOPPING and not self.may_be_written(p)
        }
        return {**planned, **stop_departed(self.destination, quiet)}

    def follow_log_start(self, partitions: Iterable[Partition]) -> list[PartitionFailure]:
        """Finds the destination's log starts that are to be moved up to the source's (`move_log_starts`).

        Returns what somebody else trimmed there, seen twice: a new leader may not know at once how far the old one had
        trimmed.
        """
        wanted, self.changed_holds, self.changed_starts, self.due_starts = list(partitions), {}, {}, {}
        if not wanted:
            return []
        # In this order: what was trimmed here was trimmed there before.
        self.destination_starts = destination_starts = _fetch_known_offsets(
            self.destination, wanted, OffsetPoint.START, topics=self.destination_leaders
        )
        source_starts = _fetch_known_offsets(self.source, wanted, OffsetPoint.START, topics=self.source_leaders)
        starts = {p: (start, source_starts[p]) for p, start in destination_starts.items() if p in source_starts}
        self.changed_starts = find_newer_starts(source_starts, self.initial_starts, self.followed_starts)
        to_move = {p for p, (destination_start, source_start) in starts.items() if destination_start < source_start}
        trimmed_early = {
            p
            for p, (destination_start, source_start) in starts.items()
            if destination_start > source_start and destination_start > self.initial_starts.get(p, destination_start)
        }
        positions = _fetch_known_offsets(
            self.destination, to_move | trimmed_early, OffsetPoint.HIGH_WATERMARK, topics=self.destination_leaders
        )
        trimmed_early &= positions.keys()
        confirmed, self.trimmed_early = sorted(trimmed_early & self.trimmed_early), trimmed_early
        behind = {p: source_starts[p] for p in sorted(to_move & positions.keys()) if source_starts[p] <= positions[p]}
        self.unmoved_starts = {}
        levelled = self.held_deletions.keys() & starts.keys() - to_move
        self.due_starts = self._apply_hold({p: LogStarts(*starts[p]) for p in behind.keys() | levelled})
        return [
            make_deletion_failure(self.destination.name, p, source_starts[p], destination_starts[p]) for p in confirmed
        ]

    def move_log_starts(self) -> None:
        """After the hold, and after `changed_starts` are recorded: the destination must not trim by its own clock."""
        self.followed_starts |= self.changed_starts  # there may be no plan before the next call
        try:
            if self.due_starts:
                delete_records(self.destination, self.due_starts)
        except Unreachable:
            raise
        except RemoteFault as error:  # the others are moved
            self.unmoved_starts = {p: str(reason) for p, reason in error.refused.items()}

    def _apply_hold(self, starts: Mapping[Partition, LogStarts]) -> Mapping[Partition, Offset]:
        clock_ms = self.read_broker_clock_ms() if self.hold_ms and starts else None
        decisions = decide_holds(self.held_deletions, starts, now_ms=clock_ms, hold_ms=self.hold_ms)
        self.changed_holds = decisions.changed
        recorded = {**self.held_deletions, **decisions.changed}  # there may be no plan before the next call
        self.held_deletions = {p: held for p, held in recorded.items() if held is not None}
        if self.hold_ms and starts and clock_ms is None:
            self.unmoved_starts = {
                min(starts): f"what {self.source.name} has deleted stays on {self.destination.name}: since when it is"
                f" held is not known, because topic {STATE_TOPIC} there does not store the brokers' time. Set"
                " message.timestamp.type=LogAppendTime on it"
            }
        return decisions.due

    def _note_initial_starts(self, planned: dict[Partition, PartitionStatus]) -> None:
        """In the state topic, before the first record is copied, so that later trimming is found."""
        copied = {p: status for p, status in planned.items() if status.state in COPIED_STATES}
        unknown = [p for p, status in copied.items() if status.initial_log_start is None]
        starts = _fetch_known_offsets(self.destination, unknown, OffsetPoint.START) if unknown else {}
        for p, start in starts.items():
            planned[p] = replace(copied[p], initial_log_start=start, followed_start=start)
        self.initial_starts = {
            p: status.initial_log_start for p in copied if (status := planned[p]).initial_log_start is not None
        }

    def _note_source_starts(
        self,
        planned: dict[Partition, PartitionStatus],
        positions: Mapping[Partition, Offset],
        ends: Mapping[Partition, Offset],
    ) -> None:
        """Where no task has reported it and the copy has reached it. What it trims from now on is counted."""
        unknown = [p for p, status in planned.items() if status.source_start is None and p in positions and p in ends]
        starts = _fetch_known_offsets(self.source, unknown, OffsetPoint.START) if unknown else {}
        reached = {p: start for p, start in starts.items() if start <= positions[p]}
        planned.update({p: replace(planned[p], source_start=start) for p, start in reached.items()})

    def format_silent_brokers(self) -> str:
        names = [
            f"cluster {c.name}: broker {b}" for c in (self.source, self.destination) for b in sorted(c.timed_out_at)
        ]
        return f" ({', '.join(names)})" if names else ""

    def _skip_disputed(
        self, recorded: Mapping[Partition, PartitionStatus], planned: dict[Partition, PartitionStatus]
    ) -> None:
        """One broker reports these topics as replaced and another does not: the next plan checks again."""
        changed = [(status.partition, status.kind) for status in _find_changed(recorded, planned)]
        for client, kind in ((self.source, FailureKind.RECREATED), (self.destination, FailureKind.REPLACED)):
            disputed = [p for p, changed_kind in changed if changed_kind is kind]
            topic_ids = fetch_topic_ids(client, {p.topic for p in disputed}) if disputed else TopicIds({}, ())
            for partition in disputed:
                recorded_status = recorded.get(partition)
                recorded_id = recorded_status and (
                    recorded_status.source_topic_id if client is self.source else recorded_status.destination_topic_id
                )
                if recorded_status and recorded_id in topic_ids.ids[partition.topic]:
                    planned[partition] = recorded_status
                elif topic_ids.unreachable_brokers:
                    del planned[partition]
            if topic_ids.unreachable_brokers:
                self._report_undecided(client, {p.topic for p in disputed if p not in planned}, topic_ids)

    def _refuse_written_newcomers(
        self,
        recorded: Mapping[Partition, PartitionStatus],
        planned: dict[Partition, PartitionStatus],
        *,
        all_ends: bool,
    ) -> None:
        """New partitions of recorded topics must be empty. Those whose end is unknown wait for the next plan."""
        known_partitions = {p: status for p, status in recorded.items() if status.destination_topic_id}
        topics = {p.topic for p in known_partitions}
        newcomers = [
            p
            for p, status in planned.items()
            if p.topic in topics and p not in known_partitions and status.state in COPIED_STATES
        ]
        fetch_ends = list_offsets if all_ends else _fetch_known_offsets
        ends = fetch_ends(self.destination, newcomers, OffsetPoint.LOG_END) if newcomers else {}
        for partition in newcomers:
            status, end = planned.pop(partition), ends.get(partition)
            if end is not None:
                failure = make_written_failure(self.destination.name, partition, end)
                planned[partition] = mark_failed(status, failure) if end else status

    def _add_unlisted(
        self,
        recorded: Mapping[Partition, PartitionStatus],
        topics: Mapping[str, TopicMetadata],
        planned: dict[Partition, PartitionStatus],
        *,
        is_only_plan: bool,
    ) -> None:
        """Copied topics missing from the listing twice: a broker without controllers may list old metadata.

        Deleted once all brokers say so. `is_only_plan`: there is no next plan.
        """
        missing_topics = {
            p.topic for p, status in recorded.items() if status.state in COPIED_STATES and p.topic not in topics
        }
        confirmed_topics = missing_topics if is_only_plan else missing_topics & self.missing_topics
        self.missing_topics = missing_topics
        if not confirmed_topics:
            return
        topic_ids = fetch_topic_ids(self.source, confirmed_topics)
        unlisted = {
            p: status for p, status in recorded.items() if p.topic in confirmed_topics and status.state in COPIED_STATES
        }
        existing = {p: status for p, status in unlisted.items() if status.source_topic_id in topic_ids.ids[p.topic]}
        planned.update(existing)
        # Listings hide topics without DESCRIBE, too.
        denied = find_hidden_topics(self.source, {p.topic for p in unlisted.keys() - existing.keys()})
        for partition in unlisted.keys() - existing.keys():
            topic = partition.topic
            if topic in denied:
                reason = str(describe_denied_error(self.source, [topic]))
                planned[partition] = _fail_status(unlisted[partition], reason, FailureKind.DENIED)
            elif not topic_ids.unreachable_brokers:
                reason = f"cluster {self.source.name}: topic {topic} is deleted"
                planned[partition] = _fail_status(unlisted[partition], reason, FailureKind.GONE)
        if undecided := {p.topic for p in unlisted if p not in planned}:
            self._report_undecided(self.source, undecided, topic_ids)
        if existing or undecided:
            self.source.mark_metadata_stale()

    def _report_undecided(self, client: ClusterClient, topics: Collection[str], topic_ids: TopicIds) -> None:
        self.undecided_topics += [
            f"cluster {client.name}, {topic_ids.format_undecided(topic)}" for topic in sorted(topics)
        ]


def to_stopping(status: PartitionStatus) -> PartitionStatus:
    is_ended = status.state in ENDED_STATES
    return status if is_ended else replace(status, state=apply_events(status.state, PartitionEvent.STOP))


def to_stopped(status: PartitionStatus, lmo: Offset | None) -> PartitionStatus:
    stopping = to_stopping(status)
    return replace(stopping, state=apply_events(stopping.state, PartitionEvent.LMO_RECORDED), lmo=lmo)


def stop_departed(
    destination: ClusterClient, stopping: Mapping[Partition, PartitionStatus]
) -> dict[Partition, PartitionStatus]:
    """Those whose log end is known, or whose copy is gone: by two brokers, or recreated."""
    if not stopping:
        return {}
    topics = find_existing_topics(destination, {p.topic for p in stopping})
    present = {p for p, s in stopping.items() if p.topic in topics and topics[p.topic].id == s.destination_topic_id}
    unlisted = [p for p in stopping if p.topic not in topics]
    absent = check_presence(destination, unlisted).absent if unlisted else frozenset[Partition]()
    missing = absent | {p for p in stopping if p.topic in topics and p not in present}
    ends = _fetch_known_offsets(destination, present, OffsetPoint.LOG_END)
    return {p: to_stopped(status, ends.get(p)) for p, status in stopping.items() if p in ends or p in missing}


def _plan_status(
    partition: Partition, recorded: PartitionStatus | None, source: TopicMetadata, placement: TopicPlacement
) -> PartitionStatus:
    destination, refusal = placement.ready.get(partition.topic), placement.refused.get(partition.topic)
    if refusal and destination is not None and partition.index in destination.partitions:
        refusal = None  # it is about partitions that the destination does not have
    elif refusal:
        destination = None
    if recorded is not None and recorded.source_topic_id != source.id:
        reason = (
            f"the source topic {partition.topic} was deleted and created anew under the same name (topic id "
            f"{source.id}, was {recorded.source_topic_id})"
        )
        if recorded.kind is FailureKind.GONE and recorded.state is PartitionState.FAILED:
            return replace(recorded, reason=reason, kind=FailureKind.RECREATED)
        if recorded.state in COPIED_STATES:
            return _fail_status(recorded, reason, FailureKind.RECREATED)
    if recorded is not None and recorded.state not in COPIED_STATES:
        return recorded
    if recorded is not None and destination is not None and recorded.destination_topic_id != destination.id:
        return _fail_status(
            recorded,
            f"the mirror topic {partition.topic} was deleted or replaced on the destination (topic id {destination.id},"
            f" was {recorded.destination_topic_id})",
            FailureKind.REPLACED,
        )
    status = recorded or PartitionStatus(
        partition=partition,
        state=apply_events(PartitionState.UNKNOWN, PartitionEvent.START, PartitionEvent.ALIGNED),
        source_topic_id=source.id,
        destination_topic_id=destination.id if destination else "",
        source_epoch=source.partitions[partition.index].epoch,  # nothing is copied yet that could differ
    )
    return (
        _fail_status(status, refusal, placement.failure_kinds.get(partition.topic, FailureKind.REFUSED))
        if refusal
        else status
    )


def _fail_lost_partitions(
    recorded: Mapping[Partition, PartitionStatus],
    planned: Mapping[Partition, PartitionStatus],
    placement: TopicPlacement,
) -> dict[Partition, PartitionStatus]:
    """Copied partitions of listed topics that the source has no more, for the reason that the others are refused."""
    listed_topics = {partition.topic for partition in planned}
    return {
        p: _fail_status(status, placement.refused[p.topic], FailureKind.DIVERGED)
        for p, status in recorded.items()
        if p not in planned
        and p.topic in listed_topics
        and status.state in COPIED_STATES
        and placement.failure_kinds.get(p.topic) is FailureKind.DIVERGED
    }


def _find_changed(
    recorded: Mapping[Partition, PartitionStatus], planned: Mapping[Partition, PartitionStatus]
) -> list[PartitionStatus]:
    return [
        status for p, status in planned.items() if status is not (previous := recorded.get(p)) and status != previous
    ]


def _fail_status(status: PartitionStatus, reason: str, kind: FailureKind) -> PartitionStatus:
    return mark_failed(status, PartitionFailure(partition=status.partition, reason=reason, offset=None, kind=kind))


def mark_aligned(status: PartitionStatus, alignment: AlignedPartition) -> PartitionStatus:
    state = (
        apply_events(status.state, PartitionEvent.ALIGNED)
        if status.state is PartitionState.LOG_ALIGNMENT
        else status.state
    )
    start = alignment.source_start if status.source_start is None else status.source_start
    return replace(
        status,
        state=state,
        source_epoch=alignment.source_epoch,
        source_start=start,
        filled_gap_offsets=alignment.filled_gap_offsets,
    )


def mark_failed(status: PartitionStatus, failure: PartitionFailure) -> PartitionStatus:
    return replace(
        status,
        state=apply_events(status.state, PartitionEvent.FAIL),
        reason=failure.reason,
        failed_at=failure.offset,
        kind=failure.kind,
        retry_at_ms=compute_retry_ms(failure.kind, now_ms()),
    )


def to_assigned(
    status: PartitionStatus, until: Offset | None = None, verified: VerifiedEnd | None = None, *, hold_ms: int
) -> PartitionAssignment:
    """`until`: the next offset to copy at which it is done."""
    counted_end = find_counted_end(status)
    return PartitionAssignment(
        partition=status.partition,
        source_topic_id=status.source_topic_id,
        destination_topic_id=status.destination_topic_id,
        stop_offset=until,
        source_epoch=status.source_epoch,
        verified_end=None if verified is None else Offset(verified.end),
        verified_epoch=-1 if verified is None else verified.destination_epoch,
        trim_recorded_until=counted_end,
        holds_deletions=hold_ms > 0 and counted_end is not None,  # nothing to hold before the copy has begun
    )


_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyEpoch:
    number: int
    start_ms: int
    stop_ms: int
    submitted_ms: int = 0
    throttle: int | None
    """Bytes per second, of all tasks."""
    driver: DriverAddress | None
    comparison_grace_s: float = 0.0


def build_assignments(
    link: MirrorLink,
    epoch: CopyEpoch,
    assigned_partitions: Mapping[Partition, PartitionAssignment],
    lags: Mapping[Partition, int],
    slots: int,
) -> list[Assignment]:
    groups = assign_partitions(lags, slots)
    rates = share_rate(epoch.throttle, groups, lags)
    _log.debug("%d partitions for %d tasks", len(lags), len(groups), epoch=epoch.number)
    return [
        Assignment(
            mirror=link.mirror.name,
            source=link.mirror.source,
            destination=link.mirror.destination,
            config_path=str(link.config.path),
            producer_id=link.mirror.producer_id,
            gaps=link.mirror.gaps,
            partitions=tuple(assigned_partitions[p] for p in group),
            epoch=epoch.number,
            task=number,
            start_ms=epoch.start_ms,
            stop_ms=epoch.stop_ms,
            submitted_ms=epoch.submitted_ms,
            throttle=rate,
            driver_address=epoch.driver,
            comparison_grace_s=epoch.comparison_grace_s,
            cluster_ids=(link.mirror.source_id, link.mirror.destination_id),
        )
        for number, (group, rate) in enumerate(zip(groups, rates, strict=True))
    ]
