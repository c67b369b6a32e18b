"""Timeouts after which a cluster, broker or leader counts as silent.

Other durations stand where they are used.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, fields
from typing import Final

VARIABLE: Final = "MIRRORBOOK_PATIENCE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Seconds."""

    planned_answer_s: float = 2.5
    """One response to a plan: the cluster is unseen."""
    planned_side_s: float = 4.0
    answering_side_s: float = 60.0
    planned_state_s: float = 3.0
    """Without the state topic there is no plan."""
    planned_groups_s: float = 1.0
    planned_heartbeats_s: float = 2.0
    """One response with heartbeats: none are known."""
    new_leader_s: float = 1.0
    """A new leader without offsets yet: the partition is offline."""
    answering_cluster_s: float = 5.0
    lost_source_s: float = 2.0
    """One response of a source that was given up: its fence stays pending."""
    silent_source_s: float = 3.0
    """One response of a source that may be dead, while applications wait: the request becomes pending."""
    last_look_s: float = 30.0
    """From the last source probe to the first right granted. A process that slept probes again."""
    told_destination_s: float = 10.0
    """The destination's response: its announcement is pending."""
    far_side_s: float = 60.0
    """All responses of a remote, living cluster: not announced."""
    canary_broker_s: float = 3.0
    broker_away_s: float = 15.0
    """Brokers that are down. Clusters drop a dead one after 9 s by default."""
    canary_trial_s: float = 30.0
    probed_source_s: float = 1.0
    old_source_s: float = 3.0
    other_cluster_s: float = 4.0
    state_owner_s: float = 4.0
    completed_names_s: float = 2.0
    described_side_s: float = 3.0
    estimated_source_s: float = 5.0
    recovered_side_s: float = 5.0
    remembered_state_s: float = 2.0
    """One response to a cached reader: the topic is read again in full."""
    watched_side_s: float = 3.0
    """One response to the source monitor or heartbeat writer."""
    copied_leader_s: float = 2.0
    """A new leader without offsets yet: the epoch goes on as if nothing was known."""
    transaction_marker_s: float = 5.0
    sandbox_broker_s: float = 2.0

    @classmethod
    def scaled(cls, factor: float) -> Limits:
        shipped = cls()
        return cls(**{one.name: getattr(shipped, one.name) * factor for one in fields(cls)})


def factor_of(value: str) -> float:
    """Raises ValueError unless the value is a positive number."""
    try:
        factor = float(value)
    except ValueError:
        factor = math.nan
    if not (math.isfinite(factor) and factor > 0):
        raise ValueError(f"environment variable {VARIABLE} is {value!r}: it must be a positive number, such as 3")
    return factor


FACTOR: Final = factor_of(os.environ.get(VARIABLE, "1"))
LIMITS: Final = Limits.scaled(FACTOR)
"""Only tests set the variable, on slow machines."""
