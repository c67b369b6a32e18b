"""Topic and group filters: regular expressions over whole names; exclusion wins; internal names never
match.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mirror_core.model.mirror import Mirror
from mirror_core.model.name_patterns import NamePattern, name_pattern
from mirror_core.model.names import HEARTBEATS, drill_group, heartbeat_topic

OWN_PREFIX = "mirrorbook"


@dataclass(frozen=True, slots=True)
class Filter:
    include: tuple[NamePattern, ...]
    exclude: tuple[NamePattern, ...] = ()

    def __contains__(self, name: object) -> bool:
        return (
            isinstance(name, str)
            and any(pattern.matches(name) for pattern in self.include)
            and not any(pattern.matches(name) for pattern in self.exclude)
        )


@dataclass(frozen=True, slots=True)
class TopicFilter(Filter):
    """Rejects names with two leading underscores (Kafka's, its tools' and ours), and other mirrors'
    heartbeats.

    The mirror's own heartbeats always match.
    """

    heartbeats: str = ""

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str) or name.startswith("__"):
            return False
        if name.startswith(HEARTBEATS):
            return name == self.heartbeats
        # Named base: super() without arguments does not work in a class that slots=True has made anew.
        return Filter.__contains__(self, name)


@dataclass(frozen=True, slots=True)
class GroupFilter(Filter):
    """Consumer groups. Mirrorbook's own are never synced, but the group of the mirror's own drill."""

    drilled: str | None = None

    def __contains__(self, name: object) -> bool:
        if isinstance(name, str) and name.startswith((f"{OWN_PREFIX}.", f"{OWN_PREFIX}-")) and name != self.drilled:
            return False
        return Filter.__contains__(self, name)


def topic_filter(mirror: Mirror) -> TopicFilter:
    """BadRequest names an expression that does not compile."""
    include, exclude = _compile("--topics", mirror.topics), _compile("--exclude-topics", mirror.exclude_topics)
    return TopicFilter(include, exclude, heartbeat_topic(mirror.name))


def topics_named(expressions: Iterable[str]) -> Filter:
    return Filter(_compile("--topics", expressions))


def group_filter(mirror: Mirror) -> GroupFilter:
    return GroupFilter(_compile("--groups", mirror.groups), drilled=drill_group(mirror.name))


def _compile(option: str, expressions: Iterable[str]) -> tuple[NamePattern, ...]:
    return tuple(name_pattern(option, expression) for expression in expressions)
