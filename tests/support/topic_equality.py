"""Whether a mirror's topics are what the source's are: to consumers of two families, and by their offsets."""

from __future__ import annotations

from collections.abc import Collection

from mirror_core.kafka.log_offsets import OffsetPoint, list_offsets
from mirror_core.model.names import Offset, Partition
from mirror_core.model.parity_verdict import ParityResult, ParityVerdict
from mirror_core.parity.check import LocalParity
from mirror_core.parity.comparable_ranges import read_parity_scope
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.support.cluster_admin import as_admin
from tests.support.data_errors import about_data
from tests.support.kafka_clients import Pair, Record, read_topics, read_topics_aiokafka
from tests.support.mirrored_topics import Mirrored

Contents = dict[str, list[Record]]
Ends = dict[Partition, Offset]


@about_data()
def assert_same(pair: Pair, topics: Collection[str], *, own: tuple[Ends, Ends] | None = None) -> None:
    """Everything that is committed on the source is on the destination, and nothing else, not even uncommitted.

    Offsets, timestamps, keys, values and headers are equal, log starts too; the destination's logs end where the
    source's last stable offsets are. `own`: log ends of the destination when it became the primary, and when it ceased
    to be: what applications have aborted there in between stays in its log, and never goes home.
    """
    source = read_topics(pair.east, topics)
    assert_equal(source, read_topics(pair.west, topics), "librdkafka")
    assert_equal(read_topics_aiokafka(pair.east, topics), read_topics_aiokafka(pair.west, topics), "aiokafka")
    # What the source has and did not commit may be left out, but nothing may be made up.
    uncommitted = read_topics(pair.west, topics, committed=False)
    if own is not None:
        uncommitted = {
            topic: _without_own(topic, records, source[topic], own) for topic, records in uncommitted.items()
        }
    assert_equal(source, uncommitted, "librdkafka, uncommitted")
    assert_same_offsets(pair, topics)


@about_data()
def assert_same_offsets(pair: Pair, topics: Collection[str]) -> None:
    """Log starts are equal; the destination's logs end where the source's last stable offsets are."""
    partitions = _partitions(pair.east, topics)
    assert _partitions(pair.west, topics) == partitions, f"not the same partitions of {topics}"
    for there, here in ((OffsetPoint.START, OffsetPoint.START), (OffsetPoint.STABLE_END, OffsetPoint.LOG_END)):
        wanted, found = _offsets(pair.east, partitions, there), _offsets(pair.west, partitions, here)
        wrong = [f"{p}: source {there.name} {wanted[p]}, copy {here.name} {found[p]}" for p in partitions]
        assert wanted == found, "\n".join(
            line for line, p in zip(wrong, partitions, strict=True) if wanted[p] != found[p]
        )


def parity(mirrored: Mirrored) -> ParityResult:
    """What Mirrorbook's own comparison finds."""
    mirror, compared = mirrored.link.mirror, read_parity_scope(mirrored.link, mirrored.state)
    assert not compared.left_out, f"not comparable: {compared.left_out}"
    return LocalParity(mirrored.config.path)(mirror.source_identity, mirror.destination_identity, compared.ranges, None)


@about_data()
def assert_parity(mirrored: Mirrored) -> None:
    """Mirrorbook's own comparison finds the same."""
    result = parity(mirrored)
    assert result.verdict is ParityVerdict.PASSED, f"{result.findings[:5]} {result.reasons[:5]}"


@about_data()
def assert_equal(source: Contents, copy: Contents, reader: str) -> None:
    """Fails with the first difference of each topic: whole logs side by side would tell nobody anything."""
    assert source.keys() == copy.keys()
    problems = [
        f"{topic}: {_difference(source[topic], copy[topic])}" for topic in source if source[topic] != copy[topic]
    ]
    # The copy of a time that the broker gave counts as the producer's; never the other way round.
    problems += [f"{t}: offset {r.offset} became LogAppendTime" for t, rs in copy.items() for r in rs if r.append_time]
    assert not problems, f"read by {reader}:\n" + "\n".join(problems)


def _difference(source: list[Record], copy: list[Record]) -> str:
    place = next((i for i, (a, b) in enumerate(zip(source, copy, strict=False)) if a != b), min(len(source), len(copy)))
    there, here = (str(rs[place])[:300] if place < len(rs) else "nothing more" for rs in (source, copy))
    return f"{len(source)} records and {len(copy)}; first different:\n    source {there}\n    copy   {here}"


def _without_own(topic: str, copy: list[Record], source: list[Record], own: tuple[Ends, Ends]) -> list[Record]:
    committed, (first, last) = set(source), own

    def aborted_there(record: Record) -> bool:
        partition = Partition(topic, record.partition)
        return first.get(partition, 0) <= record.offset < last.get(partition, 0) and record not in committed

    return [record for record in copy if not aborted_there(record)]


def ends(cluster: SandboxCluster, topics: Collection[str]) -> Ends:
    """Log ends: next offsets."""
    return _offsets(cluster, _partitions(cluster, topics), OffsetPoint.LOG_END)


def _partitions(cluster: SandboxCluster, topics: Collection[str]) -> list[Partition]:
    with as_admin(cluster) as client:
        found = client.metadata(topics).topics
    return sorted(Partition(topic, index) for topic, view in found.items() for index in view.partitions)


def _offsets(cluster: SandboxCluster, partitions: Collection[Partition], point: OffsetPoint) -> dict[Partition, Offset]:
    with as_admin(cluster) as client:
        return list_offsets(client, partitions, point)
