"""Decides when a mirror topic of a compacted source may be compacted, too.

A compacted topic refuses records without a key, which the source may hold from before, and seeding writes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from typing import Final

from mirror_core.decide.deletion_hold import find_compaction_start, is_compaction_held
from mirror_core.decide.topic_settings import (
    MIRROR_CONFIGS,
    RETENTION_PROMISE_KEYS,
    compute_raised_limit,
    diff_configs,
    is_compacted,
)
from mirror_core.kafka.client import ClusterClient, TopicMetadata
from mirror_core.kafka.config import ClusterConfig
from mirror_core.kafka.log_offsets import OffsetPoint, list_known_offsets
from mirror_core.kafka.topics import TopicConfigs, alter_configs, describe_configs, try_alter_configs
from mirror_core.model.errors import MissingPermission, RemoteFault, SettingRefused, Unreachable
from mirror_core.model.mirror import FailureKind, GapFilling
from mirror_core.model.names import Partition
from mirror_core.model.task_messages import PartitionFailure
from mirror_core.state.mirror_link import MirrorLink, read_broker_time_ms
from mirror_core.state.state_records import State

_POLL_INTERVAL_S: Final = 0.05
_MAX_MESSAGE_BYTES: Final = "max.message.bytes"


COMPACTION_HELD: Final = "cleaning would delete records: not before the hold of deletions is over, or at promotion"
COMPACTION_SOONER: Final = "cleaning would delete records sooner than the source does: not before promotion"


@dataclass(frozen=True, slots=True)
class CompactionChoice:
    since_ms: Mapping[str, int | None]
    """Since when the source is seen to compact the topic."""
    cleaned: Set[str]
    """Compacted on the destination, too."""
    held: Mapping[str, str]
    """Why not yet."""


def choose_compaction(
    link: MirrorLink,
    state: State,
    destination: ClusterClient,
    configs: Mapping[str, tuple[TopicConfigs, TopicConfigs]],
    find_lagging: Callable[[Set[str]], Set[str]],
) -> CompactionChoice:
    """Times by the brokers' clock.

    `configs`: of the source and the destination. `find_lagging`: of topics that would be compacted from now on.
    """
    name, at_ms = link.mirror.name, read_broker_time_ms(link.destination)
    hold_ms = link.config.deletion_hold_ms(name)
    since_ms = {
        topic: find_compaction_start(
            state.topic_settings.get((name, topic)), is_compacted=is_compacted(source.effective), now_ms=at_ms
        )
        for topic, (source, _) in configs.items()
    }
    if link.mirror.gaps is GapFilling.HIDDEN:
        return CompactionChoice(since_ms, frozenset(), {})
    compacted = {topic for topic, since in since_ms.items() if since is not None}
    new = {topic for topic in compacted if not is_compacted(configs[topic][1].effective)}
    held = {topic for topic in new if is_compaction_held(since_ms[topic], now_ms=at_ms, hold_ms=hold_ms)}
    sooner = _find_sooner_cleaned(destination, {topic: configs[topic] for topic in compacted - held})
    reasons = dict.fromkeys(held, COMPACTION_HELD) | dict.fromkeys(sooner, COMPACTION_SOONER)
    return CompactionChoice(since_ms, compacted - reasons.keys() - find_lagging(new - reasons.keys()), reasons)


def _find_sooner_cleaned(
    destination: ClusterClient, configs: Mapping[str, tuple[TopicConfigs, TopicConfigs]]
) -> set[str]:
    """The destination refuses to keep their records as long as the source does."""
    promises = {
        topic: diff_configs(
            {key: source.effective[key] for key in RETENTION_PROMISE_KEYS if key in source.effective},
            {key: value for key, value in current.overrides.items() if key in RETENTION_PROMISE_KEYS},
        )
        for topic, (source, current) in configs.items()
    }
    wanted = {topic: changes for topic, changes in promises.items() if changes}
    if not wanted:
        return set()
    try:
        faults = try_alter_configs(destination, wanted, validate_only=True)
    except MissingPermission:
        return set()  # neither they nor the policy can be set
    return {topic for topic, error in faults.items() if isinstance(error, SettingRefused)}


def find_lagging_topics(
    source: ClusterClient, destination: ClusterClient, topics: Mapping[str, TopicMetadata], wait_s: float
) -> set[str]:
    """Their copies have not reached the source's current log ends; waits at most `wait_s`."""
    partitions = [Partition(name, index) for name, view in topics.items() for index in view.partitions]
    lagging = set(topics)
    try:
        ends = list_known_offsets(source, partitions, OffsetPoint.LOG_END)
        deadline = time.monotonic() + wait_s
        while lagging:
            positions = list_known_offsets(destination, partitions, OffsetPoint.LOG_END)
            lagging = {p.topic for p in partitions if p not in ends or positions.get(p, -1) < ends[p]}
            if time.monotonic() >= deadline:
                break
            if lagging:
                time.sleep(_POLL_INTERVAL_S)
    except Unreachable:
        pass  # must not hold up other settings
    return lagging


@dataclass(slots=True)
class TopicRelaxation:
    """Makes mirror topics accept what they refused: no compaction, or a higher limit."""

    source: ClusterConfig
    destination: ClusterConfig
    report: Callable[[str], None]
    _relaxed_until_epoch: dict[str, int] = field(default_factory=dict)
    """Newest epoch whose tasks may not have noticed."""

    def relax_topic(self, failure: PartitionFailure, epoch: int, newest: int) -> bool:
        """Whether the cause of the failure is removed. `newest`: last epoch submitted."""
        if failure.kind is not FailureKind.UNKEYED and failure.needs_bytes is None:
            return False
        topic = failure.partition.topic
        if epoch <= self._relaxed_until_epoch.get(topic, -1):
            return True
        try:
            with ClusterClient(self.destination) as client:
                configs = describe_configs(client, [topic]).get(topic)
                changes = None if configs is None else _find_relaxing_changes(failure, configs.effective)
                if changes is None:
                    return False  # refused for another reason
                if failure.needs_bytes is None:
                    alter_configs(client, {topic: changes})
                else:
                    self._raise_limit(client, topic, failure.needs_bytes)
        except RemoteFault as error:
            self.report(f"{topic} on cluster {self.destination.name}: what it refuses cannot be allowed: {error}")
            return False
        # One epoch may be under way, and the next may begin before the setting reaches the leader.
        self._relaxed_until_epoch[topic] = newest + 1
        self.report(f"{failure.partition}, offset {failure.offset}: {self._format_relaxation(failure, topic)}")
        return True

    def _raise_limit(self, client: ClusterClient, topic: str, needs_bytes: int) -> None:
        limit = compute_raised_limit(needs_bytes, _get_max_message_bytes(self.source, topic))
        try:
            alter_configs(client, {topic: {_MAX_MESSAGE_BYTES: str(limit)}})
        except SettingRefused:
            alter_configs(client, {topic: {_MAX_MESSAGE_BYTES: str(needs_bytes)}})

    def _format_relaxation(self, failure: PartitionFailure, topic: str) -> str:
        destination = self.destination.name
        if failure.needs_bytes is not None:
            return (
                f"cluster {destination} refused a batch of {failure.needs_bytes:,} bytes; {_MAX_MESSAGE_BYTES} of"
                f" {topic} is raised"
            )
        return (
            f"no key, or a late beginning to be seeded: {topic} is not compacted on cluster {destination} until it has"
            " caught up"
        )


def _get_max_message_bytes(cluster: ClusterConfig, topic: str) -> int | None:
    try:
        with ClusterClient(cluster) as client:
            configs = describe_configs(client, [topic]).get(topic)
    except RemoteFault:
        return None
    return None if configs is None else int(configs.effective.get(_MAX_MESSAGE_BYTES) or 0) or None


def _find_relaxing_changes(failure: PartitionFailure, effective: Mapping[str, str]) -> dict[str, str | None] | None:
    if failure.needs_bytes is None:
        return {"cleanup.policy": MIRROR_CONFIGS["cleanup.policy"]} if is_compacted(effective) else None
    limit = int(effective.get(_MAX_MESSAGE_BYTES, 0))
    return {_MAX_MESSAGE_BYTES: str(failure.needs_bytes)} if limit < failure.needs_bytes else None
