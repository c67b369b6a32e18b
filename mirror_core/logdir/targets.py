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

from mirror_core.logdir.layout import topic_uuid
from mirror_core.model.errors import BadRequest
from mirror_core.model.names import Offset, Partition

_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_TARGET: Final = re.compile(r"(.+)-(\d{1,9})=(\d{1,18})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    origin: str
    cluster_id: str | None
    offsets: Mapping[Partition, Offset]
    topic_ids: Mapping[str, str]
    all_here: bool
    """Each must be on this broker."""


class _Topic(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    partitions: dict[int, int]


class _File(msgspec.Struct, forbid_unknown_fields=True):
    cluster_id: str
    run: str
    topics: dict[str, _Topic]


def read_targets(path: Path) -> Targets:
    try:
        read = msgspec.json.decode(path.read_bytes(), type=_File, strict=False)
        ids = {topic: topic_uuid(wanted.id) for topic, wanted in read.topics.items()}
    except OSError as error:
        raise BadRequest(f"--to {path} cannot be read: {error.strerror}") from None
    except (msgspec.DecodeError, ValueError) as error:
        raise BadRequest(f"--to {path} is not a file that `mirrorbook failback` wrote: {error}") from None
    offsets = {(topic, index): end for topic, wanted in read.topics.items() for index, end in wanted.partitions.items()}
    return Targets(
        origin=f"{path} (run {read.run})",
        cluster_id=read.cluster_id,
        offsets={_partition(topic, index): _offset(topic, index, end) for (topic, index), end in offsets.items()},
        topic_ids=ids,
        all_here=False,
    )


def parse_targets(words: Sequence[str]) -> Targets:
    """`TOPIC-N=OFFSET`."""
    offsets: dict[Partition, Offset] = {}
    for word in words:
        found = _TARGET.fullmatch(word)
        if found is None:
            raise BadRequest(f"--partition {word!r}: give TOPIC-NUMBER=OFFSET, such as orders-0=5995")
        partition = _partition(found[1], int(found[2]))
        if partition in offsets:
            raise BadRequest(f"--partition {word!r}: {partition} is given twice")
        offsets[partition] = Offset(int(found[3]))
    return Targets(origin="--partition", cluster_id=None, offsets=offsets, topic_ids={}, all_here=True)


def _partition(topic: str, index: int) -> Partition:
    if not _TOPIC.fullmatch(topic) or topic in (".", "..") or index < 0:
        raise BadRequest(f"{topic!r}-{index} names no partition")
    return Partition(topic, index)


def _offset(topic: str, index: int, end: int) -> Offset:
    if end < 0:
        raise BadRequest(f"{topic}-{index}: {end} is no offset")
    return Offset(end)
