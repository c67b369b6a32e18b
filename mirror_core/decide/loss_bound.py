"""What an unplanned failover would lose, from the last observation of the source.

Three lower bounds: offsets not copied, that observation's age, and the newest heartbeat's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from types import MappingProxyType
from typing import Final

from mirror_core.decide.clock_skew import UNKNOWN_TIME_TEXT, compute_age_s, format_ago
from mirror_core.decide.deletion_hold import NO_STARTS, EarlyDeletion
from mirror_core.decide.failure_remedies import DIVERGENT_KINDS
from mirror_core.model.figures import MAX_RECORDED_NAMES, FigureItems, FigureKey
from mirror_core.model.findings import Finding
from mirror_core.model.forecast import PartitionLoss, TransactionArrival, TransactionLoss, UncopiedReason
from mirror_core.model.mirror import FailureKind, PartitionStatus, is_healthy
from mirror_core.model.names import Offset, Partition, select_application_partitions
from mirror_core.model.source_observation import (
    TRANSACTION_OVER,
    Heartbeat,
    ObservedTransaction,
    PartitionTransaction,
    SourceObservation,
)
from mirror_core.model.text import format_count, join_limited

NO_DELETIONS: Final[Mapping[Partition, EarlyDeletion]] = MappingProxyType({})
_LISTING_SLACK_S: Final = 1.0
"""A look lists topics just before their ends."""
_PARTLY_COPIED_REASONS: Final = frozenset({UncopiedReason.DIVERGED, UncopiedReason.DELETED})


class _CopiedShare(StrEnum):
    ALL = "all"
    SOME = "some"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class LossBound:
    partitions: Mapping[Partition, PartitionLoss]
    """Also of heartbeats, which no other figure counts."""
    application_losses: Mapping[Partition, PartitionLoss]
    topics_listed_s: float | None
    """Age of the last listing of all source topics: later topics are unknown. None: never, or clocks differ."""
    observed_s: float | None
    """Age of the oldest observed end, of partitions that had a leader and are not FAILED. None: none was seen, or
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
    def known_missing(self) -> int:
        return sum(loss.missing or 0 for loss in self.application_losses.values())

    @property
    def unknown_partitions(self) -> tuple[Partition, ...]:
        """End never seen, or position unknown now."""
        return tuple(p for p, loss in self.application_losses.items() if loss.missing is None)

    @property
    def furthest_behind(self) -> tuple[Partition, PartitionLoss] | None:
        copied_losses = [(p, loss) for p, loss in self.application_losses.items() if not loss.is_failed]
        return max(copied_losses, key=lambda row: inf if row[1].behind_s is None else row[1].behind_s, default=None)

    @property
    def uncopied_losses(self) -> Mapping[Partition, PartitionLoss]:
        return {p: loss for p, loss in self.application_losses.items() if loss.uncopied_reason}

    @property
    def without_copy(self) -> Mapping[Partition, PartitionLoss]:
        """Without those that lack their beginning only."""
        return {
            p: loss for p, loss in self.uncopied_losses.items() if loss.uncopied_reason is not UncopiedReason.DELETED
        }

    def group_whole_topics(self) -> dict[str, list[PartitionLoss]]:
        """Topics of which the destination has nothing."""
        topics: dict[str, list[PartitionLoss]] = {}
        for partition, partition_loss in self.application_losses.items():
            topics.setdefault(partition.topic, []).append(partition_loss)
        return {topic: losses for topic, losses in topics.items() if all(loss.has_no_copy for loss in losses)}

    @property
    def missing_in_all(self) -> int | None:
        """None where one partition's is unknown, or no topic was listed."""
        is_unlisted = self.topics_listed_s is None and not self.has_clock_skew
        is_unknown = is_unlisted or not self.partitions or bool(self.unknown_partitions)
        return None if is_unknown else self.known_missing

    @property
    def has_clock_skew(self) -> bool:
        return any(loss.observed_end is not None and loss.age_s is None for loss in self.partitions.values())

    @property
    def cut_transactions(self) -> tuple[TransactionLoss, ...]:
        return tuple(t for t in self.transactions if t.arrival is TransactionArrival.PARTIAL)

    @property
    def text(self) -> str:
        if self.observed_s is None and len(self.unknown_partitions) == len(self.application_losses):
            return "unknown: whatever was acknowledged since the source was last looked at, and nobody knows when"
        unknown_count = len(self.unknown_partitions)
        unknown_text = f" (unknown of {format_count(unknown_count, 'partition')})" if unknown_count else ""
        if losses := self.without_copy:
            offsets = sum(loss.missing or 0 for loss in losses.values())
            unknown_text += f", {offsets:,} of them in {format_count(len(losses), 'partition')} without a copy"
        unlisted = None if self.has_clock_skew else find_unlisted("the source", self.topics_listed_s, self.observed_s)
        since_text = (
            "since it was last looked at, and when that was is unknown"
            if self.observed_s is None
            else f"in the {self.observed_s:.1f} s since the source was last looked at"
        )
        return (
            f"at least {format_count(self.known_missing, 'offset')}{unknown_text}, and whatever was acknowledged"
            f" {since_text}{f'; and {unlisted}' if unlisted else ''}"
        )


def find_unlisted(source: str, listed_s: float | None, observed_s: float | None) -> Finding | None:
    if listed_s is not None and (observed_s is None or listed_s <= observed_s + _LISTING_SLACK_S):
        return None
    return Finding("topics_unlisted", source, listed_s=listed_s)


def compute_loss(
    statuses: Mapping[Partition, PartitionStatus],
    observation: SourceObservation | None,
    log_ends: Mapping[Partition, Offset],
    heartbeats: tuple[Heartbeat, ...],
    *,
    now_ms: int,
    unmirrored: Collection[Partition] = (),
    without_copies: Collection[Partition] = (),
    foreign_starts: Mapping[Partition, Offset | None] = NO_STARTS,
    early_deletions: Mapping[Partition, EarlyDeletion] = NO_DELETIONS,
) -> LossBound:
    positions, known_starts = find_positions(log_ends, foreign_starts), find_lowest_ends(foreign_starts)
    uncopied_reasons = find_uncopied(statuses, observation, unmirrored, without_copies, known_starts, early_deletions)
    diverged_starts = {p: s for p, s in known_starts.items() if uncopied_reasons.get(p) is UncopiedReason.DIVERGED}
    starts = find_lowest_ends(diverged_starts, _collect_starts(statuses, observation))
    deletions = {p: early_deletions[p] for p in early_deletions if uncopied_reasons.get(p) in _PARTLY_COPIED_REASONS}
    partitions = dict(
        _list_partition_losses(statuses, observation, positions, now_ms, uncopied_reasons, starts, deletions)
    )
    application_losses = {p: partitions[p] for p in sorted(select_application_partitions(partitions))}
    transactions = observation.transactions if observation else ()
    without_copy = {p for p, reason in uncopied_reasons.items() if reason not in _PARTLY_COPIED_REASONS}
    transaction_losses = [_judge_transaction(t, positions, without_copy) for t in transactions]
    return LossBound(
        partitions=partitions,
        application_losses=application_losses,
        topics_listed_s=(
            compute_age_s(now_ms, observation.listed_ms) if observation and observation.listed_ms is not None else None
        ),
        observed_s=find_oldest([loss.age_s for loss in application_losses.values() if loss.is_observed]),
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


def count_missing(
    statuses: Mapping[Partition, PartitionStatus],
    observation: SourceObservation,
    positions: Mapping[Partition, Offset],
    early_deletions: Mapping[Partition, EarlyDeletion] = NO_DELETIONS,
) -> int | None:
    """`LossBound.missing_in_all`, of listed topics: each scrape of metrics asks for it."""
    uncopied_reasons = find_uncopied(statuses, observation, early_deletions=early_deletions)
    ends, starts, total = dict(observation.get_ends()), _collect_starts(statuses, observation), 0
    for partition in select_application_partitions(statuses.keys() | uncopied_reasons.keys()):
        reason = uncopied_reasons.get(partition)
        copied = _find_copied_end(reason, starts.get(partition), positions.get(partition))
        if copied is None or partition not in ends:
            return None
        deletion = early_deletions.get(partition) if reason in _PARTLY_COPIED_REASONS else None
        total += max(0, ends[partition].end - copied) + (deletion.count_below(copied) if deletion else 0)
    return total


def find_uncopied(
    statuses: Mapping[Partition, PartitionStatus],
    observation: SourceObservation | None,
    unmirrored: Collection[Partition] = (),
    without_copies: Collection[Partition] = (),
    foreign_starts: Collection[Partition] = (),
    early_deletions: Collection[Partition] = (),
) -> dict[Partition, UncopiedReason]:
    reasons: dict[Partition, UncopiedReason] = dict.fromkeys(unmirrored, UncopiedReason.NOT_MIRRORED)
    if observation is not None:
        reasons |= dict.fromkeys(observation.get_partitions(), UncopiedReason.NOT_MIRRORED)
    ids = observation.get_new_topic_ids() if observation else {}
    rewritten = {(p, agreed_epoch) for p, agreed_epoch, _ in observation.get_rewritten()} if observation else set()
    for partition, status in statuses.items():
        reasons.pop(partition, None)
        new_id = ids.get(partition.topic, status.source_topic_id)
        if new_id != status.source_topic_id or status.kind is FailureKind.RECREATED:
            reasons[partition] = UncopiedReason.RECREATED
        elif partition in without_copies or not status.destination_topic_id:
            reasons[partition] = UncopiedReason.NO_COPY
        elif (
            partition in foreign_starts
            or (partition, status.source_epoch) in rewritten
            or _find_divergence(status) is not None
        ):
            reasons[partition] = UncopiedReason.DIVERGED
        elif partition in early_deletions:
            reasons[partition] = UncopiedReason.DELETED
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
    """The destination holds the source's records below it. `start`: of what it lacks."""
    if reason is None or reason is UncopiedReason.DELETED:
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


def find_positions(
    log_ends: Mapping[Partition, Offset], foreign_starts: Mapping[Partition, Offset | None]
) -> dict[Partition, Offset]:
    """Next offsets to copy: ends of what the mirror itself wrote. Without those that are not known."""
    return {p: min(end, start) for p, end in log_ends.items() if (start := foreign_starts.get(p, end)) is not None}


def _list_partition_losses(
    statuses: Mapping[Partition, PartitionStatus],
    observation: SourceObservation | None,
    positions: Mapping[Partition, Offset],
    now_ms: int,
    uncopied_reasons: Mapping[Partition, UncopiedReason],
    starts: Mapping[Partition, Offset],
    early_deletions: Mapping[Partition, EarlyDeletion],
) -> Iterator[tuple[Partition, PartitionLoss]]:
    observed_ends = dict(observation.get_ends()) if observation else {}
    complete_times = observation.list_complete_times(positions) if observation else {}
    once_complete = frozenset(observation.list_once_complete()) if observation else frozenset()
    offline = frozenset(observation.get_offline_partitions()) if observation else frozenset()
    for partition in sorted(statuses.keys() | uncopied_reasons.keys()):
        status, observed_end = statuses.get(partition), observed_ends.get(partition)
        # A topic of another mirror, or of somebody else, may have its name on the destination.
        reason, position = uncopied_reasons.get(partition), positions.get(partition)
        copied = _find_copied_end(reason, starts.get(partition), position)
        deletion = early_deletions.get(partition)
        deleted = 0 if deletion is None or copied is None else deletion.count_below(copied)
        complete_ms = None if deleted else complete_times.get(partition)
        missing = None if copied is None or observed_end is None else max(0, observed_end.end - copied) + deleted
        lacks_records = position == 0 if observed_end is None else bool(missing)
        yield (
            partition,
            PartitionLoss(
                position=position if reason is None else None,
                observed_end=observed_end.end if observed_end else None,
                age_s=compute_age_s(now_ms, observed_end.at_ms) if observed_end else None,
                missing=missing,
                recovery_point_age_s=None if complete_ms is None else compute_age_s(now_ms, complete_ms),
                is_offline=partition in offline,
                is_failed=status is not None and not is_healthy(status),
                is_never_complete=reason is None and lacks_records and partition not in once_complete,
                uncopied_reason=reason,
            ),
        )


def _judge_transaction(
    transaction: ObservedTransaction, positions: Mapping[Partition, Offset], without_copy: Set[Partition]
) -> TransactionLoss:
    copied_shares = {
        part.partition: (
            _CopiedShare.NONE
            if part.partition in without_copy
            else _find_copied_share(part, positions.get(part.partition))
        )
        for part in transaction.parts
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


def sum_missing(losses: Collection[PartitionLoss]) -> int | None:
    """None also where no partition is known to exist."""
    known = [partition_loss.missing for partition_loss in losses if partition_loss.missing is not None]
    return sum(known) if known else None


def count_unknown(losses: Iterable[PartitionLoss]) -> int:
    return sum(partition_loss.missing is None for partition_loss in losses)


def list_uncopied_figures(bound: LossBound) -> FigureItems:
    rows = sorted(bound.uncopied_losses.items(), key=lambda row: (-(row[1].missing or 0), row[0]))
    if not rows:
        yield FigureKey.UNCOPIED_PARTITIONS, None if bound.topics_listed_s is None else 0
        return
    yield FigureKey.UNCOPIED_PARTITIONS, len(rows)
    yield FigureKey.UNCOPIED_OFFSETS, sum_missing([partition_loss for _, partition_loss in rows])
    if unknown := count_unknown(partition_loss for _, partition_loss in rows):
        yield FigureKey.UNCOPIED_UNKNOWN_PARTITIONS, unknown
    yield FigureKey.UNCOPIED_SIZES, {str(p): loss.missing for p, loss in rows[:MAX_RECORDED_NAMES]}
    yield FigureKey.UNCOPIED_REASONS, {str(p): loss.uncopied_reason for p, loss in rows[:MAX_RECORDED_NAMES]}


def list_transaction_figures(
    statuses: Mapping[Partition, PartitionStatus],
    observation: SourceObservation | None,
    ends: Mapping[Partition, Offset],
    now_ms: int,
) -> FigureItems:
    """What became of the observed transactions. `ends`: last mirrored offsets."""
    bound = compute_loss(statuses, observation, ends, (), now_ms=now_ms)
    yield from list_cut_figures(bound, observation, now_ms)
    if observation is None or observation.transactions_ms is None:
        yield FigureKey.DOUBTFUL_TRANSACTIONS, None
        return
    doubtful = [t for t in bound.transactions if t.arrival is not TransactionArrival.ABSENT]
    yield FigureKey.DOUBTFUL_TRANSACTIONS, {t.id: t.arrival for t in doubtful[:MAX_RECORDED_NAMES]}
    yield (
        FigureKey.TRANSACTIONS_COPIED_TO,
        {t.id: join_limited(t.copied) for t in doubtful[:MAX_RECORDED_NAMES] if t.copied},
    )
    yield (
        FigureKey.TRANSACTIONS_MISSING_IN,
        {t.id: join_limited(t.not_copied) for t in doubtful[:MAX_RECORDED_NAMES] if t.not_copied},
    )
    if bound.unlisted_transactions:
        yield FigureKey.UNLISTED_TRANSACTIONS, bound.unlisted_transactions
    yield FigureKey.OPEN_TRANSACTIONAL_IDS, len(bound.open_transactional_ids)


def list_cut_figures(bound: LossBound, observation: SourceObservation | None, now_ms: int) -> FigureItems:
    seen_ms = observation.transactions_ms if observation else None
    yield FigureKey.CUT_TRANSACTIONS, None if seen_ms is None else len(bound.cut_transactions)
    yield FigureKey.TRANSACTIONS_SEEN_S, None if seen_ms is None else compute_age_s(now_ms, seen_ms)


def format_uncopied(bound: LossBound) -> str:
    if bound.uncopied_losses:
        losses = bound.uncopied_losses
        offsets, unknown = sum_missing(losses.values()), count_unknown(losses.values())
        partitions = format_losses(losses)
        return str(Finding("uncopied", count=len(losses), offsets=offsets, unknown=unknown, partitions=partitions))
    return "unknown: when the source's topics were listed is not known" if bound.topics_listed_s is None else "none"


def format_losses(losses: Mapping[Partition, PartitionLoss], *, dated: bool = True) -> list[str]:
    rows = sorted(losses.items(), key=lambda row: (-(row[1].missing or 0), row[0]))
    return [f"{p} ({loss.uncopied_reason}: {_format_missing(loss, dated=dated)})" for p, loss in rows]


def _format_missing(partition_loss: PartitionLoss, *, dated: bool) -> str:
    if partition_loss.missing is None:
        return "unknown"
    last_seen = f", its end last seen {format_end_age(partition_loss)}" if dated else ""
    return f"{format_count(partition_loss.missing, 'offset')}{last_seen}"


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
            else f"missing: {format_count(partition_loss.missing, 'offset')}"
        )
        return f"{partition_loss.uncopied_reason}, {missing}, its end last seen {format_end_age(partition_loss)}"
    position = "position unknown" if partition_loss.position is None else f"position {partition_loss.position}"
    if partition_loss.missing is None:
        return f"{position}, loss unknown"
    return (
        f"{position}, {format_count(partition_loss.missing, 'offset')} known to be missing, its end last seen"
        f" {format_end_age(partition_loss)}"
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


def format_end_age(partition_loss: PartitionLoss) -> str:
    return (
        UNKNOWN_TIME_TEXT
        if partition_loss.age_s is None and partition_loss.observed_end is not None
        else format_ago(partition_loss.age_s)
    )
