"""What was observed of the source, and what the destination has. No client, no clock.

The recovery point is the newest observation whose ends were copied.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from mirror_core.kafka.client import Leader, TopicMetadata
from mirror_core.model.mirror import FailureKind, NameFilters, PartitionStatus, is_healthy
from mirror_core.model.names import MirrorName, Offset, Partition, select_application_partitions
from mirror_core.model.source_observation import (
    TRANSACTION_OVER,
    ObservedEnd,
    ObservedTopic,
    ObservedTransaction,
    PartitionTransaction,
    SourceObservation,
    shorten_ids,
)

MAX_LISTED_TRANSACTIONS: Final = 200
_MAX_ENDED_TRANSACTIONS: Final = 2_000
_RATE_WINDOW_MS: Final = 60_000
TransactionKey = tuple[str, int, int]
"""Id, producer id, start: an id has one transaction at a time."""
MAX_OBSERVATIONS: Final = 8
"""Per lagging partition; of more, every other one is dropped."""


class RecoveryPoints:
    def __init__(self, reached: Mapping[Partition, ObservedEnd] = MappingProxyType({})) -> None:
        # Complete again once a position says so.
        self._unreached = {partition: [observation] for partition, observation in reached.items()}
        self._reached = dict(reached)

    def add_observations(self, observed: Mapping[Partition, ObservedEnd]) -> None:
        for partition, observation in observed.items():
            reached = self._reached.get(partition)
            unreached = self._unreached.setdefault(partition, [])
            if not unreached and reached is not None and observation.end <= reached.end:
                self._reached[partition] = ObservedEnd(reached.end, observation.at_ms)
                continue
            unreached.append(observation)
            if len(unreached) > MAX_OBSERVATIONS:
                unreached[:] = unreached[::2]

    def add_reached(self, observed: Mapping[Partition, ObservedEnd]) -> None:
        self._reached |= observed

    def get_incomplete(self) -> frozenset[Partition]:
        return frozenset(p for p, unreached in self._unreached.items() if unreached)

    def update_positions(self, positions: Mapping[Partition, Offset]) -> None:
        """Positions must be requested after the ends."""
        for partition, position in positions.items():
            reached = self._reached.get(partition)
            if reached is not None and position < reached.end:
                del self._reached[partition]  # recopied
            unreached = self._unreached.get(partition, [])
            newly_reached = [observation for observation in unreached if observation.end <= position]
            if newly_reached:
                self._reached[partition] = newly_reached[-1]
                self._unreached[partition] = unreached[len(newly_reached) :]

    def forget(self, partitions: Iterable[Partition]) -> None:
        for partition in partitions:
            self._unreached.pop(partition, None)
            self._reached.pop(partition, None)

    def keep_only(self, partitions: Collection[Partition]) -> None:
        self._unreached = {p: unreached for p, unreached in self._unreached.items() if p in partitions}
        self._reached = {p: observation for p, observation in self._reached.items() if p in partitions}

    def get_incomplete_since(self) -> dict[Partition, int]:
        """Lagging partitions: wall clock since when something observed is missing; at the latest, for older lags."""
        return {
            p: self._reached[p].at_ms if p in self._reached else observations[0].at_ms
            for p, observations in self._unreached.items()
            if observations
        }

    def get_reached(self) -> dict[Partition, ObservedEnd]:
        """Lagging partitions: the newest observation that was reached."""
        return {p: self._reached[p] for p, unreached in self._unreached.items() if unreached and p in self._reached}


@dataclass(slots=True)
class AppendRate:
    """All partitions together, over the last minute that was observed."""

    growths: deque[tuple[int, int]] = field(default_factory=deque)
    """(milliseconds, offsets) between observations."""

    def add_growth(self, duration_ms: int, offsets: int) -> None:
        if not 0 < duration_ms <= _RATE_WINDOW_MS:
            return
        self.growths.append((duration_ms, offsets))
        while self._sum_durations_ms() - self.growths[0][0] >= _RATE_WINDOW_MS:
            self.growths.popleft()

    def compute_offsets_per_s(self) -> float | None:
        offsets = sum(offsets for _, offsets in self.growths)
        return offsets * 1000 / self._sum_durations_ms() if self.growths else None

    def _sum_durations_ms(self) -> int:
        return sum(duration_ms for duration_ms, _ in self.growths)


@dataclass(slots=True)
class ObservedSource:
    """What cannot be observed now stays."""

    mirror: MirrorName
    observed_ends: dict[Partition, ObservedEnd]
    offline: frozenset[Partition] = frozenset()
    transactions: dict[TransactionKey, ObservedTransaction] | None = None
    transactions_ms: int | None = None
    at_ms: int = 0
    recovery_points: RecoveryPoints = field(default_factory=RecoveryPoints)
    seen_empty: dict[Partition, ObservedEnd] = field(default_factory=dict)
    """Before they were copies."""
    recorded: Mapping[Partition, PartitionStatus] = field(default_factory=dict)
    unrecorded: frozenset[Partition] = frozenset()
    topic_ids: dict[str, str] = field(default_factory=dict)
    log_starts: dict[Partition, Offset] = field(default_factory=dict)
    end_epochs: dict[Partition, tuple[int, Offset]] = field(default_factory=dict)
    """Leader epoch, and the newest end that was observed under it; of copies."""
    rewritten: dict[Partition, tuple[int, Offset]] = field(default_factory=dict)
    """As `ObservedTopic.rewritten`."""
    listed_ms: int | None = None
    listed_by: NameFilters | None = None
    append_rate: AppendRate = field(default_factory=AppendRate)
    observed_since_ms: int | None = None

    def update_topics(
        self,
        described: Mapping[str, TopicMetadata],
        listed_ms: int | None,
        listed_by: NameFilters | None = None,
    ) -> None:
        """`listed_ms`: when all matching topics were listed, by these filters; None: only some were described."""
        for name, description in described.items():
            first_status = self.recorded.get(Partition(name, 0))
            previous_id = self.topic_ids.get(name) or (first_status.source_topic_id if first_status else description.id)
            if previous_id != description.id:  # another topic's ends
                self.observed_ends = {p: observed for p, observed in self.observed_ends.items() if p.topic != name}
                self.seen_empty = {p: observed for p, observed in self.seen_empty.items() if p.topic != name}
                self.log_starts = {p: start for p, start in self.log_starts.items() if p.topic != name}
                self.end_epochs = {p: row for p, row in self.end_epochs.items() if p.topic != name}
                self.rewritten = {p: row for p, row in self.rewritten.items() if p.topic != name}
            self.topic_ids[name] = description.id
        new = {
            p
            for name, description in described.items()
            for index in description.partitions
            if (p := Partition(name, index)) not in self.recorded
        }
        if listed_ms is None:
            self.unrecorded |= new
        else:
            self.unrecorded, self.listed_ms, self.listed_by = frozenset(new), listed_ms, listed_by

    def get_known_partitions(self) -> frozenset[Partition]:
        return self.unrecorded | self.recorded.keys()

    def get_uncopied_partitions(self) -> frozenset[Partition]:
        """Not, or no longer, copied: their whole log may be lost."""
        return self.unrecorded | {p for p, s in self.recorded.items() if not is_healthy(s) or not self._is_copy(p, s)}

    def _is_copy(self, partition: Partition, recorded_status: PartitionStatus) -> bool:
        """The destination may hold the source's current log."""
        return (
            partition not in self.rewritten
            and bool(recorded_status.destination_topic_id)
            and self._find_changed_id(partition.topic, recorded_status) in ("", recorded_status.source_topic_id)
        )

    def _was_ever_copy(self, partition: Partition) -> bool:
        status = self.recorded.get(partition)
        return status is not None and bool(status.destination_topic_id)

    def _is_deleted(self, partition: Partition) -> bool:
        status = self.recorded.get(partition)
        is_gone = status is not None and status.kind is FailureKind.GONE
        return is_gone and not self._find_changed_id(partition.topic, status)

    def _find_changed_id(self, topic: str, status: PartitionStatus | None) -> str:
        topic_id = self.topic_ids.get(topic, "")
        return "" if status is not None and topic_id == status.source_topic_id else topic_id

    def list_ended_epochs(self, leaders: Mapping[Partition, Leader]) -> dict[Partition, int]:
        """Leader epochs under which ends were observed, of partitions that have a newer one.

        Or the same one again, behind a restored source's older one.
        """
        return {
            p: epoch
            for p, (epoch, _) in self.end_epochs.items()
            if p in leaders and (leaders[p].epoch > epoch or (leaders[p].epoch == epoch and p in self.rewritten))
        }

    def list_epochs_set_back(self, leaders: Mapping[Partition, Leader]) -> dict[Partition, int]:
        """The last epochs before those of leaders, where ends were observed under newer ones.

        The source was restored from an older copy. Where the copy last agreed under the leader's epoch, nothing is to
        be compared.
        """
        return {
            p: leaders[p].epoch - 1
            for p, (epoch, _) in self.end_epochs.items()
            if p in leaders
            and p not in self.rewritten
            and 0 < leaders[p].epoch < epoch
            and leaders[p].epoch != self.recorded[p].source_epoch
        }

    def update_ended_epochs(self, epoch_ends: Mapping[Partition, Offset], set_back: Collection[Partition] = ()) -> None:
        """Below an observed end, the source has lost what it had acknowledged by then.

        `set_back`: of a restored source. What it says ends when a leader with the newer epoch is back.
        """
        for partition, end in epoch_ends.items():
            epoch, observed_end = self.end_epochs.pop(partition)
            self.rewritten.pop(partition, None)
            agreed_epoch = self.recorded[partition].source_epoch
            if end < observed_end and agreed_epoch is not None:
                self.rewritten[partition] = agreed_epoch, end
                if partition in set_back:
                    self.end_epochs[partition] = epoch, observed_end

    def update_end_epochs(self, leader_epochs: Mapping[Partition, int], ends: Mapping[Partition, Offset]) -> None:
        """`leader_epochs`: under which leaders told the ends; -1: unknown."""
        for partition, epoch in leader_epochs.items():
            status = self.recorded.get(partition)
            if partition in self.rewritten:
                continue
            if epoch < 0 or status is None or not self._is_copy(partition, status):
                self.end_epochs.pop(partition, None)
            elif epoch == status.source_epoch or self.end_epochs.get(partition, (epoch,))[0] == epoch:
                self.end_epochs[partition] = epoch, ends[partition]

    def update_ends(
        self,
        at_ms: int,
        ends: Mapping[Partition, Offset],
        offline: Collection[Partition],
        confirmed_ms: Mapping[Partition, int | None] = MappingProxyType({}),
    ) -> None:
        """`confirmed_ms`: of `ends` that may be older than `at_ms`; None: unknown."""
        if self.observed_since_ms is not None and not confirmed_ms:
            self.append_rate.add_growth(at_ms - self.observed_since_ms, self._sum_growth(ends))
        self.at_ms, self.observed_since_ms = at_ms, None if confirmed_ms else at_ms
        self.offline = frozenset(p for p in offline if not self._is_deleted(p))
        observed = {p: ObservedEnd(end, at_ms) for p, end in ends.items() if p not in confirmed_ms}
        for p, told_ms in confirmed_ms.items():
            known = self.observed_ends.get(p)
            if known is not None and known.at_ms > (told_ms or 0):
                observed[p] = ObservedEnd(max(known.end, ends[p]), known.at_ms)
            elif told_ms is not None:
                observed[p] = ObservedEnd(ends[p], told_ms)
        self.observed_ends |= observed
        copies = {p for p, status in self.recorded.items() if self._is_copy(p, status)}
        self.recovery_points.keep_only(copies)
        self.recovery_points.add_reached({p: observed for p, observed in self.seen_empty.items() if p in copies})
        empty = {p: observation for p, observation in observed.items() if not observation.end}
        self.seen_empty = {p: seen for p, seen in (self.seen_empty | empty).items() if not self._was_ever_copy(p)}
        self.recovery_points.add_observations({p: observation for p, observation in observed.items() if p in copies})

    def begin_unobserved(self) -> None:
        self.observed_since_ms = None

    def _sum_growth(self, ends: Mapping[Partition, Offset]) -> int:
        known_ends = self.observed_ends
        observed = {p for p, known in known_ends.items() if known.at_ms == self.observed_since_ms and p in ends}
        return sum(max(0, ends[p] - known_ends[p].end) for p in select_application_partitions(observed))

    def set_recorded(
        self, recorded: Mapping[Partition, PartitionStatus], replaced: frozenset[Partition] = frozenset()
    ) -> None:
        self.recovery_points.forget(replaced)
        self.recorded = recorded
        self.unrecorded -= recorded.keys()
        agreed_epochs = {p: status.source_epoch for p, status in recorded.items() if status.source_epoch is not None}
        compared = {p for p, row in self.rewritten.items() if agreed_epochs.get(p) != row[0]}
        self.rewritten = {p: row for p, row in self.rewritten.items() if p not in compared}
        self.end_epochs = {
            p: row
            for p, row in self.end_epochs.items()
            if p in agreed_epochs and agreed_epochs[p] <= row[0] and p not in compared
        }

    def forget_unknown(self) -> None:
        known, uncopied = self.get_known_partitions(), self.get_uncopied_partitions()
        topic_names = {p.topic for p in known}
        self.observed_ends = {p: observed for p, observed in self.observed_ends.items() if p in known}
        self.seen_empty = {p: observed for p, observed in self.seen_empty.items() if p in known}
        self.log_starts = {p: start for p, start in self.log_starts.items() if p in uncopied}
        self.topic_ids = {topic: topic_id for topic, topic_id in self.topic_ids.items() if topic in topic_names}

    def update_open_transactions(self, at_ms: int, ongoing: Mapping[TransactionKey, ObservedTransaction]) -> None:
        """Earlier ones that are missing have ended."""
        before = self.transactions or {}
        ended = {
            key: transaction if transaction.state == TRANSACTION_OVER else replace(transaction, state=TRANSACTION_OVER)
            for key, transaction in before.items()
            if key not in ongoing
        }
        # An ending transaction is described without partitions that have its marker.
        newest = sorted(ended, key=lambda key: key[2])[-_MAX_ENDED_TRANSACTIONS:]
        self.transactions = {key: ended[key] for key in newest}
        self.transactions |= {key: _join_parts(before.get(key), transaction) for key, transaction in ongoing.items()}
        self.transactions_ms = at_ms

    def set_ended_bounds(self, ends: Mapping[Partition, Offset]) -> None:
        """Ends observed after the transactions: ended ones lie below."""
        self.transactions = {
            key: replace(transaction, parts=tuple(_set_part_end(part, ends) for part in transaction.parts))
            if transaction.state == TRANSACTION_OVER
            else transaction
            for key, transaction in (self.transactions or {}).items()
        }

    def forget_copied(self, positions: Mapping[Partition, Offset]) -> None:
        self.transactions = {
            key: transaction
            for key, transaction in (self.transactions or {}).items()
            if any(part.end is None or positions.get(part.partition, -1) < part.end for part in transaction.parts)
        }

    def get_ended_partitions(self) -> frozenset[Partition]:
        transactions = (self.transactions or {}).values()
        return frozenset(
            part.partition
            for transaction in transactions
            if transaction.state == TRANSACTION_OVER
            for part in transaction.parts
        )

    def to_observation(self) -> SourceObservation:
        transactions_by_age = sorted((self.transactions or {}).items(), key=lambda item: item[0][2])
        return SourceObservation(
            mirror=self.mirror,
            at_ms=self.at_ms,
            topics=tuple(self._describe_topics()),
            listed_ms=self.listed_ms,
            listed_by=self.listed_by,
            transactions=tuple(transaction for _, transaction in transactions_by_age[-MAX_LISTED_TRANSACTIONS:]),
            transactions_ms=self.transactions_ms,
            unlisted_transactions=max(0, len(transactions_by_age) - MAX_LISTED_TRANSACTIONS),
            offsets_per_s=self.append_rate.compute_offsets_per_s(),
        )

    def _describe_topics(self) -> Iterable[ObservedTopic]:
        indexes: dict[str, list[int]] = {}
        for partition in self.observed_ends.keys() | self.offline | self.unrecorded:
            indexes.setdefault(partition.topic, []).append(partition.index)
        offline: dict[str, list[int]] = {}
        for partition in sorted(self.offline):
            offline.setdefault(partition.topic, []).append(partition.index)
        recovery_points: dict[str, list[tuple[int, int, int]]] = {}
        for partition, reached in sorted(self.recovery_points.get_reached().items()):
            row = partition.index, self.at_ms - reached.at_ms, reached.end
            recovery_points.setdefault(partition.topic, []).append(row)
        for topic, known_indexes in sorted(indexes.items()):
            observed_ends = [self.observed_ends.get(Partition(topic, index)) for index in range(max(known_indexes) + 1)]
            ago_ms = tuple(max(0, self.at_ms - observed.at_ms) if observed else 0 for observed in observed_ends)
            status = next((s for i in sorted(known_indexes) if (s := self.recorded.get(Partition(topic, i)))), None)
            starts = ((index, self.log_starts.get(Partition(topic, index))) for index in sorted(known_indexes))
            yield ObservedTopic(
                topic=topic,
                id=self._find_changed_id(topic, status),
                copy_ids=shorten_ids(status) if status else ("", ""),
                starts=tuple((index, start) for index, start in starts if start is not None),
                ends=tuple(observed.end if observed else None for observed in observed_ends),
                ages_ms=ago_ms if any(ago_ms) else (),
                offline=tuple(offline.get(topic, ())),
                rewritten=tuple(
                    (index, *self.rewritten[p])
                    for index in sorted(known_indexes)
                    if (p := Partition(topic, index)) in self.rewritten
                ),
                end_epochs=tuple(self._list_end_epochs(topic, known_indexes)),
                recovery_points=tuple(recovery_points.get(topic, ())),
            )

    def _list_end_epochs(self, topic: str, indexes: Iterable[int]) -> Iterable[tuple[int, int]]:
        for index in sorted(indexes):
            partition = Partition(topic, index)
            epoch = self.end_epochs.get(partition, (None,))[0]
            status = self.recorded.get(partition)
            if epoch is not None and (partition in self.rewritten or status is None or epoch != status.source_epoch):
                yield index, epoch


def find_replaced_copies(
    before: Mapping[Partition, PartitionStatus], now: Mapping[Partition, PartitionStatus]
) -> frozenset[Partition]:
    """By their topic ids; or without a record."""
    return frozenset(
        p
        for p, old in before.items()
        if p not in now
        or (old.source_topic_id, old.destination_topic_id) != (now[p].source_topic_id, now[p].destination_topic_id)
    )


def restore_observed(previous: SourceObservation, recorded: Mapping[Partition, PartitionStatus]) -> ObservedSource:
    rewritten = {p: (agreed_epoch, offset) for p, agreed_epoch, offset in previous.get_rewritten()}
    ends, topic_ids = dict(previous.get_ends()), previous.get_new_topic_ids()
    agreed_epochs = {
        p: status.source_epoch
        for p, status in recorded.items()
        if status.source_epoch is not None and p not in rewritten and p.topic not in topic_ids
    }
    epochs = agreed_epochs | dict(previous.get_end_epochs())
    return ObservedSource(
        previous.mirror,
        ends,
        recovery_points=RecoveryPoints({**dict(previous.get_recovery_points()), **dict(previous.get_complete())}),
        unrecorded=frozenset(previous.get_partitions()),  # until the record is read
        topic_ids=topic_ids,
        log_starts=dict(previous.get_starts()),
        end_epochs={p: (epoch, ends[p].end) for p, epoch in epochs.items() if p in ends},
        rewritten=rewritten,
        listed_ms=previous.listed_ms,
        listed_by=previous.listed_by,
    )


def _join_parts(previous: ObservedTransaction | None, current: ObservedTransaction) -> ObservedTransaction:
    parts = {part.partition: part for part in previous.parts} if previous else {}
    for part in current.parts:
        if part.first is not None or part.partition not in parts:
            parts[part.partition] = part
    return replace(current, parts=tuple(parts[p] for p in sorted(parts)))


def _set_part_end(part: PartitionTransaction, ends: Mapping[Partition, Offset]) -> PartitionTransaction:
    end = ends.get(part.partition)
    return part if part.end is not None or end is None else replace(part, end=end)
