"""What an unplanned failover would lose, from the last observation of the source.

Three lower bounds: offsets not copied, that observation's age, and the newest heartbeat's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Set
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from types import MappingProxyType
from typing import Final

from mirror_core.decide.clock_skew import UNKNOWN_TIME_TEXT, compute_age_s, format_ago
from mirror_core.decide.failure_remedies import DIVERGENT_KINDS
from mirror_core.decide.mirror_snapshot import (
    MAX_LISTED,
    DestinationSnapshot,
    MirrorSnapshot,
    UnseenCluster,
    find_without_copy,
    is_healthy,
    join_limited,
    list_failed,
)
from mirror_core.model.figures import FigureItems, FigureKey
from mirror_core.model.findings import Finding
from mirror_core.model.forecast import PartitionLoss, TransactionArrival, TransactionLoss, UncopiedReason
from mirror_core.model.mirror import PartitionStatus
from mirror_core.model.names import Offset, Partition, get_heartbeat_topic
from mirror_core.model.run import RunMode
from mirror_core.model.source_observation import (
    TRANSACTION_OVER,
    Heartbeat,
    ObservedTransaction,
    PartitionTransaction,
    SourceObservation,
)

NO_STARTS: Final[Mapping[Partition, Offset]] = MappingProxyType({})


class _CopiedShare(StrEnum):
    ALL = "all"
    SOME = "some"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class LossBound:
    partitions: Mapping[Partition, PartitionLoss]
    known_missing: int
    unknown_partitions: tuple[Partition, ...]
    """The source's end was never seen, or the position is unknown now."""
    topics_listed_s: float | None
    """Age of the last listing of all source topics: later topics are unknown. None: never, or clocks
    differ.
    """
    observed_s: float | None
    """Age of the oldest observed end, of partitions that had a leader and are not FAILED. None: one was never seen, or
    clocks differ.
    """
    heartbeats: tuple[Heartbeat, ...]
    heartbeat_age_s: float | None
    """Age of the oldest of these. None: there is none, or clocks differ."""
    transactions: tuple[TransactionLoss, ...]
    """Observed ones that are not known to be complete on the destination."""
    open_transactional_ids: Mapping[str, tuple[Partition, ...]]
    unlisted_transactions: int

    @property
    def furthest_behind(self) -> tuple[Partition, PartitionLoss] | None:
        copied_losses = [
            (partition, partition_loss)
            for partition, partition_loss in self.partitions.items()
            if not partition_loss.is_failed
        ]
        return max(copied_losses, key=lambda row: inf if row[1].behind_s is None else row[1].behind_s, default=None)

    @property
    def uncopied(self) -> Mapping[Partition, PartitionLoss]:
        return {p: partition_loss for p, partition_loss in self.partitions.items() if partition_loss.uncopied_reason}

    @property
    def missing_in_all(self) -> int | None:
        """None where one partition's is unknown, and where the mirror has no partition yet."""
        return self.known_missing if self.partitions and not self.unknown_partitions else None

    @property
    def has_clock_skew(self) -> bool:
        return any(
            partition_loss.observed_end is not None and partition_loss.age_s is None
            for partition_loss in self.partitions.values()
        )

    @property
    def cut_transactions(self) -> tuple[TransactionLoss, ...]:
        return tuple(t for t in self.transactions if t.arrival is TransactionArrival.PARTIAL)

    @property
    def text(self) -> str:
        if self.observed_s is None and len(self.unknown_partitions) == len(self.partitions):
            return "unknown: whatever was acknowledged since the source was last looked at, and nobody knows when"
        unknown_text = f" (unknown of {len(self.unknown_partitions)} partition(s))" if self.unknown_partitions else ""
        if uncopied_losses := self.uncopied:
            offsets = sum(partition_loss.missing or 0 for partition_loss in uncopied_losses.values())
            unknown_text += f", {offsets:,} of them in {len(uncopied_losses)} partition(s) that have no copy"
        since_text = (
            "since it was last looked at, and when that was is unknown"
            if self.observed_s is None
            else f"in the {self.observed_s:.1f} s since the source was last looked at"
        )
        return (
            f"at least {self.known_missing:,} offset(s){unknown_text}, and whatever was acknowledged"
            f" {since_text}{self._format_unlisted}"
        )

    @property
    def _format_unlisted(self) -> str:
        if self.topics_listed_s is None:
            return "; topics and partitions that are not mirrored yet are not in this: when they were listed is unknown"
        if self.observed_s is None or self.topics_listed_s <= self.observed_s:
            return ""
        return f"; topics that were created in the {self.topics_listed_s:.1f} s since all were listed are not in this"


def compute_snapshot_loss(snapshot: MirrorSnapshot) -> LossBound:
    destination = snapshot.destination if isinstance(snapshot.destination, DestinationSnapshot) else None
    return compute_loss(
        snapshot.statuses,
        snapshot.source_observation,
        list_known_positions(snapshot),
        destination.heartbeats if destination else (),
        now_ms=snapshot.now_ms,
        unmirrored=snapshot.unmirrored,
        without_copies=find_without_copy(snapshot),
        foreign_starts=list_foreign_starts(snapshot),
    )


def list_foreign_starts(snapshot: MirrorSnapshot) -> dict[Partition, Offset]:
    """Where somebody else has written the ends of mirror partitions."""
    if not isinstance(snapshot.destination, DestinationSnapshot):
        return {}
    return {p: start for p, start in snapshot.destination.foreign_starts.items() if start is not None}


def format_foreign_starts(foreign_starts: Mapping[Partition, Offset]) -> str:
    return join_limited(f"{partition} from offset {start}" for partition, start in sorted(foreign_starts.items()))


def list_known_positions(snapshot: MirrorSnapshot) -> dict[Partition, Offset]:
    """Without log ends of which it is not known who wrote them."""
    if not isinstance(snapshot.destination, DestinationSnapshot):
        return {}
    foreign_starts = snapshot.destination.foreign_starts
    return {p: end for p, end in snapshot.destination.positions.items() if foreign_starts.get(p, end) is not None}


def compute_loss(
    statuses: Mapping[Partition, PartitionStatus],
    observation: SourceObservation | None,
    positions: Mapping[Partition, Offset],
    heartbeats: tuple[Heartbeat, ...],
    *,
    now_ms: int,
    unmirrored: Collection[Partition] = (),
    without_copies: Collection[Partition] = (),
    foreign_starts: Mapping[Partition, Offset] = NO_STARTS,
) -> LossBound:
    uncopied_reasons = find_uncopied(statuses, observation, unmirrored, without_copies, foreign_starts)
    diverged_starts = {p: s for p, s in foreign_starts.items() if uncopied_reasons.get(p) is UncopiedReason.DIVERGED}
    starts = find_lowest_ends(diverged_starts, _collect_starts(statuses, observation))
    partitions = dict(_list_partition_losses(statuses, observation, positions, now_ms, uncopied_reasons, starts))
    transactions = observation.transactions if observation else ()
    transaction_losses = [_judge_transaction(t, positions) for t in transactions]
    return LossBound(
        partitions=partitions,
        known_missing=sum(p.missing or 0 for p in partitions.values()),
        unknown_partitions=tuple(p for p, partition_loss in partitions.items() if partition_loss.missing is None),
        topics_listed_s=(
            compute_age_s(now_ms, observation.listed_ms) if observation and observation.listed_ms is not None else None
        ),
        observed_s=find_oldest([p.age_s for p in partitions.values() if not p.is_outside_bound]),
        heartbeats=heartbeats,
        heartbeat_age_s=find_oldest([compute_age_s(now_ms, beat.at_ms) for beat in heartbeats]),
        transactions=tuple(t for t in transaction_losses if t.arrival is not TransactionArrival.COMPLETE),
        open_transactional_ids={
            t.id: tuple(sorted(part.partition for part in t.parts))
            for t in sorted(transactions, key=lambda t: t.id)
            if t.state != TRANSACTION_OVER
        },
        unlisted_transactions=observation.unlisted_transactions if observation else 0,
    )


def find_refused_s(snapshot: MirrorSnapshot) -> float | None:
    """Since the source first refused connections. None: not seen, or not by the data plane that runs."""
    observation, lease = snapshot.source_observation, snapshot.lease
    if observation is None or observation.refused_ms is None or not isinstance(snapshot.source, UnseenCluster):
        return None
    is_watched = lease is not None and lease.generation == observation.refused_generation
    is_known = is_watched and snapshot.has_data_plane
    return compute_age_s(snapshot.now_ms, observation.refused_ms) if is_known else None


def count_missing(
    statuses: Mapping[Partition, PartitionStatus],
    observation: SourceObservation,
    positions: Mapping[Partition, Offset],
) -> int | None:
    """`LossBound.missing_in_all` without the other figures: each scrape of metrics asks for it."""
    uncopied_reasons = find_uncopied(statuses, observation)
    ends, starts, total = dict(observation.get_ends()), _collect_starts(statuses, observation), 0
    for partition in statuses.keys() | uncopied_reasons.keys():
        copied = _find_copied_end(uncopied_reasons.get(partition), starts.get(partition), positions.get(partition))
        if copied is None or partition not in ends:
            return None
        total += max(0, ends[partition].end - copied)
    return total


def find_uncopied(
    statuses: Mapping[Partition, PartitionStatus],
    observation: SourceObservation | None,
    unmirrored: Collection[Partition] = (),
    without_copies: Collection[Partition] = (),
    foreign_starts: Collection[Partition] = (),
) -> dict[Partition, UncopiedReason]:
    reasons: dict[Partition, UncopiedReason] = dict.fromkeys(unmirrored, UncopiedReason.NOT_MIRRORED)
    if observation is not None:
        reasons |= dict.fromkeys(observation.get_partitions(), UncopiedReason.NOT_MIRRORED)
    ids = observation.get_new_topic_ids() if observation else {}
    rewritten = {(p, agreed_epoch) for p, agreed_epoch, _ in observation.get_rewritten()} if observation else set()
    for partition, status in statuses.items():
        reasons.pop(partition, None)
        if ids.get(partition.topic, status.source_topic_id) != status.source_topic_id:
            reasons[partition] = UncopiedReason.RECREATED
        elif partition in without_copies or not status.destination_topic_id:
            reasons[partition] = UncopiedReason.NO_COPY
        elif (
            partition in foreign_starts
            or (partition, status.source_epoch) in rewritten
            or _find_divergence(status) is not None
        ):
            reasons[partition] = UncopiedReason.DIVERGED
    return reasons


def find_agreed_ends(
    statuses: Mapping[Partition, PartitionStatus], observation: SourceObservation | None
) -> dict[Partition, Offset]:
    """Where copies begin to have other records than the source at the same offsets."""
    rewritten = {
        p: offset
        for p, agreed_epoch, offset in (observation.get_rewritten() if observation else ())
        if p in statuses and statuses[p].source_epoch == agreed_epoch
    }
    return find_lowest_ends(rewritten, {p: _find_divergence(status) for p, status in statuses.items()})


def find_lowest_ends(*all_ends: Mapping[Partition, Offset | None]) -> dict[Partition, Offset]:
    """Without partitions of which no end is known."""
    lowest = dict[Partition, Offset]()
    for partition, end in (item for ends in all_ends for item in ends.items()):
        if end is not None:
            lowest[partition] = min(end, lowest.get(partition, end))
    return lowest


def _find_copied_end(reason: UncopiedReason | None, start: Offset | None, position: Offset | None) -> Offset | None:
    """Below it the destination holds the source's records. `start`: of what it lacks; a copy may not have got there."""
    if reason is None:
        return position
    if reason is UncopiedReason.DIVERGED and start is not None and position is not None:
        return min(start, position)
    return start


def _collect_starts(
    statuses: Mapping[Partition, PartitionStatus], observation: SourceObservation | None
) -> dict[Partition, Offset]:
    starts = dict(observation.get_starts()) if observation else {}
    return starts | find_agreed_ends(statuses, observation)


def _find_divergence(status: PartitionStatus) -> Offset | None:
    return status.failed_at if status.kind in DIVERGENT_KINDS else None


def _list_partition_losses(
    statuses: Mapping[Partition, PartitionStatus],
    observation: SourceObservation | None,
    positions: Mapping[Partition, Offset],
    now_ms: int,
    uncopied_reasons: Mapping[Partition, UncopiedReason],
    starts: Mapping[Partition, Offset],
) -> Iterator[tuple[Partition, PartitionLoss]]:
    observed_ends = dict(observation.get_ends()) if observation else {}
    complete_times = observation.list_complete_times(positions) if observation else {}
    offline = frozenset(observation.get_offline_partitions()) if observation else frozenset()
    for partition in sorted(statuses.keys() | uncopied_reasons.keys()):
        status, observed_end = statuses.get(partition), observed_ends.get(partition)
        # A topic of another mirror, or of somebody else, may have its name on the destination.
        reason, position = uncopied_reasons.get(partition), positions.get(partition)
        copied = _find_copied_end(reason, starts.get(partition), position)
        yield (
            partition,
            PartitionLoss(
                position=position if reason is None else None,
                observed_end=observed_end.end if observed_end else None,
                age_s=compute_age_s(now_ms, observed_end.at_ms) if observed_end else None,
                missing=None if copied is None or observed_end is None else max(0, observed_end.end - copied),
                recovery_point_age_s=(
                    compute_age_s(now_ms, complete_times[partition]) if partition in complete_times else None
                ),
                is_offline=partition in offline,
                is_failed=status is not None and not is_healthy(status),
                uncopied_reason=reason,
            ),
        )


def _judge_transaction(transaction: ObservedTransaction, positions: Mapping[Partition, Offset]) -> TransactionLoss:
    copied_shares = {
        part.partition: _find_copied_share(part, positions.get(part.partition)) for part in transaction.parts
    }
    return TransactionLoss(
        id=transaction.id,
        state=transaction.state,
        arrival=_decide_arrival(set(copied_shares.values())),
        copied=tuple(sorted(p for p, share in copied_shares.items() if share in (_CopiedShare.ALL, _CopiedShare.SOME))),
        not_copied=tuple(sorted(p for p, share in copied_shares.items() if share is _CopiedShare.NONE)),
    )


def _decide_arrival(shares: Set[_CopiedShare | None]) -> TransactionArrival:
    if _CopiedShare.NONE in shares and shares & {_CopiedShare.ALL, _CopiedShare.SOME}:
        return TransactionArrival.PARTIAL
    if None in shares:
        return TransactionArrival.UNKNOWN
    if _CopiedShare.NONE in shares:
        return TransactionArrival.ABSENT
    return TransactionArrival.MAYBE_PARTIAL if _CopiedShare.SOME in shares else TransactionArrival.COMPLETE


def _find_copied_share(part: PartitionTransaction, position: Offset | None) -> _CopiedShare | None:
    """An open transaction holds the readable end back: a position beyond its first offset was copied after it ended."""
    if position is None:
        return None
    if part.end is not None and position >= part.end:
        return _CopiedShare.ALL
    if part.first is None:
        return None
    return _CopiedShare.SOME if position > part.first else _CopiedShare.NONE


def find_oldest(ages: list[float | None]) -> float | None:
    known = [age for age in ages if age is not None]
    return max(known, default=None) if len(known) == len(ages) else None


def can_lose(snapshot: MirrorSnapshot) -> bool:
    return not snapshot.is_drained and (
        isinstance(snapshot.source, UnseenCluster) or snapshot.mode is RunMode.UNPLANNED
    )


def list_loss_figures(snapshot: MirrorSnapshot) -> FigureItems:
    """For a drained source: only what FAILED partitions lack, and what has no copy."""
    if not snapshot.is_drained and not can_lose(snapshot):
        return
    bound = compute_snapshot_loss(snapshot)
    losses = bound.partitions
    yield FigureKey.SOURCE_DRAINED, snapshot.is_drained
    if snapshot.is_drained:
        losses = {p: losses[p] for p in {*list_failed(snapshot), *bound.uncopied}}
    yield FigureKey.LOST_OFFSETS, _sum_missing(losses.values()) if losses or not snapshot.is_drained else 0
    if unknown := sum(partition_loss.missing is None for partition_loss in losses.values()):
        yield FigureKey.LOST_UNKNOWN_PARTITIONS, unknown
    yield from list_uncopied_figures(bound)
    if snapshot.is_drained:
        return
    yield FigureKey.SOURCE_SEEN_S, bound.observed_s
    if (refused_s := find_refused_s(snapshot)) is not None:
        yield FigureKey.SOURCE_REFUSED_S, refused_s
    yield FigureKey.TOPICS_LISTED_S, bound.topics_listed_s
    beats = bound.heartbeats
    yield FigureKey.HEARTBEAT_AGES_S, {str(b.partition): compute_age_s(snapshot.now_ms, b.at_ms) for b in beats}
    yield FigureKey.HEARTBEAT_NUMBERS, {str(beat.partition): beat.number for beat in beats}
    if apart := [partition_loss for partition_loss in losses.values() if partition_loss.is_outside_bound]:
        yield FigureKey.OUTSIDE_BOUND_PARTITIONS, len(apart)
        yield FigureKey.OUTSIDE_BOUND_OFFSETS, _sum_missing(apart)
    yield from _list_cut_figures(bound, snapshot.source_observation, snapshot.now_ms)


def _sum_missing(losses: Collection[PartitionLoss]) -> int | None:
    """None also where no partition is known to exist."""
    known = [partition_loss.missing for partition_loss in losses if partition_loss.missing is not None]
    return sum(known) if known else None


def list_uncopied_figures(bound: LossBound) -> FigureItems:
    rows = sorted(bound.uncopied.items(), key=lambda row: (-(row[1].missing or 0), row[0]))
    if not rows:
        yield FigureKey.UNCOPIED_PARTITIONS, None if bound.topics_listed_s is None else 0
        return
    yield FigureKey.UNCOPIED_PARTITIONS, len(rows)
    yield FigureKey.UNCOPIED_OFFSETS, _sum_missing([partition_loss for _, partition_loss in rows])
    if unknown := sum(partition_loss.missing is None for _, partition_loss in rows):
        yield FigureKey.UNCOPIED_UNKNOWN_PARTITIONS, unknown
    yield FigureKey.UNCOPIED_SIZES, {str(p): loss.missing for p, loss in rows[:MAX_LISTED]}
    yield FigureKey.UNCOPIED_REASONS, {str(p): loss.uncopied_reason for p, loss in rows[:MAX_LISTED]}


def list_transaction_figures(
    statuses: Mapping[Partition, PartitionStatus],
    observation: SourceObservation | None,
    ends: Mapping[Partition, Offset],
    now_ms: int,
) -> FigureItems:
    """What became of the observed transactions after the copy has ended. `ends`: last mirrored offsets."""
    bound = compute_loss(statuses, observation, ends, (), now_ms=now_ms)
    yield from _list_cut_figures(bound, observation, now_ms)
    if observation is None or observation.transactions_ms is None:
        yield FigureKey.DOUBTFUL_TRANSACTIONS, None
        return
    doubtful = [t for t in bound.transactions if t.arrival is not TransactionArrival.ABSENT]
    yield FigureKey.DOUBTFUL_TRANSACTIONS, {t.id: t.arrival for t in doubtful[:MAX_LISTED]}
    yield FigureKey.TRANSACTIONS_COPIED_TO, {t.id: join_limited(t.copied) for t in doubtful[:MAX_LISTED] if t.copied}
    yield (
        FigureKey.TRANSACTIONS_MISSING_IN,
        {t.id: join_limited(t.not_copied) for t in doubtful[:MAX_LISTED] if t.not_copied},
    )
    if bound.unlisted_transactions:
        yield FigureKey.UNLISTED_TRANSACTIONS, bound.unlisted_transactions
    yield FigureKey.OPEN_TRANSACTIONAL_IDS, len(bound.open_transactional_ids)


def _list_cut_figures(bound: LossBound, observation: SourceObservation | None, now_ms: int) -> FigureItems:
    seen_ms = observation.transactions_ms if observation else None
    yield FigureKey.CUT_TRANSACTIONS, None if seen_ms is None else len(bound.cut_transactions)
    yield FigureKey.TRANSACTIONS_SEEN_S, None if seen_ms is None else compute_age_s(now_ms, seen_ms)


def format_uncopied(bound: LossBound) -> str:
    rows = sorted(bound.uncopied.items(), key=lambda row: (-(row[1].missing or 0), row[0]))
    if not rows:
        return (
            "none"
            if bound.topics_listed_s is not None
            else "unknown: when the source's topics were listed is not known"
        )
    unknown_count = sum(partition_loss.missing is None for _, partition_loss in rows)
    unknown_text = f", and what {unknown_count} of them hold is unknown" if unknown_count else ""
    total = sum(partition_loss.missing or 0 for _, partition_loss in rows)
    listed_text = join_limited(
        f"{p} ({partition_loss.uncopied_reason}: {_format_missing(partition_loss)})" for p, partition_loss in rows
    )
    return f"{len(rows):,} partition(s), {total:,} offset(s){unknown_text}: {listed_text}"


def warn_uncopied(snapshot: MirrorSnapshot) -> Iterator[Finding]:
    mirror = snapshot.mirror
    if (snapshot.is_drained or can_lose(snapshot)) and (bound := compute_snapshot_loss(snapshot)).uncopied:
        yield Finding("partitions_uncopied", mirror.destination, source=mirror.source, listed=format_uncopied(bound))


def _format_missing(partition_loss: PartitionLoss) -> str:
    return "unknown" if partition_loss.missing is None else f"{partition_loss.missing:,} offset(s)"


def list_loss_warnings(snapshot: MirrorSnapshot) -> Iterator[Finding]:
    bound, mirror = compute_snapshot_loss(snapshot), snapshot.mirror
    if snapshot.source_observation is None:
        yield Finding("source_never_observed", mirror.source)
    elif not bound.heartbeats:
        topic = get_heartbeat_topic(mirror.name)
        yield Finding("no_heartbeat", mirror.source, destination=mirror.destination, topic=topic)
    for partition, partition_loss in bound.partitions.items():
        if partition_loss.is_offline and not partition_loss.is_failed:
            yield Finding("end_unseen", partition, source=mirror.source, last_seen=_format_last_seen(partition_loss))
    if foreign_starts := list_foreign_starts(snapshot):
        listed = format_foreign_starts(foreign_starts)
        yield Finding("written_before_promotion", mirror.destination, listed=listed)
    doubtful = [t for t in bound.transactions if t.arrival is not TransactionArrival.ABSENT]
    for transaction in doubtful[:MAX_LISTED]:
        yield Finding(
            "transaction_in_doubt",
            transaction.id,
            state=transaction.state,
            arrival=transaction.arrival.name.lower(),
            copied=transaction.copied,
            not_copied=transaction.not_copied,
        )
    if more := max(0, len(doubtful) - MAX_LISTED) + bound.unlisted_transactions:
        yield Finding("more_transactions_in_doubt", mirror.source, count=more)
    if bound.open_transactional_ids:
        transactions = [f"{name!r} ({join_limited(parts)})" for name, parts in bound.open_transactional_ids.items()]
        yield Finding("transactional_ids_open", mirror.source, transactions=transactions)


def list_partition_loss_figures(partition_loss: PartitionLoss) -> FigureItems:
    if partition_loss.uncopied_reason is None:
        yield FigureKey.MIRROR_POSITION, partition_loss.position
    else:
        yield FigureKey.UNCOPIED_REASON, partition_loss.uncopied_reason
    yield FigureKey.MISSING_OFFSETS, partition_loss.missing
    yield FigureKey.END_SEEN_S, partition_loss.age_s


def format_partition_loss(partition_loss: PartitionLoss) -> str:
    if partition_loss.uncopied_reason is not None:
        missing = (
            "its loss is unknown"
            if partition_loss.missing is None
            else f"all of it is missing, {partition_loss.missing} offset(s)"
        )
        return f"{partition_loss.uncopied_reason}, {missing}, its end last seen {_format_last_seen(partition_loss)}"
    position = "position unknown" if partition_loss.position is None else f"position {partition_loss.position}"
    if partition_loss.missing is None:
        return f"{position}, loss unknown"
    return (
        f"{position}, {partition_loss.missing} offset(s) known to be missing, its end last seen"
        f" {_format_last_seen(partition_loss)}"
    )


def format_behind(bound: LossBound) -> str:
    if bound.furthest_behind is None:
        return "unknown: no partition is copied"
    partition, partition_loss = bound.furthest_behind
    if partition_loss.behind_s is None:
        return f"unknown of {partition}"
    if bound.topics_listed_s is None:
        return "unknown of topics and partitions that are not mirrored yet"
    if bound.topics_listed_s > partition_loss.behind_s:
        return (
            f"{bound.topics_listed_s:.1f} s: all topics of the source were listed then, and no partition is further"
            " behind"
        )
    return (
        f"{partition_loss.behind_s:.1f} s: the destination holds all that {partition} had then, and no other is further"
        " behind"
    )


def format_observed(bound: LossBound) -> str:
    return UNKNOWN_TIME_TEXT if bound.observed_s is None and bound.has_clock_skew else format_ago(bound.observed_s)


def format_listed(bound: LossBound) -> str:
    return (
        UNKNOWN_TIME_TEXT
        if bound.topics_listed_s is None and bound.has_clock_skew
        else format_ago(bound.topics_listed_s)
    )


def _format_last_seen(partition_loss: PartitionLoss) -> str:
    return (
        UNKNOWN_TIME_TEXT
        if partition_loss.age_s is None and partition_loss.observed_end is not None
        else format_ago(partition_loss.age_s)
    )


def format_heartbeats(newest_heartbeats: tuple[Heartbeat, ...], now_ms: int) -> str:
    if not newest_heartbeats:
        return "none"
    return join_limited(
        f"partition {beat.partition}: number {beat.number}, {_format_heartbeat_age(beat, now_ms)}"
        for beat in newest_heartbeats
    )


def _format_heartbeat_age(beat: Heartbeat, now_ms: int) -> str:
    seconds = compute_age_s(now_ms, beat.at_ms)
    return "of unknown age (clocks differ)" if seconds is None else f"{seconds:.1f} s old"
