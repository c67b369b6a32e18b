"""How long a cluster, one of its brokers or a partition's leader may be silent before it counts as not answering.

Only what decides that stands here. How long work may take, and pauses between looks, stand where they are used. So do
the limits within which a connection is given up and made anew by whoever goes on anyway: nobody is told of those.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, fields
from typing import Final

VARIABLE: Final = "MIRRORBOOK_PATIENCE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """In seconds. Each line says what happens when the time is over."""

    planned_answer_s: float = 2.5
    """One answer of a side to a plan, or to a step that looks once more: its side counts as not seen."""
    planned_side_s: float = 4.0
    """A side's next answer to a plan, which may have thousands to give: the side is unseen, and the plan says so."""
    answering_side_s: float = 60.0
    """All answers of a side that goes on answering to a plan: the same."""
    planned_state_s: float = 3.0
    """The destination's state topic, for a plan: there is no plan, as nothing is known of the mirror."""
    planned_groups_s: float = 1.0
    """A side's group coordinators, for a plan: it tells nothing of the groups that are left."""
    planned_heartbeats_s: float = 2.0
    """One answer of the destination when a plan reads heartbeats: the plan knows none."""
    new_leader_s: float = 1.0
    """A partition's leader that does not know its offsets yet, for a plan or a table: the partition has no leader."""
    answering_cluster_s: float = 5.0
    """The first answer of a cluster that is only asked whether it answers: it does not."""
    lost_source_s: float = 2.0
    """One answer of a source that is given up for lost or was left: it is not asked again, and its fence is pending."""
    silent_source_s: float = 3.0
    """One answer of a source that may be dead, while applications stand still: what it was to be told is owed."""
    last_look_s: float = 30.0
    """From the last look at the source to the first right that a promotion gives: whoever slept looks once more."""
    told_destination_s: float = 10.0
    """One answer of the destination that is told that it is active: that is owed to it."""
    far_side_s: float = 60.0
    """All answers of a living side that may be far away, to an announcement: it has not been told."""
    canary_broker_s: float = 3.0
    """One answer of a broker to the canary: the broker is away."""
    broker_away_s: float = 15.0
    """Brokers that are away, for the canary; a cluster drops a dead one after 9 s by default: they are missed."""
    canary_trial_s: float = 30.0
    """A leader's or coordinator's answer to one write or read of the canary, with an election: the trial has failed."""
    probed_source_s: float = 1.0
    """An attempt to reach a source that owes its fence, which may hang: it is silent still, and tried again."""
    old_source_s: float = 3.0
    """One answer of an old source that has just answered: it counts as silent, and its fence as not seen."""
    other_cluster_s: float = 4.0
    """One answer of a cluster that a verb asks about somebody else's mirror: what it knows counts as not known."""
    state_owner_s: float = 4.0
    """Each cluster's answers when a mirror is looked for: it has not answered, and what it knows is not listed."""
    completed_names_s: float = 2.0
    """Each cluster's answers while somebody waits at a prompt for a name to be completed: it has no names."""
    described_side_s: float = 3.0
    """One answer of a side that is described: its figures are unknown, and the description says why."""
    estimated_source_s: float = 5.0
    """One answer of a source before a mirror of it is created: how much there is to copy is not said."""
    recovered_side_s: float = 5.0
    """One answer of a side before FAILED partitions are recovered: nothing is proposed."""
    remembered_state_s: float = 2.0
    """One answer of the state topic's leader to who reads on: the topic is read again as a whole."""
    watched_side_s: float = 3.0
    """One answer of a side to a data plane's lookout or heart: the source was not seen then, or there is no beat."""
    copied_leader_s: float = 2.0
    """A leader, new perhaps, that does not know its offsets yet: an epoch copies or proves as if nothing was known."""
    transaction_marker_s: float = 5.0
    """A marker that a coordinator owes the state topic: it is written in its place then."""
    sandbox_broker_s: float = 2.0
    """The answer of a broker of the sandbox: it is shown as not answering."""

    @classmethod
    def scaled(cls, factor: float) -> Limits:
        """All of them, so many times as long."""
        shipped = cls()
        return cls(**{one.name: getattr(shipped, one.name) * factor for one in fields(cls)})


def factor_of(value: str) -> float:
    """What `VARIABLE` says. ValueError unless it is a positive number."""
    try:
        factor = float(value)
    except ValueError:
        factor = math.nan
    if not (math.isfinite(factor) and factor > 0):
        raise ValueError(f"environment variable {VARIABLE} is {value!r}: it must be a positive number, such as 3")
    return factor


FACTOR: Final = factor_of(os.environ.get(VARIABLE, "1"))
LIMITS: Final = Limits.scaled(FACTOR)
"""This process's. Only tests set the variable: where many of them share a machine, whoever is slow is not dead."""
