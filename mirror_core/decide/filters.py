"""Filters of topics, groups and rights: whole names; exclusion wins; internal names never match."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from mirror_core.decide.topic_settings import ALWAYS_SYNCED_KEYS
from mirror_core.model.acl import Acl, Operation, Permission, Resource
from mirror_core.model.errors import BadRequest
from mirror_core.model.mirror import Mirror
from mirror_core.model.names import (
    HEARTBEAT_TOPIC_PREFIX,
    NamePattern,
    compile_name_pattern,
    get_drill_group,
    get_heartbeat_topic,
)
from mirror_core.rights.acl_rules import SortedNames, is_wildcard_grant

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


@dataclass(frozen=True, slots=True)
class _ExcludedRight:
    operation: NamePattern
    resource: NamePattern
    name: NamePattern
    covered: SortedNames
    """The mirror's topics and groups that it names."""

    def grants_any(self, acl: Acl) -> bool:
        """Part of what the ACL grants is enough: ALL includes the operation, a prefix or `*` covers the name."""
        operations = Operation if acl.operation is Operation.ALL else (acl.operation,)
        return (
            self.resource.matches(acl.resource)
            and any(self.operation.matches(operation) for operation in operations)
            and (self.name.matches(acl.name) or (is_wildcard_grant(acl) and self.covered.has_covered(acl)))
        )


@dataclass(frozen=True, slots=True)
class AclFilter:
    """ACLs of the source that a mirror syncs. All denials: leaving one out would open something."""

    principals: NameFilter
    excluded: tuple[_ExcludedRight, ...] = ()

    def __contains__(self, acl: object) -> bool:
        if not isinstance(acl, Acl) or acl.permission is Permission.DENY:
            return isinstance(acl, Acl)
        return acl.principal in self.principals and not any(right.grants_any(acl) for right in self.excluded)


@dataclass(frozen=True, slots=True)
class SettingFilter(NameFilter):
    """Topic settings that a mirror syncs; the others are neither compared nor changed."""

    def __contains__(self, name: object) -> bool:
        return name in ALWAYS_SYNCED_KEYS or not (
            isinstance(name, str) and any(pattern.matches(name) for pattern in self.exclude)
        )

    def select(self, configs: Mapping[str, str]) -> dict[str, str]:
        return {key: value for key, value in configs.items() if key in self}


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


def build_promotion_filter(mirror: Mirror, topics: Iterable[str], groups: Iterable[str]) -> AclFilter:
    """On a way home everybody gets back what was taken there."""
    return AclFilter(EVERY_NAME) if mirror.failback_run else build_acl_filter(mirror, topics, groups)


def build_acl_filter(mirror: Mirror, topics: Iterable[str], groups: Iterable[str]) -> AclFilter:
    """`topics`, `groups`: names that an ACL on a prefix or `*` may cover.

    BadRequest names an expression of --exclude-rights that can match nothing.
    """
    names = {Resource.TOPIC: tuple(topics), Resource.GROUP: tuple(groups)} if mirror.exclude_rights else {}
    return AclFilter(
        build_principal_filter(mirror),
        tuple(_compile_right(expression, names) for expression in mirror.exclude_rights),
    )


def build_setting_filter(mirror: Mirror) -> SettingFilter:
    """BadRequest names an expression that is a setting which the mirror needs itself."""
    for expression in mirror.exclude_settings:
        if (key := expression.replace("\\", "")) in ALWAYS_SYNCED_KEYS:
            raise BadRequest(
                f"--exclude-settings {expression!r}: a mirror sets {key} itself while it copies, or brokers would drop,"
                " change or refuse records; at promotion the topic gets the source's value"
            )
    return SettingFilter((), _compile_patterns("--exclude-settings", mirror.exclude_settings))


def _compile_right(expression: str, names: Mapping[Resource, Collection[str]]) -> _ExcludedRight:
    option, parts = "--exclude-rights", expression.split(" ", 2)
    if len(parts) != 3:
        raise BadRequest(f"{option} {expression!r}: write operation, resource type and name: 'READ TOPIC orders.*'")
    operation, resource, name = _compile_patterns(option, parts)
    for pattern, known in ((operation, Operation), (resource, Resource)):
        if not any(map(pattern.matches, known)):
            raise BadRequest(f"{option} {expression!r}: {pattern.expression!r} is none of {', '.join(known)}")
    covered = (n for kind, known_names in names.items() if resource.matches(kind) for n in known_names)
    return _ExcludedRight(operation, resource, name, SortedNames(filter(name.matches, covered)))


def build_principal_filter(mirror: Mirror) -> NameFilter:
    return NameFilter(
        _compile_patterns("--principals", mirror.principals),
        _compile_patterns("--exclude-principals", mirror.exclude_principals),
    )


EVERY_NAME = NameFilter((compile_name_pattern("", ".*"),))


def _compile_patterns(option: str, expressions: Iterable[str]) -> tuple[NamePattern, ...]:
    return tuple(compile_name_pattern(option, expression) for expression in expressions)
