"""Groups that read MirrorMaker's copies on a mirror's destination, and where each begins in the mirror's own copies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final, TypeVar

from mirror_core.decide.filters import build_group_filter, build_topic_filter
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ClusterConfig, Principal
from mirror_core.kafka.consumer_groups import (
    SHARE_KIND,
    CommittedOffset,
    CommittedOffsets,
    ConsumerGroup,
    fetch_group_offsets,
    list_groups,
)
from mirror_core.kafka.log_offsets import OffsetPoint, list_offset_points
from mirror_core.kafka.log_reader import LogReader
from mirror_core.model.errors import BadRequest, Indeterminate, RemoteFault
from mirror_core.model.findings import Finding
from mirror_core.model.names import NamePattern, Offset, Partition
from mirror_core.parity.record_scan import digest_content
from mirror_core.state.mirror_link import MirrorLink
from mirror_core.wire.batch import LOG_APPEND_TIME
from mirror_core.wire.fields import MalformedResponse
from mirrorbook_tools.mirrormaker.mm2_config import Mm2Names
from mirrorbook_tools.mirrormaker.mm2_records import (
    GroupCheckpoint,
    OffsetSync,
    decode_checkpoint,
    decode_offset_sync,
)
from mirrorbook_tools.mirrormaker.start_offsets import (
    ComparedRecord,
    StartCertainty,
    StartOffset,
    find_start_offset,
    make_unknown,
)

_READ_BYTES: Final = 1 << 20
_MAX_TRIED_PLACES: Final = 10
"""The nearest ones that MirrorMaker has recorded."""
_START, _END = OffsetPoint.START, OffsetPoint.STABLE_END
Decoded = TypeVar("Decoded")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderStart:
    """One group and one partition."""

    group: str
    is_active: bool
    """It has members: nobody else can commit for it."""
    old_partition: Partition
    old_offset: int
    """In MirrorMaker's copy, next to be read."""
    is_checkpoint: bool
    """The group has committed nothing there: by MirrorMaker's checkpoint."""
    checkpoint: GroupCheckpoint | None
    new_partition: Partition
    start: StartOffset
    current: Offset | None
    """What the group has committed in the new copy."""
    is_carried: bool
    """The mirror brings this group's offsets from the source."""


@dataclass(slots=True)
class _Logs:
    """Both copies, each read by a connection of its own; bounds as they were at first."""

    old_reader: LogReader
    new_reader: LogReader
    bounds: Mapping[Partition, tuple[Offset, Offset]]
    """Log start and stable end."""
    _is_dated: dict[Partition, bool] = field(default_factory=dict)

    def read_old(self, partition: Partition, start: int) -> Iterator[ComparedRecord]:
        for header, record in self.old_reader.records(partition, Offset(start), self.bounds[partition][1]):
            # Brokers of the old copy may have dated its records themselves: then their times say nothing.
            is_dated = self._is_dated.setdefault(partition, not header.attributes & LOG_APPEND_TIME)
            time_ms = record.timestamp_ms if is_dated else 0
            yield ComparedRecord(
                record.offset, digest_content(time_ms, False, record.key, record.value, record.headers)
            )

    def read_new(self, partition: Partition, start: int, old_partition: Partition) -> Iterator[ComparedRecord]:
        for _, record in self.new_reader.records(partition, Offset(start), self.bounds[partition][1]):
            time_ms = record.timestamp_ms if self._is_dated.get(old_partition, True) else 0
            yield ComparedRecord(
                record.offset, digest_content(time_ms, False, record.key, record.value, record.headers)
            )


def survey_readers(link: MirrorLink, names: Mm2Names, groups: Sequence[NamePattern]) -> list[ReaderStart]:
    """Reads both clusters, and writes to none. Raises BadRequest, Indeterminate, RemoteFault."""
    if names.is_custom or not names.prefix:
        raise BadRequest(
            f"mirror {link.mirror.name}: MirrorMaker's copies have no prefix that is known here, so no reader's place"
            " can be looked up: see `mirrorbook import mm2`"
        )
    with ClusterClient(link.destination) as client:
        copies = _find_copies(link, names, client)
        listed = {group.id: group for group in list_groups(client).values() if group.kind != SHARE_KIND}
        offsets = _fetch_offsets(client, listed.values())
        with LogReader(link.destination, Principal.CONTROL) as reader:
            checkpoints = _read_checkpoints(reader, client, names.checkpoints)
        partitions = {p for pair in copies.items() for p in pair}
        _check_stable(client, offsets, partitions)
        points = list_offset_points(client, partitions, [_START, _END])
    committed = {group: own.committed for group, own in offsets.items()}
    bounds = {p: (points[_START][p], points[_END][p]) for p in partitions}
    syncs = _read_offset_syncs(link.destination if names.is_on_target else link.source, names.offset_syncs)
    carried = _list_carried(link)
    places = _list_places(copies, committed, checkpoints, groups)
    rows = list[ReaderStart]()
    with ExitStack() as stack:
        old_reader, new_reader = (
            stack.enter_context(LogReader(link.destination, Principal.CONTROL, max_bytes=_READ_BYTES)) for _ in range(2)
        )
        logs = _Logs(old_reader, new_reader, bounds)
        for (group, old_partition), offset in sorted(places.items()):
            new_partition = copies[old_partition]
            checkpoint = checkpoints.get((group, old_partition))
            own = committed.get(group, {})
            current = own.get(new_partition)
            rows.append(
                ReaderStart(
                    group=group,
                    is_active=group in listed and not listed[group].is_idle,
                    old_partition=old_partition,
                    old_offset=offset,
                    is_checkpoint=old_partition not in own,
                    checkpoint=checkpoint,
                    new_partition=new_partition,
                    start=_find_start(logs, old_partition, new_partition, offset, syncs[new_partition]),
                    current=current.offset if current else None,
                    is_carried=(group, new_partition) in carried,
                )
            )
    return rows


def _find_copies(link: MirrorLink, names: Mm2Names, client: ClusterClient) -> dict[Partition, Partition]:
    """The mirror's partition for each of MirrorMaker's. Indeterminate: one is not there yet."""
    topics, wanted = client.metadata().topics, build_topic_filter(link.mirror)
    old_topics = [
        topic for topic in topics if topic.startswith(names.prefix) and topic.removeprefix(names.prefix) in wanted
    ]
    if not old_topics:
        raise Indeterminate(
            f"cluster {link.destination.name} has no topic {names.prefix}… that is a copy of one of mirror"
            f" {link.mirror.name}'s: nothing to look up"
        )
    copies = {
        Partition(topic, index): Partition(topic.removeprefix(names.prefix), index)
        for topic in old_topics
        for index in topics[topic].partitions
    }
    missing = [
        new for new in copies.values() if new.topic not in topics or new.index not in topics[new.topic].partitions
    ]
    if missing:
        raise Indeterminate(
            f"cluster {link.destination.name}: {min(missing)} is not copied yet by mirror {link.mirror.name}: wait"
            f" until `mirrorbook mirror describe {link.mirror.name}` shows it"
        )
    return copies


def _fetch_offsets(client: ClusterClient, groups: Iterable[ConsumerGroup]) -> Mapping[str, CommittedOffsets]:
    fetched = fetch_group_offsets(client, groups)
    for error in fetched.faults.values():
        raise error
    return fetched.offsets


def _check_stable(
    client: ClusterClient, offsets: Mapping[str, CommittedOffsets], partitions: Collection[Partition]
) -> None:
    for group, committed in sorted(offsets.items()):
        for partition in committed.unstable.intersection(partitions):
            raise Indeterminate(
                f"cluster {client.name}, group {group}, {partition}: its offset is in an open transaction: try again"
            )


def _list_places(
    copies: Mapping[Partition, Partition],
    committed: Mapping[str, Mapping[Partition, CommittedOffset]],
    checkpoints: Mapping[tuple[str, Partition], GroupCheckpoint],
    groups: Sequence[NamePattern],
) -> dict[tuple[str, Partition], int]:
    """Offsets in old copies: what a group has committed there counts more than a checkpoint."""
    places = {place: checkpoint.copy_offset for place, checkpoint in checkpoints.items()}
    places |= {(group, p): own.offset for group, offsets in committed.items() for p, own in offsets.items()}
    return {
        (group, partition): offset
        for (group, partition), offset in places.items()
        if partition in copies and any(pattern.matches(group) for pattern in groups)
    }


def _list_carried(link: MirrorLink) -> frozenset[tuple[str, Partition]]:
    wanted = build_group_filter(link.mirror)
    with ClusterClient(link.source) as client:
        groups = [group for group in list_groups(client).values() if group.kind != SHARE_KIND and group.id in wanted]
        offsets = _fetch_offsets(client, groups)
    return frozenset((group, p) for group, own in offsets.items() for p in own.committed.keys() | own.unstable)


def _find_start(
    logs: _Logs, old_partition: Partition, new_partition: Partition, offset: int, syncs: Sequence[OffsetSync]
) -> StartOffset:
    (old_start, old_end), (new_start, new_end) = logs.bounds[old_partition], logs.bounds[new_partition]
    subject = str(new_partition)
    if offset == 0:
        return StartOffset(certainty=StartCertainty.EXACT, offset=new_start, repeats=0, reason=None)
    if not old_start <= offset <= old_end:
        return make_unknown(Finding("mm2_reader_outside", subject, offset=offset, old_start=old_start, old_end=old_end))
    near = sorted(
        {
            (sync.copy_offset, sync.source_offset)
            for sync in syncs
            if old_start <= sync.copy_offset <= offset and new_start <= sync.source_offset < new_end
        },
        reverse=True,
    )
    for old_place, new_place in [*near[:_MAX_TRIED_PLACES], (old_start, new_start)]:
        if _is_same_record(logs, old_partition, old_place, new_partition, new_place):
            return find_start_offset(
                logs.read_old(old_partition, old_place),
                logs.read_new(new_partition, new_place, old_partition),
                offset,
                Offset(new_place),
                subject,
            )
    return make_unknown(Finding("mm2_no_common_place", subject, count=len(near), old_start=old_start, start=new_start))


def _is_same_record(
    logs: _Logs, old_partition: Partition, old_place: int, new_partition: Partition, new_place: int
) -> bool:
    """At these very offsets; at the logs' starts: the first ones behind them."""
    old_record = next(logs.read_old(old_partition, old_place), None)
    new_record = next(logs.read_new(new_partition, new_place, old_partition), None)
    if old_record is None or new_record is None or old_record.content != new_record.content:
        return False
    starts = logs.bounds[old_partition][0], logs.bounds[new_partition][0]
    return (old_record.offset, new_record.offset) == (old_place, new_place) or (old_place, new_place) == starts


def _read_checkpoints(
    reader: LogReader, client: ClusterClient, topic: str
) -> dict[tuple[str, Partition], GroupCheckpoint]:
    """The newest of each group and partition; none where there is no such topic."""
    checkpoints = dict[tuple[str, Partition], GroupCheckpoint]()
    for checkpoint in _read_topic(reader, client, topic, decode_checkpoint):
        checkpoints[checkpoint.group, checkpoint.partition] = checkpoint
    return checkpoints


def _read_offset_syncs(cluster: ClusterConfig, topic: str) -> Mapping[Partition, list[OffsetSync]]:
    """By the source's partition. Needs READ on the topic; without the topic there are none."""
    syncs = defaultdict[Partition, list[OffsetSync]](list)
    with ClusterClient(cluster) as client, LogReader(cluster, Principal.CONTROL) as reader:
        for sync in _read_topic(reader, client, topic, decode_offset_sync):
            syncs[sync.partition].append(sync)
    return syncs


def _read_topic(
    reader: LogReader,
    client: ClusterClient,
    topic: str,
    decode: Callable[[bytes | None, bytes | None], Decoded | None],
) -> Iterator[Decoded]:
    view = client.metadata([topic]).topics.get(topic)
    partitions = [Partition(topic, index) for index in sorted(view.partitions)] if view else []
    points = list_offset_points(client, partitions, [_START, _END])
    for partition in partitions:
        for _, record in reader.records(partition, points[_START][partition], points[_END][partition]):
            try:
                decoded = decode(record.key, record.value)
            except MalformedResponse as error:
                raise RemoteFault(
                    f"cluster {client.name}, {partition}, offset {record.offset}: no record of MirrorMaker's: {error}"
                ) from None
            if decoded is not None:
                yield decoded
