"""Which mirror a key of the state topic is about: also where its value cannot be read. Pure."""

from __future__ import annotations

import re
from typing import Final

from mirror_core.model.names import MirrorName

_RUN_ID: Final = re.compile(r"(?P<mirror>.+)-(?:failover|failback)-\d{8}T\d{6}-[0-9a-f]{4}")
_OF_A_MIRROR: Final = frozenset(
    ("mirror", "partition", "lease", "ledger", "settings", "debt", "groups", "sighting", "proof", "receipts", "writer")
)


def mirror_of(key: str) -> MirrorName | None:
    """The mirror that the record of this key is about; None when the key is none of ours.

    Nor is a run's chronicle, nor a denial that was lifted: nothing that is intended depends on them.
    """
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
