"""Where logs should end: from the command line, or a file that a failback wrote.

{"cluster_id": "…", "run": "…", "topics": {"orders": {"id": "<topic id>", "partitions": {"0": 5995}}}}
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from mirror_core.logdir.layout import parse_topic_id
from mirror_core.model.errors import BadRequest
from mirror_core.model.names import Offset, Partition

_TOPIC_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_TARGET_ARGUMENT: Final = re.compile(r"(.+)-(\d{1,9})=(\d{1,18})")


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncationTargets:
    origin: str
    cluster_id: str | None
    offsets: Mapping[Partition, Offset]
    topic_ids: Mapping[str, str]
    requires_all: bool
    """Each must be on this broker."""


class _TargetTopic(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    partitions: dict[int, int]


class _TargetFile(msgspec.Struct, forbid_unknown_fields=True):
    cluster_id: str
    run: str
    topics: dict[str, _TargetTopic]


def read_targets(path: Path) -> TruncationTargets:
    try:
        document = msgspec.json.decode(path.read_bytes(), type=_TargetFile, strict=False)
        ids = {topic: parse_topic_id(topic_target.id) for topic, topic_target in document.topics.items()}
    except OSError as error:
        raise BadRequest(f"--to {path} cannot be read: {error.strerror}") from None
    except (msgspec.DecodeError, ValueError) as error:
        raise BadRequest(f"--to {path} is not a file that `mirrorbook failback` wrote: {error}") from None
    offsets = {
        (topic, index): end
        for topic, topic_target in document.topics.items()
        for index, end in topic_target.partitions.items()
    }
    return TruncationTargets(
        origin=f"{path} (run {document.run})",
        cluster_id=document.cluster_id,
        offsets={_to_partition(topic, index): _to_offset(topic, index, end) for (topic, index), end in offsets.items()},
        topic_ids=ids,
        requires_all=False,
    )


def parse_targets(arguments: Sequence[str]) -> TruncationTargets:
    """`TOPIC-N=OFFSET`."""
    offsets: dict[Partition, Offset] = {}
    for argument in arguments:
        match = _TARGET_ARGUMENT.fullmatch(argument)
        if match is None:
            raise BadRequest(f"--partition {argument!r}: give TOPIC-NUMBER=OFFSET, such as orders-0=5995")
        partition = _to_partition(match[1], int(match[2]))
        if partition in offsets:
            raise BadRequest(f"--partition {argument!r}: {partition} is given twice")
        offsets[partition] = Offset(int(match[3]))
    return TruncationTargets(origin="--partition", cluster_id=None, offsets=offsets, topic_ids={}, requires_all=True)


def _to_partition(topic: str, index: int) -> Partition:
    if not _TOPIC_NAME.fullmatch(topic) or topic in (".", "..") or index < 0:
        raise BadRequest(f"{topic!r}-{index} names no partition")
    return Partition(topic, index)


def _to_offset(topic: str, index: int, end: int) -> Offset:
    if end < 0:
        raise BadRequest(f"{topic}-{index}: {end} is no offset")
    return Offset(end)
