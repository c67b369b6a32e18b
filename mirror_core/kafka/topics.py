"""Topics: configs, creation, partitions, DeleteRecords, deletion. All idempotent."""

from __future__ import annotations

import datetime
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, TypeVar

from kio.schema.create_partitions.v1.request import CreatePartitionsRequest, CreatePartitionsTopic
from kio.schema.create_partitions.v1.response import CreatePartitionsResponse
from kio.schema.create_topics.v4.request import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from kio.schema.create_topics.v4.response import CreateTopicsResponse
from kio.schema.create_topics.v5.request import CreatableTopic as ValidatedTopic
from kio.schema.create_topics.v5.request import CreatableTopicConfig as ValidatedConfig
from kio.schema.create_topics.v5.request import CreateTopicsRequest as ValidateTopicsRequest
from kio.schema.create_topics.v5.response import CreateTopicsResponse as ValidateTopicsResponse
from kio.schema.delete_records.v1.request import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from kio.schema.delete_records.v1.response import DeleteRecordsResponse
from kio.schema.delete_topics.v3.request import DeleteTopicsRequest
from kio.schema.delete_topics.v3.response import DeleteTopicsResponse
from kio.schema.delete_topics.v6.request import DeleteTopicsRequest as DeleteByIdRequest
from kio.schema.delete_topics.v6.request import DeleteTopicState
from kio.schema.delete_topics.v6.response import DeleteTopicsResponse as DeleteByIdResponse
from kio.schema.describe_configs.v1.response import DescribeConfigsResponse
from kio.schema.errors import ErrorCode
from kio.schema.incremental_alter_configs.v0.response import IncrementalAlterConfigsResponse
from kio.schema.metadata.v12.request import MetadataRequest, MetadataRequestTopic
from kio.schema.metadata.v12.response import MetadataResponse
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i16, i32, i32Timedelta, i64

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config_requests import change_request, settings_request
from mirror_core.kafka.existing import undescribed
from mirror_core.kafka.faults import fault, settle
from mirror_core.model.errors import MissingPermission, RemoteFault, Unreachable
from mirror_core.model.logs import logger
from mirror_core.model.names import Offset, Partition

_log = logger(__name__)

NO_ID: Final = "0" * 32
"""Brokers before 2.8."""
DYNAMIC_TOPIC: Final = 1
"""Set on the topic itself. Not 3, a dynamic default of all brokers."""
_DESCRIBED_TOGETHER: Final = 500
_MOST_CHANGES: Final = 2_000
"""Topics, partitions and settings: a controller refuses more than 10,000, and does nothing else
meanwhile."""
NEW_TOPIC_S: Final = 0.1
"""Brokers announce new topics once all logs exist, 10 to 100 ms each."""
BROKER_TIME: Final[Mapping[str, str]] = MappingProxyType({"message.timestamp.type": "LogAppendTime"})
"""Brokers refuse times of a clock an hour ahead (KIP-937)."""
Key = TypeVar("Key")


@dataclass(frozen=True, slots=True)
class TopicConfigs:
    overrides: Mapping[str, str]
    effective: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """`assignments` (broker ids per partition) define the replication factor."""

    name: str
    partitions: int
    replication_factor: int
    configs: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    assignments: tuple[tuple[int, ...], ...] = ()


def describe_configs(client: ClusterClient, topics: Iterable[str]) -> dict[str, TopicConfigs]:
    """Without topics that do not exist. Needs DESCRIBE_CONFIGS."""
    found, refused = told_configs(client, topics)
    for error in refused.values():
        raise error
    return found


def told_configs(
    client: ClusterClient, topics: Iterable[str]
) -> tuple[dict[str, TopicConfigs], dict[str, RemoteFault]]:
    """With the errors of the others."""
    found, refused, wanted = dict[str, TopicConfigs](), dict[str, RemoteFault](), sorted(topics)
    requests = [
        settings_request(wanted[at : at + _DESCRIBED_TOGETHER]) for at in range(0, len(wanted), _DESCRIBED_TOGETHER)
    ]
    for result in (row for answer in client.call_each(requests, DescribeConfigsResponse) for row in answer.results):
        if result.error_code is ErrorCode.unknown_topic_or_partition:
            continue
        if result.error_code is not ErrorCode.none:
            name, action = result.resource_name, "DescribeConfigs (needs DESCRIBE_CONFIGS)"
            refused[name] = fault(client, f"topic {name}", action, result.error_code, result.error_message)
            continue
        rows = result.configs
        found[result.resource_name] = TopicConfigs(
            {row.name: row.value or "" for row in rows if row.config_source == DYNAMIC_TOPIC},
            {row.name: row.value or "" for row in rows},
        )
    return found, refused


def alter_configs(client: ClusterClient, changes: Mapping[str, Mapping[str, str | None]]) -> None:
    """None removes an override. A topic's changes apply all or none."""
    _alter(client, changes, None)


def try_alter_configs(
    client: ClusterClient, changes: Mapping[str, Mapping[str, str | None]], *, validate_only: bool = False
) -> dict[str, RemoteFault]:
    """Returns refusals. MissingPermission when every topic of `changes` is denied."""
    refusals = dict[str, RemoteFault]()
    _alter(client, changes, refusals, validate_only=validate_only)
    denied = [error for error in refusals.values() if isinstance(error, MissingPermission)]
    if denied and len(denied) == len(changes):
        raise denied[0]
    return refusals


def set_broker_time(client: ClusterClient, topic: str) -> None:
    """Only logged where denied."""
    try:
        known = describe_configs(client, [topic]).get(topic)
        if known is not None and not BROKER_TIME.items() <= known.effective.items():
            alter_configs(client, {topic: BROKER_TIME})
    except RemoteFault as error:
        _log.info("topic %s keeps the times of its writers: %s", topic, error, cluster=client.name)


def _alter(
    client: ClusterClient,
    changes: Mapping[str, Mapping[str, str | None]],
    refusals: MutableMapping[str, RemoteFault] | None,
    *,
    validate_only: bool = False,
) -> None:
    def attempt(names: list[str]) -> dict[str, tuple[ErrorCode, str | None]]:
        requests = [
            change_request(some, changes, validate_only=validate_only)
            for some in _shares(names, lambda name: len(changes[name]))
        ]
        answers = client.call_controller_each(requests, IncrementalAlterConfigsResponse)
        return {row.resource_name: (row.error_code, row.error_message) for one in answers for row in one.responses}

    wanted = [topic for topic in changes if changes[topic]]
    settle(client, "IncrementalAlterConfigs (needs ALTER_CONFIGS)", wanted, attempt, refusals=refusals)


def create_topics(client: ClusterClient, topics: Iterable[NewTopic]) -> frozenset[str]:
    """Waits for leaders. Returns the names that existed."""
    wanted = {topic.name: topic for topic in topics}

    def attempt(names: list[str]) -> dict[str, tuple[ErrorCode, str | None]]:
        requests = [
            CreateTopicsRequest(
                topics=tuple(_creatable(wanted[name]) for name in some),
                timeout=_timeout(client),
                validate_only=False,
            )
            for some in _shares(names, lambda name: _size(wanted[name]))
        ]
        answers = client.call_controller_each(requests, CreateTopicsResponse)
        return {str(row.name): (row.error_code, row.error_message) for one in answers for row in one.topics}

    expected = (ErrorCode.topic_already_exists,)
    codes = settle(client, "CreateTopics (needs CREATE)", list(wanted), attempt, expected=expected)
    await_leaders(client, wanted)
    return frozenset(name for name, code in codes.items() if code is not ErrorCode.none)


def validate_topics(
    client: ClusterClient, topics: Iterable[NewTopic]
) -> tuple[dict[str, dict[str, str]], dict[str, RemoteFault]]:
    """Resulting configs by topic, and refusals. Existing topics pass, without configs."""
    wanted = {topic.name: topic for topic in topics}
    effective, refusals = dict[str, dict[str, str]](), dict[str, RemoteFault]()

    def attempt(names: list[str]) -> dict[str, tuple[ErrorCode, str | None]]:
        requests = [
            ValidateTopicsRequest(
                topics=tuple(_to_be_validated(wanted[name]) for name in some),
                timeout=_timeout(client),
                validate_only=True,
            )
            for some in _shares(names, lambda name: _size(wanted[name]))
        ]
        rows = [row for one in client.call_controller_each(requests, ValidateTopicsResponse) for row in one.topics]
        effective.update({str(row.name): {c.name: c.value or "" for c in row.configs or ()} for row in rows})
        return {str(row.name): (row.error_code, row.error_message) for row in rows}

    expected = (ErrorCode.topic_already_exists,)
    settle(client, "CreateTopics (needs CREATE)", list(wanted), attempt, expected=expected, refusals=refusals)
    return {name: configs for name, configs in effective.items() if name not in refusals}, refusals


def await_leaders(client: ClusterClient, topics: Collection[str], widths: Mapping[str, int] | None = None) -> None:
    """Of all partitions (at least `widths`).

    Unreachable when no further topic completes within the client's limit plus `NEW_TOPIC_WAIT_S` per topic.
    """
    left, deadline = set(topics), 0.0
    while left:
        view = client.metadata(sorted(left)).topics
        led = {
            name
            for name in left
            if name in view
            and len(view[name].partitions) >= (widths or {}).get(name, 1)
            and all(leader.broker >= 0 for leader in view[name].partitions.values())
        }
        left -= led
        if led or not deadline:
            deadline = time.monotonic() + client.timeout_s + NEW_TOPIC_S * len(left)
        elif time.monotonic() > deadline:
            raise Unreachable(f"cluster {client.name}: no leaders of {', '.join(sorted(left)[:9])}, {len(left)} in all")
        if left:
            client.ask_another()  # this broker may be cut off from the controllers
            time.sleep(0.05)


def create_partitions(client: ClusterClient, counts: Mapping[str, int]) -> None:
    view = client.metadata(counts).topics
    more = {name: count - (len(view[name].partitions) if name in view else 0) for name, count in counts.items()}
    narrow = {name for name in counts if more[name] > 0}

    def attempt(names: list[str]) -> dict[str, tuple[ErrorCode, str | None]]:
        requests = [
            CreatePartitionsRequest(
                topics=tuple(
                    CreatePartitionsTopic(name=TopicName(n), count=i32(counts[n]), assignments=None) for n in some
                ),
                timeout=_timeout(client),
                validate_only=False,
            )
            for some in _shares(names, more.__getitem__)
        ]
        answers = client.call_controller_each(requests, CreatePartitionsResponse)
        return {str(row.name): (row.error_code, row.error_message) for one in answers for row in one.results}

    # INVALID_PARTITIONS: wide enough already.
    expected = (ErrorCode.invalid_partitions,)
    settle(client, "CreatePartitions (needs ALTER)", sorted(narrow), attempt, expected=expected)
    await_leaders(client, narrow, counts)


def delete_topics(client: ClusterClient, topics: Collection[str]) -> None:
    """Returns when every broker forgot them. Missing ones count as deleted."""

    def attempt(names: list[str]) -> dict[str, tuple[ErrorCode, str | None]]:
        requests = [
            DeleteTopicsRequest(topic_names=tuple(TopicName(n) for n in some), timeout=_timeout(client))
            for some in _shares(names, lambda _: 1)
        ]
        answers = client.call_controller_each(requests, DeleteTopicsResponse)
        return {str(row.name): (row.error_code, None) for one in answers for row in one.responses}

    gone = (ErrorCode.unknown_topic_or_partition,)
    settle(client, "DeleteTopics (needs DELETE)", sorted(topics), attempt, expected=gone)
    _await_forgotten(client, topics, None)


def delete_topic(client: ClusterClient, name: str, topic_id: str) -> None:
    """By id: the name could belong to a topic created meanwhile."""
    if topic_id == NO_ID:
        delete_topics(client, [name])
        return

    def attempt(names: list[str]) -> dict[str, tuple[ErrorCode, str | None]]:
        state = DeleteTopicState(name=None, topic_id=uuid.UUID(topic_id))
        request = DeleteByIdRequest(topics=(state,), timeout=_timeout(client))
        rows = client.call_controller(request, DeleteByIdResponse).responses
        return dict.fromkeys(names, (rows[0].error_code, None)) if rows else {}

    settle(client, "DeleteTopics (needs DELETE)", [name], attempt, expected=(ErrorCode.unknown_topic_id,))
    _await_forgotten(client, [name], topic_id)


def delete_records(client: ClusterClient, until: Mapping[Partition, Offset]) -> dict[Partition, Offset]:
    """To these offsets (first to be kept); returns the new log starts.

    Offsets before the log start are done; beyond the high watermark an error. Needs DELETE.
    """
    starts: dict[Partition, Offset] = {}

    def attempt(partitions: list[Partition]) -> dict[Partition, tuple[ErrorCode, str | None]]:
        answers: dict[Partition, tuple[ErrorCode, str | None]] = {}
        for broker, mine in client.leaders(partitions).items():
            if broker < 0:
                answers.update({partition: (ErrorCode.leader_not_available, None) for partition in mine})
                continue
            by_topic: dict[str, list[DeleteRecordsPartition]] = {}
            for partition in mine:
                by_topic.setdefault(partition.topic, []).append(
                    DeleteRecordsPartition(partition_index=i32(partition.index), offset=i64(until[partition]))
                )
            request = DeleteRecordsRequest(
                topics=tuple(
                    DeleteRecordsTopic(name=TopicName(topic), partitions=tuple(rows))
                    for topic, rows in by_topic.items()
                ),
                timeout=_timeout(client),
            )
            for topic in client.call(request, DeleteRecordsResponse, broker).topics:
                for row in topic.partitions:
                    partition = Partition(str(topic.name), int(row.partition_index))
                    answers[partition] = (row.error_code, None)
                    starts[partition] = Offset(int(row.low_watermark))
        return answers

    settle(client, "DeleteRecords (needs DELETE)", sorted(until), attempt)
    return starts


def _shares(wanted: Iterable[Key], size: Callable[[Key], int]) -> Iterator[list[Key]]:
    share, total = list[Key](), 0
    for key in wanted:
        if share and total + size(key) > _MOST_CHANGES:
            yield share
            share, total = [], 0
        share.append(key)
        total += size(key)
    if share:
        yield share


def _size(topic: NewTopic) -> int:
    return 1 + max(topic.partitions, len(topic.assignments)) + len(topic.configs)


def _creatable(topic: NewTopic) -> CreatableTopic:
    assigned = bool(topic.assignments)
    return CreatableTopic(
        name=TopicName(topic.name),
        num_partitions=i32(-1 if assigned else topic.partitions),
        replication_factor=i16(-1 if assigned else topic.replication_factor),
        assignments=tuple(
            CreatableReplicaAssignment(
                partition_index=i32(index), broker_ids=tuple(BrokerId(broker) for broker in brokers)
            )
            for index, brokers in enumerate(topic.assignments)
        ),
        configs=tuple(CreatableTopicConfig(name=k, value=v) for k, v in sorted(topic.configs.items())),
    )


def _to_be_validated(topic: NewTopic) -> ValidatedTopic:
    return ValidatedTopic(
        name=TopicName(topic.name),
        num_partitions=i32(topic.partitions),
        replication_factor=i16(topic.replication_factor),
        assignments=(),
        configs=tuple(ValidatedConfig(name=k, value=v) for k, v in sorted(topic.configs.items())),
    )


def _await_forgotten(client: ClusterClient, topics: Collection[str], topic_id: str | None) -> None:
    deadline = time.monotonic() + client.timeout_s
    for broker in client.brokers():
        while known := known_to(client, broker, topics, topic_id):
            if time.monotonic() > deadline:
                raise Unreachable(
                    f"cluster {client.name}, broker {broker}: still lists deleted topics after "
                    f"{client.timeout_s} s: {', '.join(sorted(known))}"
                )
            time.sleep(0.05)


def known_to(client: ClusterClient, broker: int, topics: Collection[str], topic_id: str | None = None) -> list[str]:
    request = MetadataRequest(
        topics=tuple(MetadataRequestTopic(topic_id=None, name=TopicName(name)) for name in sorted(topics)),
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )
    answer = client.call(request, MetadataResponse, broker)
    denied = [str(t.name) for t in answer.topics if t.error_code is ErrorCode.topic_authorization_failed]
    if denied:
        raise undescribed(client, denied)
    return [
        str(t.name)
        for t in answer.topics
        if t.error_code is not ErrorCode.unknown_topic_or_partition
        and (topic_id is None or t.topic_id == uuid.UUID(topic_id))
    ]


def _timeout(client: ClusterClient) -> i32Timedelta:
    return i32Timedelta.parse(datetime.timedelta(milliseconds=int(client.timeout_s * 1000)))
