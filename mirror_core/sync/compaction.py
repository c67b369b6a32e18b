"""Decides when a mirror topic of a compacted source may be compacted, too.

A compacted topic refuses records without a key, which the source may hold from before, and seeding writes. So a mirror
topic is compacted once it has caught up, until it meets such a record.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from mirror_core.decide.topics import FIXED, cleans, raised_limit
from mirror_core.kafka.client import ClusterClient, TopicView
from mirror_core.kafka.config import ClusterConfig
from mirror_core.kafka.offsets import Point, known_offsets
from mirror_core.kafka.topics import alter_configs, describe_configs
from mirror_core.model.copying import Failure
from mirror_core.model.errors import RemoteFault, SettingRefused, Unreachable
from mirror_core.model.mirror import FailureKind
from mirror_core.model.names import Partition

_LOOK_AGAIN_S: Final = 0.05
_LIMIT: Final = "max.message.bytes"


def behind(
    source: ClusterClient, destination: ClusterClient, topics: Mapping[str, TopicView], patience_s: float
) -> set[str]:
    """Compacted topics whose copies have not reached the source's current log ends; waits at most `wait_s`."""
    partitions = [Partition(name, index) for name, view in topics.items() for index in view.partitions]
    left = set(topics)
    try:
        ends = known_offsets(source, partitions, Point.LOG_END)
        deadline = time.monotonic() + patience_s
        while left:
            positions = known_offsets(destination, partitions, Point.LOG_END)
            left = {p.topic for p in partitions if p not in ends or positions.get(p, -1) < ends[p]}
            if time.monotonic() >= deadline:
                break
            if left:
                time.sleep(_LOOK_AGAIN_S)
    except Unreachable:
        pass  # must not hold up other settings
    return left


@dataclass(slots=True)
class Easing:
    """Changes settings so that mirror topics accept what they refused: no compaction, or a higher limit."""

    source: ClusterConfig
    destination: ClusterConfig
    say: Callable[[str], None]
    _known: dict[str, int] = field(default_factory=dict)
    """Newest epoch by topic whose tasks may not have noticed."""

    def eased(self, failure: Failure, epoch: int, newest: int) -> bool:
        """Whether the cause of the failure is removed. `newest`: last epoch submitted."""
        if failure.kind is not FailureKind.UNKEYED and failure.needs_bytes is None:
            return False
        topic = failure.partition.topic
        if epoch <= self._known.get(topic, -1):
            return True
        try:
            with ClusterClient(self.destination) as client:
                configs = describe_configs(client, [topic]).get(topic)
                changes = None if configs is None else _easing(failure, configs.effective)
                if changes is None:
                    return False  # refused for another reason
                if failure.needs_bytes is None:
                    alter_configs(client, {topic: changes})
                else:
                    self._raise_limit(client, topic, failure.needs_bytes)
        except RemoteFault as error:
            self.say(f"{topic} on cluster {self.destination.name}: what it refuses cannot be allowed: {error}")
            return False
        # One epoch may be under way, and the next may begin before the setting reaches the leader.
        self._known[topic] = newest + 1
        self.say(f"{failure.partition}, offset {failure.offset}: {self._eased(failure, topic)}")
        return True

    def _raise_limit(self, client: ClusterClient, topic: str, needs_bytes: int) -> None:
        """To the source's limit, or if refused to this batch's size."""
        limit = raised_limit(needs_bytes, _limit_of(self.source, topic))
        try:
            alter_configs(client, {topic: {_LIMIT: str(limit)}})
        except SettingRefused:
            alter_configs(client, {topic: {_LIMIT: str(needs_bytes)}})

    def _eased(self, failure: Failure, topic: str) -> str:
        here = self.destination.name
        if failure.needs_bytes is not None:
            return f"cluster {here} refused a batch of {failure.needs_bytes:,} bytes; {_LIMIT} of {topic} is raised"
        return (
            f"no key, or a late beginning to be seeded: {topic} is not compacted on cluster {here} until it has caught "
            "up"
        )


def _limit_of(cluster: ClusterConfig, topic: str) -> int | None:
    try:
        with ClusterClient(cluster) as client:
            found = describe_configs(client, [topic]).get(topic)
    except RemoteFault:
        return None
    return None if found is None else int(found.effective.get(_LIMIT) or 0) or None


def _easing(failure: Failure, effective: Mapping[str, str]) -> dict[str, str | None] | None:
    """Returns None when the settings already allow it."""
    if failure.needs_bytes is None:
        return {"cleanup.policy": FIXED["cleanup.policy"]} if cleans(effective) else None
    limit = int(effective.get(_LIMIT, 0))
    return {_LIMIT: str(failure.needs_bytes)} if limit < failure.needs_bytes else None
