"""The loss bound as text, for plans and `describe`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from mirror_core.decide.clocks import UNKNOWN_TIME_TEXT, compute_age_s, format_ago, format_since
from mirror_core.decide.loss import LossBound, compute_loss, compute_snapshot_loss
from mirror_core.decide.view import MAX_LISTED, MirrorSnapshot, UnseenCluster, join_limited, list_failed
from mirror_core.model.loss import PartitionLoss, TransactionArrival, TransactionLoss
from mirror_core.model.mirror import PartitionStatus
from mirror_core.model.names import Offset, Partition, get_heartbeat_topic
from mirror_core.model.run import RunMode
from mirror_core.model.sighting import Heartbeat, SourceObservation

NOT_MIRRORED_FIGURE: Final = "not mirrored"
LISTED_FIGURE: Final = "topics of the source last listed"
CUT_FIGURE: Final = "transactions cut in half"
IN_DOUBT_FIGURE: Final = "transactions in doubt"


def can_lose(snapshot: MirrorSnapshot) -> bool:
    return not snapshot.is_drained and (
        isinstance(snapshot.source, UnseenCluster) or snapshot.mode is RunMode.UNPLANNED
    )


def list_loss_figures(snapshot: MirrorSnapshot) -> Iterator[tuple[str, str]]:
    if snapshot.is_drained:
        exceptions = ", but for what FAILED partitions miss" if list_failed(snapshot) else ""
        drained_bound = compute_snapshot_loss(snapshot)
        exceptions += ", and for what has no copy" if drained_bound.uncopied else ""
        yield "loss", f"none{exceptions}: the source was fenced and drained before it died"
        yield NOT_MIRRORED_FIGURE, format_uncopied(drained_bound)
    if not can_lose(snapshot):
        return
    bound = compute_snapshot_loss(snapshot)
    yield "loss", bound.text
    yield NOT_MIRRORED_FIGURE, format_uncopied(bound)
    yield "source last looked at", format_observed(bound)
    yield LISTED_FIGURE, format_listed(bound)
    yield "newest heartbeats on the destination", format_heartbeats(bound.heartbeats, snapshot.now_ms)
    apart = [partition_loss for partition_loss in bound.partitions.values() if partition_loss.is_outside_bound]
    if apart:
        missing = sum(partition_loss.missing or 0 for partition_loss in apart)
        yield "of the loss, FAILED or without a leader", f"{missing} offset(s) of {len(apart)} partition(s)"
    yield CUT_FIGURE, _format_cut_count(bound, snapshot.source_observation, snapshot.now_ms)


def list_transaction_figures(
    statuses: Mapping[Partition, PartitionStatus],
    observation: SourceObservation | None,
    ends: Mapping[Partition, Offset],
    now_ms: int,
) -> Iterator[tuple[str, str]]:
    """What became of the observed transactions after the copy has ended. `ends`: last mirrored offsets."""
    bound = compute_loss(statuses, observation, ends, (), now_ms=now_ms)
    yield CUT_FIGURE, _format_cut_count(bound, observation, now_ms)
    if observation is None or observation.transactions_ms is None:
        yield IN_DOUBT_FIGURE, "unknown"
        return
    doubtful = [_format_doubt(t) for t in bound.transactions if t.arrival is not TransactionArrival.ABSENT]
    unlisted = [f"{bound.unlisted_transactions} that were too many to be noted"] if bound.unlisted_transactions else []
    yield (
        IN_DOUBT_FIGURE,
        f"{join_limited([*doubtful, *unlisted]) or 'none'}; later ones of {len(bound.open_transactional_ids)} id(s) that were busy then",
    )


def _format_cut_count(bound: LossBound, observation: SourceObservation | None, now_ms: int) -> str:
    if observation is None or observation.transactions_ms is None:
        return "unknown"
    return f"{len(bound.cut_transactions)}, of those seen {format_since(now_ms, observation.transactions_ms)}; of later ones it is not known"


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


def warn_uncopied(snapshot: MirrorSnapshot) -> Iterator[str]:
    if (snapshot.is_drained or can_lose(snapshot)) and (bound := compute_snapshot_loss(snapshot)).uncopied:
        yield (
            f"{snapshot.mirror.destination} HAS NO COPY of these partitions of {snapshot.mirror.source}, and all that they "
            f"hold would be lost: {format_uncopied(bound)}"
        )


def _format_missing(partition_loss: PartitionLoss) -> str:
    return "unknown" if partition_loss.missing is None else f"{partition_loss.missing:,} offset(s)"


def list_loss_warnings(snapshot: MirrorSnapshot) -> Iterator[str]:
    bound = compute_snapshot_loss(snapshot)
    if snapshot.source_observation is None:
        yield f"no data plane of this mirror ever looked at {snapshot.mirror.source}: what is missing is not known"
    elif not bound.heartbeats:
        yield (
            f"no heartbeat of {snapshot.mirror.source} has arrived on {snapshot.mirror.destination} (topic "
            f"{get_heartbeat_topic(snapshot.mirror.name)}): how far the copy had come in time is not known"
        )
    for partition, partition_loss in bound.partitions.items():
        if partition_loss.is_offline and not partition_loss.is_failed:
            yield (
                f"nobody led {partition} on {snapshot.mirror.source} when it was last looked at; its end was last seen "
                f"{_format_last_seen(partition_loss)}"
            )
    doubtful = [t for t in bound.transactions if t.arrival is not TransactionArrival.ABSENT]
    for transaction in doubtful[:MAX_LISTED]:
        yield _format_doubt(transaction)
    if len(doubtful) > MAX_LISTED or bound.unlisted_transactions:
        yield f"{max(0, len(doubtful) - MAX_LISTED) + bound.unlisted_transactions} more transactions are in doubt"
    if bound.open_transactional_ids:
        open_text = join_limited(
            f"{transactional_id!r} ({join_limited(parts)})"
            for transactional_id, parts in bound.open_transactional_ids.items()
        )
        yield (
            f"transactions of these ids were open when last seen: {open_text}. Others that began since may be cut, "
            "too: they have no name here"
        )


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
    return f"{position}, {partition_loss.missing} offset(s) known to be missing, its end last seen {_format_last_seen(partition_loss)}"


def format_behind(bound: LossBound) -> str:
    if bound.furthest_behind is None:
        return "unknown: no partition is copied"
    partition, partition_loss = bound.furthest_behind
    if partition_loss.behind_s is None:
        return f"unknown of {partition}"
    if bound.topics_listed_s is None:
        return "unknown of topics and partitions that are not mirrored yet"
    if bound.topics_listed_s > partition_loss.behind_s:
        return f"{bound.topics_listed_s:.1f} s: all topics of the source were listed then, and no partition is further behind"
    return f"{partition_loss.behind_s:.1f} s: the destination holds all that {partition} had then, and no other is further behind"


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


def _format_doubt(transaction_loss: TransactionLoss) -> str:
    name = f"transaction {transaction_loss.id!r} ({transaction_loss.state} when last seen)"
    if transaction_loss.arrival is TransactionArrival.PARTIAL:
        return f"{name}, if it was committed, is cut in half: {join_limited(transaction_loss.copied)} have it, {join_limited(transaction_loss.not_copied)} do not"
    if transaction_loss.arrival is TransactionArrival.MAYBE_PARTIAL:
        return f"{name} has begun on {join_limited(transaction_loss.copied)}; whether its end is there is not known"
    return f"{name}: whether it is there as a whole is not known"
