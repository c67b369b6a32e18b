"""Log bounds and producers from each leader in one round trip."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kio.schema.describe_producers.v0.response import DescribeProducersResponse
from kio.schema.list_offsets.v5.response import ListOffsetsResponse

from mirror_core.kafka.at_once import ask_brokers
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.codec import AnyResponse
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.offsets import (
    Point,
    ProducerView,
    offsets_of,
    offsets_request,
    producers_of,
    producers_requests,
)
from mirror_core.model.errors import RemoteFault
from mirror_core.model.names import Offset, Partition


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLook:
    """In request order: a broker handles a connection's requests one by one."""

    start: Offset
    before: Offset
    """Before the producers were described."""
    producers: tuple[ProducerView, ...]
    replicated: Offset | None
    after: Offset
    """After everything else."""


@dataclass(frozen=True, slots=True)
class Looked:
    logs: Mapping[Partition, LogLook]
    unknown: Mapping[Partition, RemoteFault]


@dataclass(frozen=True, slots=True)
class Ends:
    """The second was requested after the first."""

    points: Mapping[Partition, tuple[Offset, Offset]]
    unknown: Mapping[Partition, RemoteFault]


_POINTS = (Point.START, Point.LOG_END, Point.HIGH_WATERMARK, Point.LOG_END)


def look(client: ClusterClient, led: Mapping[int, list[Partition]]) -> Looked:
    """Without partitions that moved, or whose broker does not answer."""
    logs: dict[Partition, LogLook] = {}
    unknown: dict[Partition, RemoteFault] = {}
    answers = ask_brokers(client, {broker: _question(mine) for broker, mine in led.items()})
    for broker, answer in answers.items():
        if isinstance(answer, RemoteFault):
            unknown |= dict.fromkeys(led[broker], answer)
        else:
            found, missing = _together(client, answer)
            logs |= found
            unknown |= missing
    return Looked(logs, unknown)


def _question(partitions: list[Partition]) -> Callable[[Connection], list[AnyResponse]]:
    start, before, replicated, after = ((offsets_request(partitions, p), ListOffsetsResponse) for p in _POINTS)
    producers = [(request, DescribeProducersResponse) for request in producers_requests(partitions)]
    return lambda connection: connection.call_all([start, before, *producers, replicated, after])


def ends_of(client: ClusterClient, led: Mapping[int, list[Partition]], first: Point, last: Point) -> Ends:
    found: dict[Partition, tuple[Offset, Offset]] = {}
    unknown: dict[Partition, RemoteFault] = {}
    asked = {broker: _ends(mine, first, last) for broker, mine in led.items()}
    for broker, answer in ask_brokers(client, asked).items():
        if isinstance(answer, RemoteFault):
            unknown |= dict.fromkeys(led[broker], answer)
        else:
            one, other = map(offsets_of, answer)
            found |= {p: (one[p], other[p]) for p in one.keys() & other.keys()}
    return Ends(found, unknown)


def _ends(partitions: list[Partition], *points: Point) -> Callable[[Connection], list[ListOffsetsResponse]]:
    requests = [offsets_request(partitions, point) for point in points]
    return lambda connection: connection.call_each(requests, ListOffsetsResponse)


def _together(
    client: ClusterClient, answers: list[AnyResponse]
) -> tuple[dict[Partition, LogLook], Mapping[Partition, RemoteFault]]:
    states, unknown = dict[Partition, tuple[ProducerView, ...]](), dict[Partition, RemoteFault]()
    offsets = []
    for answer in answers:
        if isinstance(answer, DescribeProducersResponse):
            producers = producers_of(client, answer)
            states |= producers.states
            unknown |= producers.unknown
        elif isinstance(answer, ListOffsetsResponse):
            offsets.append(offsets_of(answer))
    starts, before, replicated, after = offsets
    return {
        p: LogLook(start=starts[p], before=before[p], producers=known, replicated=replicated.get(p), after=after[p])
        for p, known in states.items()
        if p in starts and p in before and p in after
    }, unknown
