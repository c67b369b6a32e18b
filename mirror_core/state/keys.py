"""Keys of the state topic. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from mirror_core.model.names import MirrorName

_RUN_ID: Final = re.compile(r"(?P<mirror>.+)-(?:failover|failback)-\d{8}T\d{6}-[0-9a-f]{4}")
_MIRROR_KINDS: Final = frozenset(
    (
        *("mirror", "partition", "lease", "ledger", "settings", "debt", "sighting", "proof", "receipts", "writer"),
        *("groups", "uncommitted", "committed"),
    )
)


_SEGMENT_PATTERN: Final = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._:~-]{1,249}")
"""Topic names are the longest."""
_SEGMENT_COUNTS: Final[Mapping[str, int]] = MappingProxyType(
    {
        **dict.fromkeys(("mirror", "lease", "debt", "groups", "uncommitted", "sighting", "proof", "run"), 1),
        **dict.fromkeys(("ledger", "lifted", "step", "told", "settings", "receipts", "writer", "committed"), 2),
        **dict.fromkeys(("partition", "checkpoint"), 3),
    }
)
"""After the kind. Some become parts of paths."""


def is_well_formed(key: str) -> bool:
    """For keys that are not pieces."""
    kind, *segments = key.split("/")
    return len(segments) == _SEGMENT_COUNTS.get(kind) and all(
        _SEGMENT_PATTERN.fullmatch(segment) for segment in segments
    )


def parse_mirror_name(key: str) -> MirrorName | None:
    """Works for unreadable values, too; None: a foreign key, or one that no decision depends on."""
    kind, _, segments = key.partition("/")
    first = segments.partition("/")[0]
    match kind:
        case _ if kind in _MIRROR_KINDS:
            return MirrorName(first)
        case "run" | "step" | "checkpoint":
            match = _RUN_ID.fullmatch(first)
            return MirrorName(match["mirror"]) if match else None
        case "piece":
            return parse_mirror_name(segments)
    return None
