"""What a mirror's first copy takes in time and bytes, and warnings before it is created."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from mirror_core.decide.gaps import FILLED_MASK
from mirror_core.decide.position import MARKED_START
from mirror_core.decide.topics import brokers_that_must_have_it, mirror_replication_factor
from mirror_core.decide.view import some
from mirror_core.model.mirror import Gaps
from mirror_core.model.names import Offset, Partition
from mirror_core.model.units import in_bytes

SEEDS_PER_S: Final = 5_000_000
"""Seed offsets a broker accepts; 5 to 12 million were measured on two busy cores."""
MARKERS_PER_S: Final = 15_000
"""Marker offsets a broker accepts: 16,000 measured for one partition, up to 126,000 for many."""
MARKERS_WAIT_S: Final = 2
SEED_BYTES: Final = 0.9
MARKER_BYTES: Final = 78
HIDDEN_BYTES: Final = 11
RECORD_BYTES: Final = 7
_FEW_HOLES: Final = 1_000_000
_NAMED: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """Offsets and partitions are counted; seconds and bytes are high estimates."""

    partitions: int
    seeded_partitions: int
    seeded_offsets: int
    filled_partitions: int
    filled_offsets: int
    gaps: Gaps
    offsets: int
    bytes: int | None
    """One replica each; None: the source does not tell all sizes."""
    holes: int
    """Offsets without a record, because the log is too small for them (unless well compressed). The
    cleaner removed them.
    """
    too_many_holes: tuple[Partition, ...]

    @property
    def seconds(self) -> float:
        if self.gaps is Gaps.HIDDEN:
            return (self.seeded_offsets + self.filled_offsets) / SEEDS_PER_S
        waiting = MARKERS_WAIT_S if self.filled_partitions else 0
        return waiting + self.seeded_offsets / SEEDS_PER_S + self.filled_offsets / MARKERS_PER_S

    @property
    def seed_bytes(self) -> int:
        return int(self.seeded_offsets * SEED_BYTES)

    @property
    def filler_bytes(self) -> int:
        return self.filled_offsets * (MARKER_BYTES if self.gaps is Gaps.MARKERS else HIDDEN_BYTES)


def outlook(
    starts: Mapping[Partition, Offset],
    ends: Mapping[Partition, Offset],
    sizes: Mapping[Partition, int],
    gaps: Gaps = Gaps.MARKERS,
) -> Outlook:
    seeded = [start for start in starts.values() if start > MARKED_START]
    filled = [start for start in starts.values() if 0 < start <= MARKED_START]
    room = {p: sizes[p] // RECORD_BYTES for p in starts if p in sizes}
    holes = {p: n for p, records in room.items() if (n := ends[p] - starts[p] - records) > 0}
    return Outlook(
        partitions=len(starts),
        seeded_partitions=len(seeded),
        seeded_offsets=sum(seeded),
        filled_partitions=len(filled),
        filled_offsets=sum(filled),
        gaps=gaps,
        offsets=sum(max(0, ends[partition] - start) for partition, start in starts.items()),
        bytes=sum(sizes[partition] for partition in starts) if starts.keys() <= sizes.keys() else None,
        holes=sum(holes.values()),
        too_many_holes=tuple(sorted(p for p, n in holes.items() if n > FILLED_MASK and gaps is Gaps.MARKERS)),
    )


def in_words(seen: Outlook) -> Iterator[str]:
    size = "bytes unknown: DESCRIBE on the source's cluster is missing" if seen.bytes is None else in_bytes(seen.bytes)
    yield f"to copy: {seen.partitions:,} partitions, {seen.offsets:,} offsets, {size}"
    if seen.seeded_partitions:
        yield (
            f"to seed: {seen.seeded_partitions:,} partitions begin late, {seen.seeded_offsets:,} offsets; estimate: "
            f"{in_bytes(seen.seed_bytes)} on each replica, for a while"
        )
    if seen.filled_partitions:
        yield (
            f"to fill: {seen.filled_partitions:,} partitions begin late, {seen.filled_offsets:,} offsets; estimate: "
            f"{in_bytes(seen.filler_bytes)} on each replica, until promotion"
        )
    if seen.seconds:
        yield f"before their first records are copied: {_time(seen.seconds)} or less (estimate)"
    if seen.holes >= _FEW_HOLES:
        hidden = seen.gaps is Gaps.HIDDEN
        per_s, each = (SEEDS_PER_S, HIDDEN_BYTES) if hidden else (MARKERS_PER_S, MARKER_BYTES)
        yield (
            f"holes: {seen.holes:,} offsets or more hold no record, by the size of the logs (fewer, if they are well "
            f"compressed), and are filled: {_time(seen.holes / per_s)} more, {in_bytes(seen.holes * each)} on each "
            "replica, if it is so many (estimate)"
        )
    if seen.too_many_holes:
        yield (
            f"warning: so {some(seen.too_many_holes, _NAMED)} may have more holes than the "
            f"{FILLED_MASK:,} that markers can fill in a partition, and would be FAILED there (gap-limit): create the "
            "mirror with --gaps hidden, or leave these topics out"
        )


def few_replicas(destination: str, factors: Mapping[str, int], brokers: int) -> list[str]:
    here = {topic: mirror_replication_factor(factor, brokers) for topic, factor in factors.items() if factor > 1}
    few = sorted(topic for topic, factor in here.items() if brokers_that_must_have_it(factor) < 2)
    if not few:
        return []
    most = max(here[topic] for topic in few)
    return [
        f"replicas: {len(few)} topics have no more than {most} on {destination} ({some(few, _NAMED)}), so "
        "min.insync.replicas=1 while they are mirrored: a record counts as copied once one broker has it, and one "
        "broken disk can lose it. With 3 replicas it takes two brokers"
    ]


def compacted_for_kafka_go(destination: str, topics: Iterable[str]) -> list[str]:
    found = sorted(topics)
    if not found:
        return []
    return [
        f"clients: {len(found)} compacted topics without transactions ({some(found, _NAMED)}) get transaction markers "
        f"where the cleaner has taken records, and consumers of kafka-go (segmentio) show those as records. Where such "
        f"consumers read them on {destination}, create the mirror with --gaps hidden: every consumer drops hidden "
        f"records, but these topics are then not compacted on {destination} until promotion"
    ]


def unclean_elections(source: str, topics: Iterable[str]) -> list[str]:
    found = sorted(topics)
    if not found:
        return []
    return [
        f"unclean elections: {len(found)} topics have unclean.leader.election.enable=true on {source} "
        f"({some(found, _NAMED)}): a leader that lacks records which were copied makes its partition FAILED "
        "(diverged), and a person has to decide which side is right. Set it to false"
    ]


def refused_settings(destination: str, refused: Mapping[str, Mapping[str, str]]) -> list[str]:
    by_setting = dict[str, list[str]]()
    for topic, mine in sorted(refused.items()):
        for key in mine:
            by_setting.setdefault(key, []).append(topic)
    return [
        f"{destination} refuses {key} of {some(topics, _NAMED)} ({refused[topics[0]][key]}): copied without it, and "
        "without it after a failover, too"
        for key, topics in sorted(by_setting.items())
    ]


def _time(seconds: float) -> str:
    whole = int(seconds) + 1
    if whole < 120:
        return f"{whole} s"
    minutes = -(-whole // 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
