"""When a mirror topic may be cleaned by key, as its source is: once nothing is left to copy that may have no key.

A topic that is cleaned by key takes no record without one. The source took some before its policy changed, or takes
them again; and a log that begins late is seeded with such records. So a mirror topic is cleaned from when it has caught
up with a source that is, and no longer when it meets a record without a key all the same.
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
    """Of topics that the source cleans by key: those that have not reached where its logs end now.

    Since it does, it takes no record without a key; what it took before lies below. On a busy topic `patience_s` lets
    the copier get there: what is written from now on does not count.
    """
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
        pass  # this holds up no other setting; those known to lag can wait
    return left


@dataclass(slots=True)
class Easing:
    """Lets mirror topics take what they have refused, for the control principal: takes those that met a record without
    a key out of the cleaner's reach, and raises the limit of those that met a batch above it."""

    source: ClusterConfig
    destination: ClusterConfig
    say: Callable[[str], None]
    _known: dict[str, int] = field(default_factory=dict)
    """The newest epoch, by topic, whose tasks may not have noticed yet."""

    def eased(self, failure: Failure, epoch: int, newest: int) -> bool:
        """Whether what stopped a partition in this epoch is out of the way. `newest`: the last one submitted."""
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
                    return False  # the broker had another reason
                if failure.needs_bytes is None:
                    alter_configs(client, {topic: changes})
                else:
                    self._raise_limit(client, topic, failure.needs_bytes)
        except RemoteFault as error:
            self.say(f"{topic} on cluster {self.destination.name}: what it refuses cannot be allowed: {error}")
            return False
        # One epoch may be under way already, and the next one be quicker than the setting on its way to the leader.
        self._known[topic] = newest + 1
        self.say(f"{failure.partition}, offset {failure.offset}: {self._eased(failure, topic)}")
        return True

    def _raise_limit(self, client: ClusterClient, topic: str, needs_bytes: int) -> None:
        """In one step to what the source's topic takes; where the destination refuses that, for this batch alone."""
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
    """The largest batch that this topic takes; None where it is not told."""
    try:
        with ClusterClient(cluster) as client:
            found = describe_configs(client, [topic]).get(topic)
    except RemoteFault:
        return None
    return None if found is None else int(found.effective.get(_LIMIT) or 0) or None


def _easing(failure: Failure, effective: Mapping[str, str]) -> dict[str, str | None] | None:
    """The settings that let it through; None: these do already."""
    if failure.needs_bytes is None:
        return {"cleanup.policy": FIXED["cleanup.policy"]} if cleans(effective) else None
    limit = int(effective.get(_LIMIT, 0))
    return {_LIMIT: str(failure.needs_bytes)} if limit < failure.needs_bytes else None
