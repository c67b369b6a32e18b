"""Topics: idempotent changes, awaited until all brokers show them."""

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
from kio.schema.create_topics.v5.response import CreatableTopicResult
from kio.schema.create_topics.v5.response import CreateTopicsResponse as ValidateTopicsResponse
from kio.schema.delete_records.v1.request import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from kio.schema.delete_records.v1.response import DeleteRecordsResponse
from kio.schema.delete_topics.v3.request import DeleteTopicsRequest
from kio.schema.delete_topics.v3.response import DeleteTopicsResponse
from kio.schema.delete_topics.v6.request import DeleteTopicsRequest as DeleteByIdRequest
from kio.schema.delete_topics.v6.request import DeleteTopicState
from kio.schema.delete_topics.v6.response import DeleteTopicsResponse as DeleteByIdResponse
from kio.schema.describe_configs.v1.request import DescribeConfigsRequest, DescribeConfigsResource
from kio.schema.describe_configs.v1.response import DescribeConfigsResponse
from kio.schema.errors import ErrorCode
from kio.schema.incremental_alter_configs.v0.request import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kio.schema.incremental_alter_configs.v0.response import IncrementalAlterConfigsResponse
from kio.schema.metadata.v12.request import MetadataRequest, MetadataRequestTopic
from kio.schema.metadata.v12.response import MetadataResponse
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i8, i16, i32, i32Timedelta, i64

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.error_mapping import make_fault, retry_per_key
from mirror_core.kafka.fan_out import wait_for_propagation
from mirror_core.kafka.topic_existence import describe_denied_error
from mirror_core.model.errors import MissingPermission, RemoteFault, TooFewBrokers, Unreachable
from mirror_core.model.logs import get_logger
from mirror_core.model.names import Offset, Partition

_TOPIC_RESOURCE: Final = i8(2)
_SET_OPERATION: Final = i8(0)
_DELETE_OPERATION: Final = i8(1)


def build_describe_configs(topics: Iterable[str]) -> DescribeConfigsRequest:
    return DescribeConfigsRequest(
        resources=tuple(
            DescribeConfigsResource(resource_type=_TOPIC_RESOURCE, resource_name=name, configuration_keys=None)
            for name in topics
        )
    )


def build_alter_configs(
    topics: Iterable[str], changes: Mapping[str, Mapping[str, str | None]], *, validate_only: bool = False
) -> IncrementalAlterConfigsRequest:
    """None removes the override."""
    resources = tuple(
        AlterConfigsResource(
            resource_type=_TOPIC_RESOURCE,
            resource_name=name,
            configs=tuple(
                AlterableConfig(
                    name=key, config_operation=_DELETE_OPERATION if value is None else _SET_OPERATION, value=value
                )
                for key, value in sorted(changes[name].items())
            ),
        )
        for name in topics
    )
    return IncrementalAlterConfigsRequest(resources=resources, validate_only=validate_only)


_log = get_logger(__name__)
NO_TOPIC_ID: Final = "0" * 32
"""Brokers before 2.8."""
TOPIC_OVERRIDE_SOURCE: Final = 1
"""On the topic itself. Not 3, a dynamic default of all brokers."""
_MAX_TOPICS_DESCRIBED: Final = 500
_MAX_CHANGES_PER_REQUEST: Final = 2_000
"""Topics, partitions and settings: a controller refuses more than 10,000, and does nothing else meanwhile."""
NEW_TOPIC_WAIT_S: Final = 0.1
"""Brokers announce new topics once all logs exist, 10 to 100 ms each."""
BROKER_TIME_CONFIGS: Final[Mapping[str, str]] = MappingProxyType({"message.timestamp.type": "LogAppendTime"})
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
    """Without topics that do not exist."""
    configs, refused = describe_available_configs(client, topics)
    for error in refused.values():
        raise error
    return configs


def describe_available_configs(
    client: ClusterClient, topics: Iterable[str]
) -> tuple[dict[str, TopicConfigs], dict[str, RemoteFault]]:
    configs, refused, names = dict[str, TopicConfigs](), dict[str, RemoteFault](), sorted(topics)
    requests = [
        build_describe_configs(names[start : start + _MAX_TOPICS_DESCRIBED])
        for start in range(0, len(names), _MAX_TOPICS_DESCRIBED)
    ]
    for result in (row for response in client.call_each(requests, DescribeConfigsResponse) for row in response.results):
        if result.error_code is ErrorCode.unknown_topic_or_partition:
            continue
        if result.error_code is not ErrorCode.none:
            name, action = result.resource_name, "DescribeConfigs (needs DESCRIBE_CONFIGS)"
            refused[name] = make_fault(client, f"topic {name}", action, result.error_code, result.error_message)
            continue
        rows = result.configs
        configs[result.resource_name] = TopicConfigs(
            {row.name: row.value or "" for row in rows if row.config_source == TOPIC_OVERRIDE_SOURCE},
            {row.name: row.value or "" for row in rows},
        )
    return configs, refused


def alter_configs(client: ClusterClient, changes: Mapping[str, Mapping[str, str | None]]) -> None:
    """None removes an override. A topic's changes apply all or none."""
    _alter_configs(client, changes, None)


def try_alter_configs(
    client: ClusterClient, changes: Mapping[str, Mapping[str, str | None]], *, validate_only: bool = False
) -> dict[str, RemoteFault]:
    """MissingPermission when every topic of `changes` is denied."""
    refusals = dict[str, RemoteFault]()
    _alter_configs(client, changes, refusals, validate_only=validate_only)
    denied = [error for error in refusals.values() if isinstance(error, MissingPermission)]
    if denied and len(denied) == len(changes):
        raise denied[0]
    return refusals


def find_wrong_configs(topic_configs: TopicConfigs | None, wanted: Mapping[str, str]) -> dict[str, str]:
    """Empty without the topic."""
    return {} if topic_configs is None else dict(wanted.items() - topic_configs.effective.items())


def correct_configs(client: ClusterClient, topic: str, wanted: Mapping[str, str] = BROKER_TIME_CONFIGS) -> None:
    """Only logged where denied."""
    try:
        for key, value in sorted(find_wrong_configs(describe_configs(client, [topic]).get(topic), wanted).items()):
            alter_configs(client, {topic: {key: value}})
    except RemoteFault as error:
        _log.info("topic %s keeps settings that Mirrorbook does not want: %s", topic, error, cluster=client.name)


def _alter_configs(
    client: ClusterClient,
    changes: Mapping[str, Mapping[str, str | None]],
    refusals: MutableMapping[str, RemoteFault] | None,
    *,
    validate_only: bool = False,
) -> None:
    def attempt(names: list[str]) -> dict[str, tuple[ErrorCode, str | None]]:
        requests = [
            build_alter_configs(share, changes, validate_only=validate_only)
            for share in _split_into_requests(names, lambda name: len(changes[name]))
        ]
        responses = client.call_controller_each(requests, IncrementalAlterConfigsResponse)
        return {
            row.resource_name: (row.error_code, row.error_message)
            for response in responses
            for row in response.responses
        }

    changed_topics = [topic for topic in changes if changes[topic]]
    retry_per_key(client, "IncrementalAlterConfigs (needs ALTER_CONFIGS)", changed_topics, attempt, refusals=refusals)


def create_topics(client: ClusterClient, topics: Iterable[NewTopic]) -> frozenset[str]:
    """Waits for leaders. Returns the names that existed."""
    new_topics = {topic.name: topic for topic in topics}

    def attempt(names: list[str]) -> dict[str, tuple[ErrorCode, str | None]]:
        requests = [
            CreateTopicsRequest(
                topics=tuple(_to_creatable(new_topics[name]) for name in share),
                timeout=_to_timeout(client),
                validate_only=False,
            )
            for share in _split_into_requests(names, lambda name: _count_changes(new_topics[name]))
        ]
        responses = client.call_controller_each(requests, CreateTopicsResponse)
        return {str(row.name): (row.error_code, row.error_message) for response in responses for row in response.topics}

    expected = (ErrorCode.topic_already_exists,)
    codes = retry_per_key(client, "CreateTopics (needs CREATE)", list(new_topics), attempt, expected=expected)
    wait_for_leaders(client, new_topics)
    return frozenset(name for name, code in codes.items() if code is not ErrorCode.none)


def validate_topics(
    client: ClusterClient, topics: Iterable[NewTopic]
) -> tuple[dict[str, dict[str, str]], dict[str, RemoteFault]]:
    """Resulting configs by topic. Existing topics are no error, and have none here."""
    rows, refusals = _validate_topics(client, topics)
    effective = {name: {c.name: c.value or "" for c in row.configs or ()} for name, row in rows.items()}
    return {name: configs for name, configs in effective.items() if name not in refusals}, refusals


def resolve_default_replicas(client: ClusterClient, new_topics: Mapping[str, int]) -> dict[str, int]:
    """-1 becomes the controllers' default, if they tell it."""
    topic = next((name for name, replicas in new_topics.items() if replicas < 0), None)
    if topic is None:
        return dict(new_topics)
    rows, _ = _validate_topics(client, [NewTopic(name=topic, partitions=1, replication_factor=-1)])
    default = int(rows[topic].replication_factor) if topic in rows else -1
    return {name: default if replicas < 0 else replicas for name, replicas in new_topics.items()}


def _validate_topics(
    client: ClusterClient, topics: Iterable[NewTopic]
) -> tuple[dict[str, CreatableTopicResult], dict[str, RemoteFault]]:
    new_topics = {topic.name: topic for topic in topics}
    results, refusals = dict[str, CreatableTopicResult](), dict[str, RemoteFault]()

    def attempt(names: list[str]) -> dict[str, tuple[ErrorCode, str | None]]:
        requests = [
            ValidateTopicsRequest(
                topics=tuple(_to_validated(new_topics[name]) for name in share),
                timeout=_to_timeout(client),
                validate_only=True,
            )
            for share in _split_into_requests(names, lambda name: _count_changes(new_topics[name]))
        ]
        rows = [
            row for response in client.call_controller_each(requests, ValidateTopicsResponse) for row in response.topics
        ]
        results.update({str(row.name): row for row in rows})
        return {str(row.name): (row.error_code, row.error_message) for row in rows}

    expected = (ErrorCode.topic_already_exists,)
    retry_per_key(
        client, "CreateTopics (needs CREATE)", list(new_topics), attempt, expected=expected, refusals=refusals
    )
    return results, refusals


def find_max_replicas(client: ClusterClient, new_topics: Mapping[str, int]) -> int:
    """`new_topics`: wanted replicas of topics that do not exist yet.

    Brokers that are down count in KRaft, which places replicas on them, too.
    """
    brokers = len(client.brokers())
    topic, wanted = max(new_topics.items(), key=lambda item: item[1], default=("", 0))
    for replicas in range(wanted, brokers, -1):
        _, refusals = validate_topics(client, [NewTopic(name=topic, partitions=1, replication_factor=replicas)])
        if not isinstance(refusals.get(topic), TooFewBrokers):
            return replicas
    return brokers


def wait_for_leaders(client: ClusterClient, topics: Collection[str], widths: Mapping[str, int] | None = None) -> None:
    """All partitions (at least `widths`).

    Unreachable when no further topic completes within the client's limit plus `NEW_TOPIC_WAIT_S` per topic.
    """
    waiting, deadline = set(topics), 0.0
    while waiting:
        described = client.metadata(sorted(waiting)).topics
        ready = {
            name
            for name in waiting
            if name in described
            and len(described[name].partitions) >= (widths or {}).get(name, 1)
            and all(leader.broker >= 0 for leader in described[name].partitions.values())
        }
        waiting -= ready
        if ready or not deadline:
            deadline = time.monotonic() + client.timeout_s + NEW_TOPIC_WAIT_S * len(waiting)
        elif time.monotonic() > deadline:
            raise Unreachable(
                f"cluster {client.name}: no leaders of {', '.join(sorted(waiting)[:9])}, {len(waiting)} in all"
            )
        if waiting:
            client.mark_metadata_stale()  # this broker may be cut off from the controllers
            time.sleep(0.05)


def create_partitions(client: ClusterClient, counts: Mapping[str, int]) -> None:
    described = client.metadata(counts).topics
    missing = {
        name: count - (len(described[name].partitions) if name in described else 0) for name, count in counts.items()
    }
    narrow = {name for name in counts if missing[name] > 0}

    def attempt(names: list[str]) -> dict[str, tuple[ErrorCode, str | None]]:
        requests = [
            CreatePartitionsRequest(
                topics=tuple(
                    CreatePartitionsTopic(name=TopicName(topic_name), count=i32(counts[topic_name]), assignments=None)
                    for topic_name in share
                ),
                timeout=_to_timeout(client),
                validate_only=False,
            )
            for share in _split_into_requests(names, missing.__getitem__)
        ]
        responses = client.call_controller_each(requests, CreatePartitionsResponse)
        return {
            str(row.name): (row.error_code, row.error_message) for response in responses for row in response.results
        }

    # INVALID_PARTITIONS: wide enough already.
    expected = (ErrorCode.invalid_partitions,)
    retry_per_key(client, "CreatePartitions (needs ALTER)", sorted(narrow), attempt, expected=expected)
    wait_for_leaders(client, narrow, counts)


def delete_topics(client: ClusterClient, topics: Collection[str]) -> None:
    """Returns when every broker forgot them. Missing ones count as deleted."""

    def attempt(names: list[str]) -> dict[str, tuple[ErrorCode, str | None]]:
        requests = [
            DeleteTopicsRequest(
                topic_names=tuple(TopicName(topic_name) for topic_name in share), timeout=_to_timeout(client)
            )
            for share in _split_into_requests(names, lambda _: 1)
        ]
        responses = client.call_controller_each(requests, DeleteTopicsResponse)
        return {str(row.name): (row.error_code, None) for response in responses for row in response.responses}

    missing_codes = (ErrorCode.unknown_topic_or_partition,)
    retry_per_key(client, "DeleteTopics (needs DELETE)", sorted(topics), attempt, expected=missing_codes)
    _wait_until_forgotten(client, topics, None)


def delete_topic(client: ClusterClient, name: str, topic_id: str) -> None:
    """By id: a topic created meanwhile could have the name."""
    if topic_id == NO_TOPIC_ID:
        delete_topics(client, [name])
        return

    def attempt(names: list[str]) -> dict[str, tuple[ErrorCode, str | None]]:
        state = DeleteTopicState(name=None, topic_id=uuid.UUID(topic_id))
        request = DeleteByIdRequest(topics=(state,), timeout=_to_timeout(client))
        rows = client.call_controller(request, DeleteByIdResponse).responses
        return dict.fromkeys(names, (rows[0].error_code, None)) if rows else {}

    retry_per_key(client, "DeleteTopics (needs DELETE)", [name], attempt, expected=(ErrorCode.unknown_topic_id,))
    _wait_until_forgotten(client, [name], topic_id)


def delete_records(client: ClusterClient, start_offsets: Mapping[Partition, Offset]) -> dict[Partition, Offset]:
    """To these offsets (first to be kept); returns the new log starts.

    Offsets before the log start are done; beyond the high watermark an error.
    """
    starts: dict[Partition, Offset] = {}

    def attempt(partitions: list[Partition]) -> dict[Partition, tuple[ErrorCode, str | None]]:
        codes: dict[Partition, tuple[ErrorCode, str | None]] = {}
        for broker, leader_partitions in client.leaders(partitions).items():
            if broker < 0:
                codes.update({partition: (ErrorCode.leader_not_available, None) for partition in leader_partitions})
                continue
            by_topic: dict[str, list[DeleteRecordsPartition]] = {}
            for partition in leader_partitions:
                by_topic.setdefault(partition.topic, []).append(
                    DeleteRecordsPartition(partition_index=i32(partition.index), offset=i64(start_offsets[partition]))
                )
            request = DeleteRecordsRequest(
                topics=tuple(
                    DeleteRecordsTopic(name=TopicName(topic), partitions=tuple(rows))
                    for topic, rows in by_topic.items()
                ),
                timeout=_to_timeout(client),
            )
            for topic in client.call(request, DeleteRecordsResponse, broker).topics:
                for row in topic.partitions:
                    partition = Partition(str(topic.name), int(row.partition_index))
                    codes[partition] = (row.error_code, None)
                    starts[partition] = Offset(int(row.low_watermark))
        return codes

    retry_per_key(client, "DeleteRecords (needs DELETE)", sorted(start_offsets), attempt)
    return starts


def _split_into_requests(keys: Iterable[Key], size: Callable[[Key], int]) -> Iterator[list[Key]]:
    share, total = list[Key](), 0
    for key in keys:
        if share and total + size(key) > _MAX_CHANGES_PER_REQUEST:
            yield share
            share, total = [], 0
        share.append(key)
        total += size(key)
    if share:
        yield share


def _count_changes(topic: NewTopic) -> int:
    return 1 + max(topic.partitions, len(topic.assignments)) + len(topic.configs)


def _to_creatable(topic: NewTopic) -> CreatableTopic:
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


def _to_validated(topic: NewTopic) -> ValidatedTopic:
    return ValidatedTopic(
        name=TopicName(topic.name),
        num_partitions=i32(topic.partitions),
        replication_factor=i16(topic.replication_factor),
        assignments=(),
        configs=tuple(ValidatedConfig(name=k, value=v) for k, v in sorted(topic.configs.items())),
    )


def _wait_until_forgotten(client: ClusterClient, topics: Collection[str], topic_id: str | None) -> None:
    deadline = time.monotonic() + client.timeout_s
    for broker in client.brokers():
        while known := list_known_topics(client, broker, topics, topic_id):
            if time.monotonic() > deadline:
                raise Unreachable(
                    f"cluster {client.name}, broker {broker}: still lists deleted topics after "
                    f"{client.timeout_s} s: {', '.join(sorted(known))}"
                )
            time.sleep(0.05)


def list_known_topics(
    client: ClusterClient, broker: int, topics: Collection[str], topic_id: str | None = None
) -> list[str]:
    request = MetadataRequest(
        topics=tuple(MetadataRequestTopic(topic_id=None, name=TopicName(name)) for name in sorted(topics)),
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )
    response = client.call(request, MetadataResponse, broker)
    denied = [str(topic.name) for topic in response.topics if topic.error_code is ErrorCode.topic_authorization_failed]
    if denied:
        raise describe_denied_error(client, denied)
    return [
        str(topic.name)
        for topic in response.topics
        if topic.error_code is not ErrorCode.unknown_topic_or_partition
        and (topic_id is None or topic.topic_id == uuid.UUID(topic_id))
    ]


def _to_timeout(client: ClusterClient) -> i32Timedelta:
    return i32Timedelta.parse(datetime.timedelta(milliseconds=int(client.timeout_s * 1000)))


_TOPIC_RESOURCE_TYPE: Final = i8(2)


def fetch_default_configs(client: ClusterClient, topics: Collection[str]) -> dict[str, str | None]:
    """Value of each setting without an override. Empty if none of these topics exists.

    None: unknown, for example where each topic overrides the setting.
    """
    resources = [
        DescribeConfigsResource(resource_type=_TOPIC_RESOURCE_TYPE, resource_name=topic, configuration_keys=None)
        for topic in topics
    ]
    request = DescribeConfigsRequest(resources=tuple(resources), include_synonyms=True)
    results = client.call(request, DescribeConfigsResponse).results
    described = [result for result in results if result.error_code is ErrorCode.none]
    for result in results:
        if not described and result.error_code is not ErrorCode.unknown_topic_or_partition:
            where = f"topic {result.resource_name}"
            raise make_fault(client, where, "DescribeConfigs", result.error_code, result.error_message)
    defaults = dict[str, str | None]()
    for config in (config for result in described for config in result.configs):
        values = [s.value or "" for s in config.synonyms if s.source != TOPIC_OVERRIDE_SOURCE]  # the nearest first
        if config.config_source != TOPIC_OVERRIDE_SOURCE:
            values = [config.value or ""]
        if defaults.get(config.name) is None:
            defaults[config.name] = values[0] if values else None
    return defaults


CONFIG_BARRIER_S: Final = 5.0
"""Brokers need only milliseconds."""
ConfigOverrides = Mapping[str, Mapping[str, str | None]]
"""By topic; None: no override."""


def find_late_brokers(
    client: ClusterClient, overrides: ConfigOverrides, within_s: float | None = None
) -> Collection[int]:
    """A broker's logs apply a config as soon as it shows it. With ZooKeeper none is late."""

    def shows_configs(connection: Connection) -> bool:
        response = connection.call(build_describe_configs(sorted(overrides)), DescribeConfigsResponse)
        broker_overrides = {
            result.resource_name: {
                row.name: row.value for row in result.configs if row.config_source == TOPIC_OVERRIDE_SOURCE
            }
            for result in response.results
            if result.error_code is ErrorCode.none
        }
        return all(
            topic in broker_overrides
            and all(broker_overrides[topic].get(name) == value for name, value in changes.items())
            for topic, changes in overrides.items()
        )

    return (
        wait_for_propagation(client, shows_configs, CONFIG_BARRIER_S if within_s is None else within_s).keys()
        if overrides
        else set()
    )
