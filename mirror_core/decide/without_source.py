"""What an unplanned failover would be if the source died now: whether it could run, and its cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from mirror_core.decide.clocks import age_s, behind_of
from mirror_core.decide.failover import Decision
from mirror_core.decide.loss import loss_of, oldest
from mirror_core.decide.reckoning import read_again
from mirror_core.decide.view import DestinationView, SourceView, View, failed_of, healthy, lags_of, uncommitted_of
from mirror_core.model.mirror import Desired
from mirror_core.model.names import Offset, Partition
from mirror_core.model.reckoning import Foretold

UNKNOWN: Final = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """Offsets that a consumer group would read again. None: unknown."""

    most: int | None
    """From its offset on the destination to the position: what a plan says. None, too, of a group with members there,
    whose own offsets count, and of one that has no offset there for a partition that it reads on the source, or read
    there at the last look."""
    now: int | None
    """The same to what it had committed on the source at this look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WithoutSource:
    """An unplanned failover as it would be now. No figure is known of a stopped mirror, or of an unseen destination."""

    refused: tuple[str, ...]
    """Why it could not be run; empty: it could."""
    warnings: tuple[str, ...] = ()
    """As its plan has them."""
    figures: Mapping[str, str] = field(default_factory=dict)
    """The same, in words: among them the loss bound and the ages that it is based on."""
    missing: int | None = None
    """Offsets known to be missing, by the data plane's last observation of the source: what a plan has once the source
    is dead. The source may have acknowledged more since then. None: unknown of every partition."""
    unknown_partitions: int | None = None
    """Partitions of which it is unknown; `missing` leaves them out."""
    looked_s: float | None = None
    """Age of that observation, of the partition where it is oldest."""
    behind_s: float | None = None
    """Seconds since the destination had all that the source then had, of the partition where that is longest ago."""
    heartbeat_s: float | None = None
    """Age of the newest heartbeat on the destination, of the source's broker where it is oldest."""
    missing_now: int | None = None
    """Offsets below the source's readable ends at this look, and not on the destination just before: without
    FAILED partitions. None, too, when the source did not tell all of its ends."""
    groups: Mapping[str, Again] | None = None
    """By consumer group with offsets on either side. None: not all of the destination's groups were told of."""
    groups_of_source: bool = True
    """Whether the source told of its groups, too. If not: some may have offsets there only, or of more partitions."""
    synced_s: float | None = None
    """Age of the groups' offsets on the destination."""

    @property
    def again_most(self) -> int | None:
        """Of all groups together. None: unknown of one of them, or of which there are."""
        if self.groups is None or not self.groups_of_source:
            return None
        counts = [one.most for one in self.groups.values()]
        return None if None in counts else sum(count or 0 for count in counts)


def facts_of(found: WithoutSource) -> dict[str, str]:
    now = UNKNOWN if found.missing_now is None else f"{found.missing_now:,} offset(s) by what the source shows now"
    behind = UNKNOWN if found.behind_s is None else f"{found.behind_s:.1f}"
    return {
        "without the source": "would be refused" if found.refused else "could be failed over",
        "loss, if the source died now": found.figures.get("loss", UNKNOWN),
        "not on the destination yet": now,
        "seconds behind": behind,
        "read again": again_in_words(found),
    }


def again_in_words(found: WithoutSource) -> str:
    if found.groups is None:
        return UNKNOWN
    known = [one.most for one in found.groups.values() if one.most is not None]
    blind = len(found.groups) - len(known)
    most = f"at most {sum(known):,} offset(s), by {len(known)} group(s)" if known else ""
    unknown = f"unknown of {blind} group(s)" if blind else ""
    unseen = "" if found.groups_of_source else "unknown of what groups had on the source only"
    return "; ".join(filter(None, (most, unknown, unseen))) or "no group has offsets"


def group_in_words(one: Again | None) -> str:
    if one is None or one.most is None:
        return UNKNOWN
    now = UNKNOWN if one.now is None else f"{one.now:,}"
    return f"at most {one.most:,} offset(s); by what it has committed on the source: {now}"


def without_source(decision: Decision, view: View, seen: View) -> WithoutSource:
    """`decision`: for `view`, which has no source. `seen`: the same snapshot with the source."""
    there, mirror = view.destination, view.mirror
    if (
        not isinstance(there, DestinationView)
        or there.cluster_id != mirror.destination_id
        or mirror.desired is Desired.STOPPED
    ):
        return WithoutSource(refused=decision.reasons, warnings=decision.plan.warnings)
    found = loss_of(view)
    # Behind a fence all was drained, but for what is not copied any more.
    lacking = {*failed_of(view), *found.uncopied} if view.drained else found.partitions.keys()
    counted = [found.partitions[p] for p in lacking]
    known = [one.missing for one in counted if one.missing is not None]
    furthest = found.furthest
    dated = behind_of(view) is None  # or else an age of 0 s may be any
    return WithoutSource(
        refused=decision.reasons,
        warnings=decision.plan.warnings,
        figures=decision.plan.figures,
        missing=sum(known) if known or view.drained else None,
        unknown_partitions=len(counted) - len(known),
        looked_s=oldest([found.listed_s, *(one.age_s for one in found.partitions.values())]) if dated else None,
        behind_s=oldest([found.listed_s, furthest[1].behind_s]) if furthest and dated else None,
        heartbeat_s=found.heartbeat_s if dated else None,
        missing_now=_missing_now(seen),
        groups_of_source=(source := _source(seen)) is not None and not source.groups_unread,
        groups=None
        if there.groups_unseen or there.groups_unread
        else dict(_groups(decision, view, there, _committed(seen))),
        synced_s=age_s(view.now_ms, view.groups.synced_ms) if view.groups is not None and dated else None,
    )


def _source(seen: View) -> SourceView | None:
    source = seen.source
    return source if isinstance(source, SourceView) and source.cluster_id == seen.mirror.source_id else None


def _missing_now(seen: View) -> int | None:
    """Positions were read before the ends, so offsets copied in between count as missing."""
    source, copied = _source(seen), healthy(seen.statuses)
    if source is None or not copied:
        return None
    if any(Partition(t, i) not in seen.statuses for t, one in source.topics.items() for i in range(one.partitions)):
        return None  # it is not mirrored yet, and nobody asked for its end
    total = 0
    for partition, lag in lags_of(seen):
        if partition not in copied:
            continue
        topic = source.topics.get(partition.topic)
        if topic is None or topic.id != copied[partition].source_topic_id or lag is None or lag < 0:
            return None
        total += lag
    return total


def _committed(seen: View) -> Mapping[str, Mapping[Partition, Offset]] | None:
    source = _source(seen)
    return None if source is None else source.committed


def _groups(
    decision: Decision, view: View, there: DestinationView, had: Mapping[str, Mapping[Partition, Offset]] | None
) -> Iterator[tuple[str, Again]]:
    told = decision.plan.foretold
    foretold = told.again if isinstance(told, Foretold) else {}
    resumes = {group: mine for group, mine in there.committed.items() if group in foretold}
    now = {} if had is None else read_again(resumes, had, there.positions)
    without = {one.group for one in uncommitted_of(view) if one.stands is None}
    for group in sorted(there.committed.keys() | (had or {}).keys() | without):
        read = {partition for partition in (had or {}).get(group, ()) if partition in there.positions}
        whole = group in foretold and group not in without and read <= there.committed[group].keys()
        yield group, Again(most=foretold[group][1] if whole else None, now=now.get(group))
