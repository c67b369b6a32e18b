"""Live filters: regular expressions over whole names; exclusion wins; what is internal is never matched."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from mirror_core.model.errors import BadRequest
from mirror_core.model.mirror import Mirror
from mirror_core.model.names import HEARTBEATS, drill_group, heartbeat_topic

OWN_PREFIX = "mirrorbook"
"""Consumer groups of ours begin with this word; nothing is ever committed under them, but by a drill."""


@dataclass(frozen=True, slots=True)
class Filter:
    """Which names are meant."""

    include: tuple[re.Pattern[str], ...]
    exclude: tuple[re.Pattern[str], ...] = ()

    def __contains__(self, name: object) -> bool:
        return (
            isinstance(name, str)
            and any(pattern.fullmatch(name) for pattern in self.include)
            and not any(pattern.fullmatch(name) for pattern in self.exclude)
        )


@dataclass(frozen=True, slots=True)
class TopicFilter(Filter):
    """The same for topics. Names with two leading underscores belong to Kafka, its tools and us.

    A mirror carries its own heartbeats, whatever its expressions say, and never another's.
    """

    heartbeats: str = ""
    """Name of their topic."""

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str) or name.startswith("__"):
            return False
        if name.startswith(HEARTBEATS):
            return name == self.heartbeats
        # Named base: super() without arguments does not work in a class that slots=True has made anew.
        return Filter.__contains__(self, name)


def topic_filter(mirror: Mirror) -> TopicFilter:
    """Which topics the mirror carries. BadRequest names an expression that cannot be compiled."""
    include, exclude = _compile("--topics", mirror.topics), _compile("--exclude-topics", mirror.exclude_topics)
    return TopicFilter(include, exclude, heartbeat_topic(mirror.name))


def topics_named(expressions: Iterable[str]) -> Filter:
    """Topics that a command is told to take: expressions, or names. Names match themselves, also with dots in them."""
    return Filter(_compile("--topics", expressions))


def group_filter(mirror: Mirror) -> Filter:
    """Which consumer groups the mirror syncs: of ours only its own, if it is a drill's."""
    drilled = drill_group(mirror.name)
    but = "" if drilled is None else f"(?!{re.escape(drilled)}$)"
    own = re.compile(but + re.escape(OWN_PREFIX) + r"[.-].*")
    return Filter(_compile("--groups", mirror.groups), (own,))


def _compile(option: str, expressions: Iterable[str]) -> tuple[re.Pattern[str], ...]:
    compiled = []
    for expression in expressions:
        try:
            compiled.append(re.compile(expression))
        except re.error as error:
            raise BadRequest(f"{option} {expression!r} is not a regular expression: {error}") from None
    return tuple(compiled)
