"""Topic and group filters: regular expressions over whole names; exclusion wins; internal names never match."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mirror_core.model.mirror import Mirror
from mirror_core.model.names import (
    HEARTBEAT_TOPIC_PREFIX,
    NamePattern,
    compile_name_pattern,
    get_drill_group,
    get_heartbeat_topic,
)

OWN_GROUP_PREFIX = "mirrorbook"


@dataclass(frozen=True, slots=True)
class NameFilter:
    include: tuple[NamePattern, ...]
    exclude: tuple[NamePattern, ...] = ()

    def __contains__(self, name: object) -> bool:
        return (
            isinstance(name, str)
            and any(pattern.matches(name) for pattern in self.include)
            and not any(pattern.matches(name) for pattern in self.exclude)
        )


@dataclass(frozen=True, slots=True)
class TopicFilter(NameFilter):
    """Rejects names with two leading underscores (Kafka's, its tools' and ours), and other mirrors' heartbeats."""

    heartbeats: str = ""

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str) or name.startswith("__"):
            return False
        if name.startswith(HEARTBEAT_TOPIC_PREFIX):
            return name == self.heartbeats
        # Named base: super() without arguments does not work in a class that slots=True has made anew.
        return NameFilter.__contains__(self, name)


@dataclass(frozen=True, slots=True)
class GroupFilter(NameFilter):
    """Rejects Mirrorbook's own groups, but the one of the mirror's own drill."""

    drilled: str | None = None

    def __contains__(self, name: object) -> bool:
        if (
            isinstance(name, str)
            and name.startswith((f"{OWN_GROUP_PREFIX}.", f"{OWN_GROUP_PREFIX}-"))
            and name != self.drilled
        ):
            return False
        return NameFilter.__contains__(self, name)


def build_topic_filter(mirror: Mirror) -> TopicFilter:
    """BadRequest names an expression that does not compile."""
    include, exclude = (
        _compile_patterns("--topics", mirror.topics),
        _compile_patterns("--exclude-topics", mirror.exclude_topics),
    )
    return TopicFilter(include, exclude, get_heartbeat_topic(mirror.name))


def parse_topic_filter(expressions: Iterable[str]) -> NameFilter:
    return NameFilter(_compile_patterns("--topics", expressions))


def build_group_filter(mirror: Mirror) -> GroupFilter:
    include, exclude = (
        _compile_patterns("--groups", mirror.groups),
        _compile_patterns("--exclude-groups", mirror.exclude_groups),
    )
    return GroupFilter(include, exclude, drilled=get_drill_group(mirror.name))


def build_promotion_filter(mirror: Mirror) -> NameFilter:
    """On a way home everybody gets back what was taken there."""
    return EVERY_NAME if mirror.failback_run else build_principal_filter(mirror)


def build_principal_filter(mirror: Mirror) -> NameFilter:
    return NameFilter(
        _compile_patterns("--principals", mirror.principals),
        _compile_patterns("--exclude-principals", mirror.exclude_principals),
    )


EVERY_NAME = NameFilter((compile_name_pattern("", ".*"),))


def _compile_patterns(option: str, expressions: Iterable[str]) -> tuple[NamePattern, ...]:
    return tuple(compile_name_pattern(option, expression) for expression in expressions)
