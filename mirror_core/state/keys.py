"""Keys of the state topic. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from mirror_core.model.names import MirrorName

_RUN_ID: Final = re.compile(r"(?P<mirror>.+)-(?:failover|failback)-\d{8}T\d{6}-[0-9a-f]{4}")
_OF_A_MIRROR: Final = frozenset(
    (
        *("mirror", "partition", "lease", "ledger", "settings", "debt", "sighting", "proof", "receipts", "writer"),
        *("groups", "uncommitted", "committed"),
    )
)


_SEGMENT: Final = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._:~-]{1,249}")
"""Topic names are the longest."""
_SEGMENTS: Final[Mapping[str, int]] = MappingProxyType(
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
    return len(segments) == _SEGMENTS.get(kind) and all(_SEGMENT.fullmatch(segment) for segment in segments)


def mirror_of(key: str) -> MirrorName | None:
    """Works for unreadable values, too; None: a foreign key, or one that no decision depends on."""
    kind, _, rest = key.partition("/")
    first = rest.partition("/")[0]
    match kind:
        case _ if kind in _OF_A_MIRROR:
            return MirrorName(first)
        case "run" | "step" | "checkpoint":
            found = _RUN_ID.fullmatch(first)
            return MirrorName(found["mirror"]) if found else None
        case "piece":
            return mirror_of(rest)
    return None
