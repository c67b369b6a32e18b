"""Time and bytes of a mirror's first copy, and warnings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from mirror_core.decide.gaps_and_resume import FILLED_MASK, MAX_MARKED_START
from mirror_core.decide.mirror_snapshot import join_limited
from mirror_core.decide.topic_settings import MIRROR_HELD_KEYS, choose_min_insync_replicas, choose_replication_factor
from mirror_core.model.mirror import GapFilling
from mirror_core.model.names import Offset, Partition
from mirror_core.model.parity_verdict import ParityRange
from mirror_core.model.text import format_bytes, format_count

SEEDS_PER_S: Final = 5_000_000
"""Seed offsets a broker accepts; 5 to 12 million were measured on two busy cores."""
MARKERS_PER_S: Final = 15_000
"""Marker offsets a broker accepts: 16,000 measured for one partition, up to 126,000 for many."""
MARKERS_WAIT_S: Final = 2
SEED_BYTES: Final = 0.9
MARKER_BYTES: Final = 78
HIDDEN_BYTES: Final = 11
MIN_RECORD_BYTES: Final = 7
_MIN_REPORTED_HOLES: Final = 1_000_000
_MAX_NAMED_TOPICS: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyEstimate:
    """Seconds and bytes are high estimates."""

    partitions: int
    seeded_partitions: int
    seeded_offsets: int
    filled_partitions: int
    filled_offsets: int
    gaps: GapFilling
    offsets: int
    total_bytes: int | None
    """One replica each; None: the source does not tell all sizes."""
    holes: int
    """Offsets of removed records: the log is too small for them, unless well compressed."""
    too_many_holes: tuple[Partition, ...]

    @property
    def seconds(self) -> float:
        if self.gaps is GapFilling.HIDDEN:
            return (self.seeded_offsets + self.filled_offsets) / SEEDS_PER_S
        waiting = MARKERS_WAIT_S if self.filled_partitions else 0
        return waiting + self.seeded_offsets / SEEDS_PER_S + self.filled_offsets / MARKERS_PER_S

    @property
    def seed_bytes(self) -> int:
        return int(self.seeded_offsets * SEED_BYTES)

    @property
    def filler_bytes(self) -> int:
        return self.filled_offsets * (MARKER_BYTES if self.gaps is GapFilling.MARKERS else HIDDEN_BYTES)


def estimate_copy(
    starts: Mapping[Partition, Offset],
    ends: Mapping[Partition, Offset],
    sizes: Mapping[Partition, int],
    gaps: GapFilling = GapFilling.MARKERS,
) -> CopyEstimate:
    seeded = [start for start in starts.values() if start > MAX_MARKED_START]
    filled = [start for start in starts.values() if 0 < start <= MAX_MARKED_START]
    record_capacity = {p: sizes[p] // MIN_RECORD_BYTES for p in starts if p in sizes}
    holes = {p: n for p, records in record_capacity.items() if (n := ends[p] - starts[p] - records) > 0}
    return CopyEstimate(
        partitions=len(starts),
        seeded_partitions=len(seeded),
        seeded_offsets=sum(seeded),
        filled_partitions=len(filled),
        filled_offsets=sum(filled),
        gaps=gaps,
        offsets=sum(max(0, ends[partition] - start) for partition, start in starts.items()),
        total_bytes=sum(sizes[partition] for partition in starts) if starts.keys() <= sizes.keys() else None,
        holes=sum(holes.values()),
        too_many_holes=tuple(sorted(p for p, n in holes.items() if n > FILLED_MASK and gaps is GapFilling.MARKERS)),
    )


def format_copy_estimate(estimate: CopyEstimate) -> Iterator[str]:
    size = (
        "bytes unknown: DESCRIBE on the source's cluster is missing"
        if estimate.total_bytes is None
        else format_bytes(estimate.total_bytes)
    )
    yield f"to copy: {estimate.partitions:,} partitions, {estimate.offsets:,} offsets, {size}"
    if estimate.seeded_partitions:
        yield (
            f"to seed: {estimate.seeded_partitions:,} partitions begin late, {estimate.seeded_offsets:,} offsets;"
            f" estimate: {format_bytes(estimate.seed_bytes)} on each replica, for a while"
        )
    if estimate.filled_partitions:
        yield (
            f"to fill: {estimate.filled_partitions:,} partitions begin late, {estimate.filled_offsets:,} offsets;"
            f" estimate: {format_bytes(estimate.filler_bytes)} on each replica, until promotion"
        )
    if estimate.seconds:
        yield f"before their first records are copied: {_format_time_limit(estimate.seconds)} or less (estimate)"
    if estimate.holes >= _MIN_REPORTED_HOLES:
        is_hidden = estimate.gaps is GapFilling.HIDDEN
        per_s, bytes_each = (SEEDS_PER_S, HIDDEN_BYTES) if is_hidden else (MARKERS_PER_S, MARKER_BYTES)
        yield (
            f"holes: {estimate.holes:,} offsets or more hold no record, by the size of the logs (fewer, if they are"
            f" well compressed), and are filled: {_format_time_limit(estimate.holes / per_s)} more,"
            f" {format_bytes(estimate.holes * bytes_each)} on each replica, if it is so many (estimate)"
        )
    if estimate.too_many_holes:
        yield (
            f"warning: so {join_limited(estimate.too_many_holes, _MAX_NAMED_TOPICS)} may have more holes than the "
            f"{FILLED_MASK:,} that markers can fill in a partition, and would be FAILED there (gap-limit): create the "
            "mirror with --gaps hidden, or leave these topics out"
        )


def warn_few_replicas(destination: str, factors: Mapping[str, int], max_replicas: int) -> list[str]:
    mirror_factors = {
        topic: choose_replication_factor(factor, max_replicas) for topic, factor in factors.items() if factor > 1
    }
    affected = sorted(topic for topic, factor in mirror_factors.items() if choose_min_insync_replicas(factor) < 2)
    if not affected:
        return []
    max_factor = max(mirror_factors[topic] for topic in affected)
    return [
        f"replicas: {len(affected)} topics have no more than {max_factor} on {destination}"
        f" ({join_limited(affected, _MAX_NAMED_TOPICS)}), so min.insync.replicas=1 while they are mirrored: a record"
        " counts as copied once one broker has it, and one broken disk can lose it. With 3 replicas it takes two"
        " brokers"
    ]


def warn_kafka_go_compaction(destination: str, topics: Iterable[str]) -> list[str]:
    sorted_topics = sorted(topics)
    if not sorted_topics:
        return []
    return [
        f"clients: {len(sorted_topics)} compacted topics without transactions"
        f" ({join_limited(sorted_topics, _MAX_NAMED_TOPICS)}) get transaction markers where the cleaner has taken"
        " records, and consumers of kafka-go (segmentio) show those as records. Where such consumers read them on"
        f" {destination}, create the mirror with --gaps hidden: every consumer drops hidden records, but these topics"
        f" are then not compacted on {destination} until promotion"
    ]


def warn_unclean_elections(source: str, topics: Iterable[str]) -> list[str]:
    sorted_topics = sorted(topics)
    if not sorted_topics:
        return []
    return [
        f"unclean elections: {len(sorted_topics)} topics have unclean.leader.election.enable=true on {source}"
        f" ({join_limited(sorted_topics, _MAX_NAMED_TOPICS)}): a leader that lacks records which were copied makes its"
        " partition FAILED (diverged), and a person has to decide which side is right. Set it to false"
    ]


def warn_refused_settings(destination: str, refused: Mapping[str, Mapping[str, str]]) -> list[str]:
    return [
        f"{destination} refuses {key} of {join_limited(topics, _MAX_NAMED_TOPICS)} ({refused[topics[0]][key]}): copied"
        + (
            " without the mirror's value"
            if key in MIRROR_HELD_KEYS
            else " without it, and without it after a failover, too"
        )
        for key, topics in _group_by_setting(refused)
    ]


def warn_unstageable_settings(destination: str, refused: Mapping[str, Mapping[str, str]]) -> list[str]:
    return [
        f"{destination} refuses the source's {key} of {join_limited(topics, _MAX_NAMED_TOPICS)}"
        f" ({refused[topics[0]][key]}): a failover could not set it. Each sync tries it again, and readiness and plans"
        " name what is refused"
        for key, topics in _group_by_setting(refused)
    ]


def _group_by_setting(refused: Mapping[str, Mapping[str, str]]) -> list[tuple[str, list[str]]]:
    by_setting = dict[str, list[str]]()
    for topic, topic_refusals in sorted(refused.items()):
        for key in topic_refusals:
            by_setting.setdefault(key, []).append(topic)
    return sorted(by_setting.items())


def _format_time_limit(seconds: float) -> str:
    whole_seconds = int(seconds) + 1
    if whole_seconds < 120:
        return f"{whole_seconds} s"
    minutes = -(-whole_seconds // 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def count_compared(ranges: Sequence[ParityRange], proven: Mapping[Partition, Offset]) -> tuple[int, int]:
    """(offsets compared equal from each range's start on, all offsets). `proven`: next offset."""
    done = sum(min(r.end, max(r.start, proven.get(r.partition, r.start))) - r.start for r in ranges)
    return done, sum(r.end - r.start for r in ranges)


MIN_MEASURED_PART: Final = 20
MIN_MEASURED_S: Final = 60.0
"""The time left is estimated after this much of the work, or after these seconds: a beginning says little."""


def format_progress(done: int, total: int, seconds: float) -> str:
    """`3,000 of 5,000 offsets, about 2 min left`, at the average speed so far."""
    seconds_left = _estimate_seconds_left(done, total - done, seconds)
    return (
        f"{done:,} of {total:,} offsets,"
        f" {'time left not known yet' if seconds_left is None else f'about {_format_duration(seconds_left)} left'}"
    )


def format_catch_up(lag: int | None, first_lag: tuple[int, float] | None, now_s: float) -> str:
    if lag is None or first_lag is None:
        return "an unknown number of offsets left"
    seconds_left = _estimate_seconds_left(first_lag[0] - lag, lag, now_s - first_lag[1])
    return (
        f"{format_count(lag, 'offset')} left,"
        f" {'time left not known yet' if seconds_left is None else f'about {_format_duration(seconds_left)}'}"
    )


def _estimate_seconds_left(done: int, left: int, seconds: float) -> int | None:
    if done <= 0 or (seconds < MIN_MEASURED_S and done * MIN_MEASURED_PART < done + left):
        return None
    return math.ceil(seconds * left / done)


def _format_duration(seconds: int) -> str:
    if seconds < 120:
        return f"{seconds} s"
    return f"{math.ceil(seconds / 60)} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
