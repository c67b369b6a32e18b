"""Dag params, shared by tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass


APPROVED = (
    "mirror_failover",
    "mirror_failover_set",
    "mirror_failover_set_unplanned",
    "mirror_failover_unplanned",
    "mirror_failback",
    "mirror_failback_set",
)
