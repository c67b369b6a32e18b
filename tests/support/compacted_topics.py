"""What is left of a topic that brokers clean by key, and how two such topics may differ."""

from __future__ import annotations

from aiokafka.errors import KafkaError

from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.support.data_errors import about_data
from tests.support.kafka_clients import Record, read_all_aiokafka


def cleaned_by_aiokafka(cluster: SandboxCluster, topic: str) -> list[Record] | None:
    """None: it raises (0.14) where the cleaner has left nothing of a marker but its batch, for the producer's sake. To
    Java's client such a batch is an ordinary one without records, since KAFKA-7467."""
    try:
        return read_all_aiokafka(cluster, topic)
    except KafkaError as error:
        if "Control batch did not contain any records" not in str(error):
            raise
        return None


@about_data()
def assert_compacted(source: list[Record], copy: list[Record]) -> None:
    """Both have cleaned at their own times: what one side lacks has been replaced by something newer of that key (which
    may be a tombstone that is gone by now on that side), or is a tombstone that is gone with all that it deleted."""
    there, here = ({(r.partition, r.offset): r for r in side} for side in (source, copy))
    for place in there.keys() & here.keys():
        assert there[place] == here[place]
    newest: dict[tuple[int, bytes | None], int] = {}
    for record in [*source, *copy]:
        newest[record.partition, record.key] = max(newest.get((record.partition, record.key), -1), record.offset)
    for ours, theirs in ((there, here), (here, there)):
        oldest: dict[tuple[int, bytes | None], int] = {}
        for record in sorted(ours.values(), reverse=True):
            oldest[record.partition, record.key] = record.offset
        for place in theirs.keys() - ours.keys():
            lone = theirs[place]
            key = lone.partition, lone.key
            if newest[key] == lone.offset:
                assert lone.value is None, f"{lone} is on one side only, and the newest of its key"
                assert oldest.get(key, lone.offset) >= lone.offset, f"{lone} is on one side only, not what it deleted"
