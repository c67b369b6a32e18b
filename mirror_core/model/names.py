"""Names and offsets. Users' regular expressions match whole names, in linear time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, NewType

import re2

from mirror_core.model.errors import BadRequest

ClusterName = NewType("ClusterName", str)
MirrorName = NewType("MirrorName", str)
Offset = NewType("Offset", int)
"""Equal on source and destination."""


@dataclass(frozen=True, slots=True)
class ClusterIdentity:
    """What a configured name must lead to: another machine's file, or a later one, may name another cluster."""

    name: ClusterName
    id: str


@dataclass(frozen=True, slots=True, order=True)
class Partition:
    topic: str
    index: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.index}"


_REVERSE_SUFFIX: Final = "-back"
ACTIVE_TOPIC: Final = "__mirrorbook_active"
"""Each cluster's own; never mirrored."""


def format_reverse_name(name: MirrorName) -> MirrorName:
    return MirrorName(f"{name}{_REVERSE_SUFFIX}")


def is_reverse_mirror(name: str) -> bool:
    return name.endswith(_REVERSE_SUFFIX)


def get_base_name(name: MirrorName) -> MirrorName:
    return MirrorName(name.removesuffix(_REVERSE_SUFFIX) or name)


def get_both_directions(name: MirrorName) -> frozenset[MirrorName]:
    """Either may lift the other's denials."""
    base = get_base_name(name)
    return frozenset({base, format_reverse_name(base)})


HEARTBEAT_TOPIC_PREFIX: Final = "mirrorbook.heartbeats."


def get_heartbeat_topic(name: MirrorName) -> str:
    """Both directions share it."""
    return HEARTBEAT_TOPIC_PREFIX + get_base_name(name)


DRILL_PREFIX: Final = "drill."


def get_drill_group(name: MirrorName) -> str | None:
    """No other mirror syncs it. None: not a drill."""
    return f"mirrorbook.{name}" if name.startswith(DRILL_PREFIX) else None


def select_application_partitions(partitions: Iterable[Partition]) -> frozenset[Partition]:
    """Without heartbeats, which are no loss. A drill has only heartbeats, so it keeps them."""
    all_partitions = frozenset(partitions)
    return frozenset(p for p in all_partitions if not p.topic.startswith(HEARTBEAT_TOPIC_PREFIX)) or all_partitions


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    topics: tuple[tuple[str, tuple[tuple[int, int], ...]], ...] = ()

    @classmethod
    def from_mapping(cls, offsets: Mapping[Partition, Offset]) -> PartitionOffsets:
        by_topic: dict[str, list[tuple[int, int]]] = {}
        for partition, offset in sorted(offsets.items()):
            by_topic.setdefault(partition.topic, []).append((partition.index, offset))
        return cls(tuple((topic, tuple(rows)) for topic, rows in by_topic.items()))

    def to_mapping(self) -> dict[Partition, Offset]:
        return {Partition(topic, index): Offset(offset) for topic, rows in self.topics for index, offset in rows}


NO_OFFSETS: Final = PartitionOffsets()


_NO_LOWER_BOUND: Final = re.compile(r"\{,\d*\}")
"""Python repeats; RE2 takes it literally, and no topic would match."""


@dataclass(frozen=True, slots=True)
class NamePattern:
    """RE2's syntax: nothing that could backtrack (lookaround, back references)."""

    expression: str
    _compiled: Any = field(repr=False, compare=False)

    def matches(self, name: str) -> bool:
        return self._compiled.fullmatch(name) is not None


@lru_cache(maxsize=128)
def compile_name_pattern(where: str, expression: str) -> NamePattern:
    """BadRequest begins with `where`."""
    options = re2.Options()
    options.log_errors = False
    options.dot_nl = True  # group names may hold line breaks
    try:
        if match := _NO_LOWER_BOUND.search(expression):
            raise BadRequest(f"{where} {expression!r}: RE2 needs a lower bound: write {{0{match[0][1:]}")
        return NamePattern(expression, re2.compile(expression, options))
    except re2.error as error:
        (why,) = error.args
        reason = why.decode(errors="replace")
    except UnicodeEncodeError:
        reason = "it is no text"
    raise BadRequest(
        f"{where} {expression!r} is not a regular expression in RE2's syntax, which has no lookaround and no back "
        f"references: {reason}"
    )
