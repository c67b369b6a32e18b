"""Thousands of small ranges are compared with few requests, and are found to be what they are, one by one."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from mirror_core.kafka.config import load_config
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.log_reader import LogReader
from mirror_core.model.errors import Unreachable
from mirror_core.model.names import Offset, Partition
from mirror_core.model.parity_verdict import ParityVerdict
from mirror_core.parity.check import LocalParity
from tests.support.kafka_clients import Pair
from tests.support.parity_topics import Content, content, copy_bytes, send, twin_topics, whole

pytestmark = pytest.mark.cluster

PARTITIONS = 24
RECORDS = 12
TASKS = 4
THREADS = 2
LARGE, ABORTED, ALTERED, SHORT = 3, 5, 7, 9


@pytest.fixture(scope="module")
def topic(pair: Pair) -> str:
    """Equal but for one altered value and one record that is missing; a record is larger than a share of an answer."""
    name = twin_topics(pair, PARTITIONS)
    for number in range(PARTITIONS):
        rows = content(RECORDS)
        if number == LARGE:
            rows[0] = Content(key=None, value=secrets.token_bytes(900_000), timestamp_ms=1)
        if number == ABORTED:
            rows[4] = replace(rows[4], aborted=True)
            rows.pop()  # the marker takes an offset, too
        send(pair.east, name, rows, number)
        if number == ALTERED:
            rows[8] = replace(rows[8], value=b"another")
        if number in (ALTERED, SHORT):
            send(pair.west, name, rows[: RECORDS - (number == SHORT)], number)
        elif number != ABORTED:
            copy_bytes(pair, name, RECORDS, number)
        else:
            send(pair.west, name, rows, number)
    return name


def compared(
    pair: Pair, topic: str, chunk: int = PARTITIONS // TASKS * RECORDS
) -> tuple[ParityVerdict, set[tuple[int, str, int | None]], int]:
    ranges = [whole(topic, RECORDS, partition=number) for number in range(PARTITIONS)]
    parity = LocalParity(pair.config_path, threads=THREADS, chunk=chunk)
    result = parity(*pair.identities, ranges, None)
    return result.verdict, {(f.partition.index, f.kind, f.offset) for f in result.findings}, result.records


@pytest.mark.slow
def test_many_small_logs_cost_few_requests(pair: Pair, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Counter[int]()
    send_usually: Any = LogReader._send_fetch

    def counting(self: LogReader, connection: Connection, wanted: Mapping[Partition, Offset], *rest: Any) -> Any:
        asked[len(wanted)] += 1
        return send_usually(self, connection, wanted, *rest)

    monkeypatch.setattr(LogReader, "_send_fetch", counting)
    verdict, findings, records = compared(pair, topic)
    print(asked)
    assert sum(count for size, count in asked.items() if size > 1) == 2 * TASKS, "one a side for each task"
    assert asked[1] <= 20, "what did not come whole, and what differs, once more by itself"

    monkeypatch.setattr(LogReader, "prefetch", lambda *_: None)
    assert compared(pair, topic) == (verdict, findings, records)
    assert verdict is ParityVerdict.FAILED
    assert {(index, kind) for index, kind, _ in findings} == {(ALTERED, "value"), (SHORT, "log end")}
    assert asked[1] > 2 * PARTITIONS


@pytest.mark.slow
def test_tasks_of_all_rounds_share_connections(pair: Pair, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Counter[str]()
    usual: Any = Connection.__init__

    def counting(self: Connection, *given: Any, **named: Any) -> None:
        usual(self, *given, **named)
        opened[self.where] += 1

    monkeypatch.setattr(Connection, "__init__", counting)
    assert compared(pair, topic, chunk=RECORDS)[0] is ParityVerdict.FAILED
    print(opened)
    assert opened.keys() == {f"cluster {side.name}, broker {side.bootstrap}" for side in (pair.east, pair.west)}
    # To read, and to ask who leads; and once to see where the logs end.
    assert max(opened.values()) <= 2 * THREADS + 1


def test_an_answer_that_does_not_come_costs_nothing_but_time(
    pair: Pair, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = compared(pair, topic)
    receive: Any = LogReader._receive_fetch

    def breaking(self: LogReader, connection: Connection, correlation: int, wanted: Iterable[Partition]) -> Any:
        if len(known := list(wanted)) > 1:
            raise Unreachable("cut")
        return receive(self, connection, correlation, known)

    monkeypatch.setattr(LogReader, "_receive_fetch", breaking)
    assert compared(pair, topic) == expected


def test_what_lies_ready_is_read_from_its_own_place_only(pair: Pair, topic: str) -> None:
    with LogReader(load_config(pair.config_path).cluster("east")) as reader:
        nobodys = Partition("nobodys", 0)
        reader.prefetch({nobodys: Offset(0), **{Partition(topic, n): Offset(5) for n in range(PARTITIONS)}})
        assert len(reader._prefetched) >= PARTITIONS - 2
        for start in (0, 6, 5):
            read = [r.offset for _, r in reader.records(Partition(topic, 0), Offset(start), Offset(RECORDS))]
            assert read == list(range(start, RECORDS))
        with pytest.raises(Unreachable, match="no such partition"):
            next(reader.batches(nobodys, Offset(0), Offset(1)))
