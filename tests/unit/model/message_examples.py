"""A value for each name that rules give to messages: one name, one meaning, one type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

EXAMPLES: Final[Mapping[str, object]] = {
    "reason": "timed out after 4 s",
    "clusters": ("north", "south"),
    "source": "east",
}
SUBJECT_EXAMPLES: Final[Mapping[str, str]] = {
    "source_facts_unknown": "east",
    "destination_facts_unknown": "west",
    "circles_unknown": "west",
    "new_primary_facts_unknown": "west",
    "old_source_facts_unknown": "east",
}
"""By code; else it is about mirror or topic `orders`."""
