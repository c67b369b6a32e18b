"""What stock brokers need for what a planned failover must have them do: the same requests from a bare loop.

Written beforehand, sent back to back, and read without being understood until the clock has stopped. Left out are the
copy, the comparison and the journal, which no administrator's tool would do.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Final

from kio.schema.create_acls.v1.request import CreateAclsRequest
from kio.schema.create_acls.v1.response import CreateAclsResponse
from kio.schema.describe_acls.v1.request import DescribeAclsRequest
from kio.schema.describe_acls.v1.response import DescribeAclsResponse
from kio.schema.describe_configs.v1.request import DescribeConfigsRequest, DescribeConfigsResource
from kio.schema.describe_configs.v1.response import DescribeConfigsResponse
from kio.schema.errors import ErrorCode
from kio.schema.incremental_alter_configs.v0.request import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kio.schema.incremental_alter_configs.v0.response import IncrementalAlterConfigsResponse
from kio.schema.list_groups.v4.request import ListGroupsRequest
from kio.schema.list_groups.v4.response import ListGroupsResponse
from kio.schema.list_offsets.v5.response import ListOffsetsResponse
from kio.schema.list_transactions.v0.request import ListTransactionsRequest
from kio.schema.list_transactions.v0.response import ListTransactionsResponse
from kio.schema.offset_commit.v6.response import OffsetCommitResponse
from kio.schema.offset_fetch.v8.response import OffsetFetchResponse
from kio.static.primitive import i8

from benchmarks.crowd import AT_ONCE, Crowd
from mirror_core.kafka.acl_requests import _to_creation
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.codec import AnyResponse, Request, decode, encode
from mirror_core.kafka.config import Config
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.consumer_groups import build_offset_commit, build_offset_fetch
from mirror_core.kafka.log_offsets import OffsetPoint, build_list_offsets
from mirror_core.model.acl import Acl, Operation, Resource
from mirror_core.model.names import Partition
from mirror_core.rights.acl_rules import build_denial

TIMEOUT_S: Final = 120.0
NOBODY: Final = "User:floor"
"""Whom the rights are about that are put up here: the failover's own are there already, and would cost nothing."""
_TOPIC: Final = i8(2)
_ANY: Final = i8(1)
Ask = tuple[Request, type[AnyResponse]]
Changes = Mapping[str, Mapping[str, str | None]]


@dataclass(frozen=True, slots=True)
class Stage:
    """Requests for one side that do not wait for each other's answers."""

    step: str
    """Of the failover, which asks these."""
    side: str
    asked: Sequence[Ask]


def measure(config: Config, source: str, destination: str, crowd: Crowd, changes: Changes) -> dict[str, float]:
    """Seconds by step of the failover. `changes`: of settings, as many as promotion makes."""
    sides = {name: _Side(config, name) for name in (source, destination)}
    took = dict[str, float]()
    for stage in _stages(source, destination, crowd, changes):
        took[stage.step] = took.get(stage.step, 0.0) + sides[stage.side].run(stage.asked)
    return took


def _stages(source: str, destination: str, crowd: Crowd, changes: Changes) -> Iterator[Stage]:
    names, partitions, committed = crowd.names(), crowd.partitions(), crowd.committed()
    stood = [OffsetPoint.LOG_END, OffsetPoint.STABLE_END, OffsetPoint.HIGH_WATERMARK]
    yield Stage("fence", source, [(ListTransactionsRequest(), ListTransactionsResponse), _rights()])
    yield Stage("fence", source, [_put_up(build_denial(name, NOBODY) for name in names)])
    yield Stage("fence", source, [_rights()])
    yield Stage("fence", source, [*_ends(partitions, [OffsetPoint.LOG_END]), *_ends(partitions, stood)])
    yield Stage("drain", source, [*_ends(partitions, [OffsetPoint.LOG_END]), *_ends(partitions, [OffsetPoint.LOG_END])])
    yield Stage("drain", destination, _ends(partitions, [OffsetPoint.LOG_END, OffsetPoint.HIGH_WATERMARK]))
    yield Stage("final_sync", source, [_settings(names), _rights(), _groups()])
    yield Stage("final_sync", destination, [_settings(names), _rights(), _groups()])
    fetched: list[Ask] = [(build_offset_fetch(dict.fromkeys(committed)), OffsetFetchResponse)]
    yield Stage("final_sync", source, fetched)
    yield Stage("final_sync", destination, [*_ends(partitions, [OffsetPoint.START, OffsetPoint.LOG_END]), *fetched])
    commits: list[Ask] = [(build_offset_commit(group, mine), OffsetCommitResponse) for group, mine in committed.items()]
    yield Stage("final_sync", destination, commits)
    yield Stage("parity", destination, _ends(partitions, [OffsetPoint.LOG_END]))
    yield Stage("record_lmo", destination, _ends(partitions, [OffsetPoint.LOG_END]))
    yield Stage("promote", destination, [_settings(names), _rights()])
    yield Stage("promote", destination, list(_altered(changes)))
    grants = (Acl(resource=Resource.TOPIC, name=n, principal=NOBODY, operation=Operation.WRITE) for n in names)
    yield Stage("promote", destination, [_put_up(grants)])
    yield Stage("promote", destination, [_rights()])
    yield Stage(
        "promote", destination, [_put_up(build_denial(name, NOBODY, operation=Operation.DELETE) for name in names)]
    )
    yield Stage("promote", destination, [_rights()])


class _Side:
    """One broker, signed in to before the clock runs."""

    def __init__(self, config: Config, name: str) -> None:
        with ClusterClient(config.cluster(name), timeout_s=TIMEOUT_S) as client:
            address = client.address(None)
        self._connection = Connection(client.config, client.principal, *address, timeout_s=TIMEOUT_S)

    def run(self, asked: Sequence[Ask]) -> float:
        """Seconds until all is answered. Raises when something was refused."""
        numbers = [self._connection.next_id() for _ in asked]
        frames = [encode(request, n, "floor") for n, (request, _) in zip(numbers, asked, strict=True)]
        began = time.monotonic()
        answers = list[bytearray]()
        for start in range(0, len(frames), 32):
            some = frames[start : start + 32]
            for frame in some:
                self._connection.send([frame])
            answers += [self._connection.receive() for _ in some]
        took = time.monotonic() - began
        for answer, number, (_, kind) in zip(answers, numbers, asked, strict=True):
            refused = set(_codes(decode(kind, answer, number, "floor"))) - {ErrorCode.none}
            if refused:
                raise SystemExit(f"the floor is not one: {kind.__name__}: {refused}")
        return took


def _codes(answer: Any) -> Iterator[ErrorCode]:
    if isinstance(answer, ErrorCode):
        yield answer
    elif isinstance(answer, tuple):
        for one in answer:
            yield from _codes(one)
    elif is_dataclass(answer):
        for field in fields(answer):
            yield from _codes(getattr(answer, field.name))


def _ends(partitions: Sequence[Partition], points: Iterable[OffsetPoint]) -> list[Ask]:
    return [(build_list_offsets(list(partitions), point), ListOffsetsResponse) for point in points]


def _settings(names: Iterable[str]) -> Ask:
    resources = tuple(
        DescribeConfigsResource(resource_type=_TOPIC, resource_name=name, configuration_keys=None) for name in names
    )
    return DescribeConfigsRequest(resources=resources), DescribeConfigsResponse


def _altered(changes: Changes) -> Iterator[Ask]:
    """A controller refuses what would change more than 10,000 settings at once."""
    names = sorted(changes)
    for start in range(0, len(names), AT_ONCE):
        yield _alter({name: changes[name] for name in names[start : start + AT_ONCE]})


def _alter(changes: Changes) -> Ask:
    resources = tuple(
        AlterConfigsResource(
            resource_type=_TOPIC,
            resource_name=name,
            configs=tuple(
                AlterableConfig(name=key, config_operation=i8(value is None), value=value)
                for key, value in mine.items()
            ),
        )
        for name, mine in changes.items()
    )
    return IncrementalAlterConfigsRequest(resources=resources, validate_only=False), IncrementalAlterConfigsResponse


def _groups() -> Ask:
    return ListGroupsRequest(states_filter=()), ListGroupsResponse


def _put_up(acls: Iterable[Acl]) -> Ask:
    return CreateAclsRequest(creations=tuple(_to_creation(acl) for acl in acls)), CreateAclsResponse


def _rights() -> Ask:
    request = DescribeAclsRequest(
        resource_type_filter=_ANY,
        resource_name_filter=None,
        pattern_type_filter=_ANY,
        principal_filter=None,
        host_filter=None,
        operation=_ANY,
        permission_type=_ANY,
    )
    return request, DescribeAclsResponse
