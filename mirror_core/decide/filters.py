"""Topic and group filters: regular expressions over whole names; exclusion wins; internal names never
match.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from mirror_core.model.errors import BadRequest
from mirror_core.model.mirror import Mirror
from mirror_core.model.names import HEARTBEATS, drill_group, heartbeat_topic

OWN_PREFIX = "mirrorbook"


@dataclass(frozen=True, slots=True)
class Filter:
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


def topic_filter(mirror: Mirror) -> TopicFilter:
    """BadRequest names an expression that does not compile."""
    include, exclude = _compile("--topics", mirror.topics), _compile("--exclude-topics", mirror.exclude_topics)
    return TopicFilter(include, exclude, heartbeat_topic(mirror.name))


def topics_named(expressions: Iterable[str]) -> Filter:
    return Filter(_compile("--topics", expressions))


def group_filter(mirror: Mirror) -> Filter:
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
