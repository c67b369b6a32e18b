"""Reading a log's tail below a quota."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import pytest

from mirror_core.copy import log_inspection
from mirror_core.decide.gaps_and_resume import BothLogBounds
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ClusterConfig, Principal
from mirror_core.kafka.fetch_link import EmptyFetch, FetchLink
from mirror_core.kafka.log_reader import LogReader
from mirror_core.model.errors import Unreachable
from mirror_core.model.names import Partition
from mirror_core.wire.batch import CONTROL, CURRENT_MAGIC, HEADER, LENGTH_PREFIX
from mirror_core.wire.fetch import FetchedPartition
from tests.support.resume_decisions import EAST, WEST
from tests.support.source_batches import batch, fetched

PARTITION = Partition("orders", 0)


def looked_at(monkeypatch: pytest.MonkeyPatch, answers: Iterator[tuple[int, FetchedPartition]]) -> list[int]:
    """Base offsets found below 5, by answers that come with a throttle time in ms."""
    link = SimpleNamespace(throttle_ms=0, connection=SimpleNamespace(where="west"))

    def fetch_once(*_: object) -> FetchedPartition:
        link.throttle_ms, answer = next(answers)
        return answer

    monkeypatch.setattr(log_inspection, "fetch_once", fetch_once)
    client = cast("ClusterClient", SimpleNamespace(timeout_s=0.2))
    return [
        header.base_offset for header in log_inspection._read_headers(client, cast("FetchLink", link), PARTITION, 0, 5)
    ]


def test_a_throttled_answer_is_waited_out(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([(0, fetched(batch(0, 3))), (20, fetched()), (0, fetched(batch(3, 2)))])
    assert looked_at(monkeypatch, answers) == [0, 3]


def test_each_one_has_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log whose end takes longer to read below a quota than a broker may take to answer would never be read."""
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(log_inspection, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    throttled, offsets = (150, fetched()), range(5)
    answers = [one for offset in offsets for one in (throttled, (0, fetched(batch(offset, 1))))]
    assert looked_at(monkeypatch, iter(answers)) == list(offsets)


def test_but_not_for_longer_than_a_cluster_has_to_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unreachable, match="the broker throttles"):
        looked_at(monkeypatch, iter([(60_000, fetched())]))


@pytest.mark.parametrize("stranger", [None, 30_000])
def test_a_wide_gap_at_the_end_of_a_log_is_looked_through_and_not_kept(
    monkeypatch: pytest.MonkeyPatch, stranger: int | None
) -> None:
    """A marker for each offset: of a long transaction that was aborted there are millions."""
    end, window, mine = 50_000, 1_000, 7

    def fetch_once(_: object, partition: Partition, position: int) -> FetchedPartition:
        made = bytearray(HEADER.size * window)
        for number in range(window):
            offset = position + number
            producer = 8 if offset == stranger else mine
            fields = (offset, HEADER.size - LENGTH_PREFIX, 0, CURRENT_MAGIC, offset << 8, CONTROL, 0, 10**12, 10**12)
            HEADER.pack_into(made, HEADER.size * number, *fields, producer, 0, -1, 1)
        return FetchedPartition(partition, 0, end, end, 0, (), memoryview(made))

    monkeypatch.setattr(log_inspection, "fetch_once", fetch_once)
    link = cast("FetchLink", SimpleNamespace(throttle_ms=0, connection=SimpleNamespace(where="west")))
    client = cast("ClusterClient", SimpleNamespace(timeout_s=0.2))
    seen = BothLogBounds(log_start=0, log_end=end, producer=None, source_start=0, source_end=end)
    tracemalloc.start()
    try:
        assert log_inspection.find_foreign_after_own(client, link, PARTITION, mine, seen, 0) == stranger
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 3 << 20, "some answers, and no more"


def test_a_look_that_nobody_waits_for_reads_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a long stretch of the log holds no record: aborted transactions, or what compaction has left."""
    asked = list[int]()

    def ask(reader: LogReader, partition: Partition, position: int) -> tuple[int, FetchedPartition]:
        asked.append(position)
        if len(asked) == 3:
            logs.halt()
        assert len(asked) < 100, "it reads on"
        return 0, FetchedPartition(partition, 0, position + 1, position + 1, 0, (), memoryview(b""))

    monkeypatch.setattr(LogReader, "_leader", lambda *_, **__: ("east", 9092))
    monkeypatch.setattr(LogReader, "_fetch_partition", ask)
    monkeypatch.setattr(LogReader, "_classify_empty", lambda *_, **__: EmptyFetch.GAP)
    one, two = (ClusterClient(ClusterConfig(name, {}, {}), Principal.DATA) for name in (EAST, WEST))
    logs = log_inspection.RemoteLogInspector(one, two, 7)
    with pytest.raises(log_inspection.InspectionHalted):
        logs.read_last_record(PARTITION, 0, 1_000)
    assert len(asked) == 3
