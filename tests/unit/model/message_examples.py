"""A value for each name that rules give to messages: one name, one meaning, one type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

EXAMPLES: Final[Mapping[str, object]] = {
    "topics": ["billing", "orders"],
    "action": "recopy",
    "cluster": "east",
    "cluster_id": "9f2b",
    "destination": "west",
    "failback_of": "orders",
    "failed_over": True,
    "first_step": "free the name on west",
    "indexes": (3, 4),
    "may_leave_behind": True,
    "may_start": True,
    "mirror": "orders",
    "offsets": 1_200,
    "partitions": ("orders-1", "orders-2"),
    "reason": "timed out after 4 s",
    "recorded_id": "41c7",
    "rights": "ALTER on topic orders",
    "run": "run-7",
    "stopped": True,
    "clusters": ("north", "south"),
    "source": "east",
}
SUBJECT_EXAMPLES: Final[Mapping[str, str]] = {
    "source_facts_unknown": "east",
    "destination_facts_unknown": "west",
    **dict.fromkeys(
        (
            "cluster_replaced",
            "cluster_unseen",
            "demotion_impossible",
            "destination_offline",
            "destination_replaced",
            "destination_unseen",
            "left_behind_position_unknown",
            "new_primary_truncated",
            "new_primary_unfenceable",
            "nothing_to_promote",
        ),
        "west",
    ),
    **dict.fromkeys(
        (
            "failback_rights_lacking",
            "fence_too_wide",
            "left_behind_on_failback",
            "left_behind_unfenced",
            "source_all_offline",
            "source_offline",
            "source_replaced",
            "source_unfenceable",
            "source_unseen",
        ),
        "east",
    ),
    "circles_unknown": "west",
    "sibling_mirrors_unknown": "east",
    "new_primary_facts_unknown": "west",
    "old_source_facts_unknown": "east",
}
"""By code; else it is about mirror or topic `orders`."""
