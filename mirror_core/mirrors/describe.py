"""One mirror: what is recorded, and what both clusters show now. Unknown values are None."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from mirror_core.dataplane.again import told
from mirror_core.dataplane.planning import COPIED
from mirror_core.decide import clocks, crowded, deletions
from mirror_core.decide.abandoned import abandoned
from mirror_core.decide.access import narrowed_in_words
from mirror_core.decide.loss import Loss, loss
from mirror_core.decide.loss_figures import LISTED, NOT_MIRRORED, heartbeats, listed, looked, uncopied_in_words
from mirror_core.decide.offsets import left_in_words
from mirror_core.decide.proof import differing, differing_in_words, in_words, recorded
from mirror_core.decide.run_standing import standing_of
from mirror_core.decide.slipped import slip_in_words
from mirror_core.decide.standing import pending, words
from mirror_core.decide.topics import cleans
from mirror_core.decide.view import some
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ClusterConfig
from mirror_core.kafka.existing import presence, undescribed
from mirror_core.kafka.heartbeats import newest
from mirror_core.kafka.kept import KEPT
from mirror_core.kafka.offsets import Point, led_offsets
from mirror_core.kafka.quorum import clock_ahead_ms
from mirror_core.kafka.topics import describe_configs
from mirror_core.mirrors.reappeared import reappeared_in_words
from mirror_core.model.documents import Document
from mirror_core.model.errors import RemoteFault
from mirror_core.model.groups import GroupsLeft
from mirror_core.model.limits import LIMITS
from mirror_core.model.mirror import Gaps, Lease, Mirror, NeverCopied, PartitionState, PartitionStatus, is_fresh
from mirror_core.model.names import Offset, Partition, heartbeat_topic
from mirror_core.model.proof import Proof
from mirror_core.model.run import Run
from mirror_core.model.sighting import OVER, Heartbeat, Sighting
from mirror_core.model.units import in_bytes
from mirror_core.state.link import Link
from mirror_core.state.pulse import conducted
from mirror_core.state.records import State
from mirror_core.state.watchers import watched

GAPS: Final[Mapping[Gaps, str]] = MappingProxyType(
    {
        Gaps.MARKERS: "filled with transaction markers",
        Gaps.HIDDEN: "filled with hidden records, which every consumer drops",
    }
)

NOT_BEHIND: Final = "not seen to be behind"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRow:
    """Offsets are next offsets. `lag` is source end minus position, None when the source end is unknown."""

    partition: str
    state: PartitionState
    position: int | None
    source_start: int | None
    """First offset that the source still has."""
    source_end: int | None
    lag: int | None
    lmo: int | None
    proved: int | None
    """Next offset after the last one found equal to the source."""
    kind: str | None
    """Kind of failure; None when it is not FAILED."""
    reason: str | None
    never_copied: NeverCopied | None = None
    """Deleted on the source before it was copied."""

    @property
    def missing(self) -> int:
        """To seed or fill first: the source's log starts behind the position."""
        known = self.position is not None and self.source_start is not None and self.state in COPIED
        return max(0, (self.source_start or 0) - (self.position or 0)) if known else 0


class Description(Document, frozen=True, kw_only=True):
    """What `mirrorbook mirror describe` shows."""

    facts: Mapping[str, str | int | None]
    """Texts, but `lag` and `offsets known to be missing` are offsets; null: unknown."""
    rows: tuple[PartitionRow, ...]


def describe(link: Link, state: State, now_ms: int) -> Description:
    return describe_with_loss(link, state, now_ms)[0]


@KEPT.keeping()
def describe_with_loss(link: Link, state: State, now_ms: int) -> tuple[Description, Loss]:
    """Returns also what an unplanned failover would lose."""
    mirror, began = link.mirror, time.monotonic()
    statuses = state.partitions.get(mirror.name, {})
    # Ends after positions: else a copying mirror would seem to be ahead of its source.
    (positions,), destination_trouble, not_here = _offsets(link.destination, statuses, Point.LOG_END)
    (starts, ends), source_trouble, not_there = _offsets(link.source, statuses, Point.START, Point.STABLE_END)
    lease = state.leases.get(mirror.name)
    run = state.active_run(mirror.name)
    unwatched = watched(state, mirror.name, now_ms)
    ahead_ms = None if destination_trouble else clock_ahead_ms(link.destination, timeout_s=LIMITS.watched_side_s)
    now_ms = clocks.now_of_owner(now_ms, ahead_ms, lease, state.appended_ms.get(mirror.name))
    held = is_fresh(lease, now_ms)
    debt = state.debts.get(mirror.name)
    proof = state.proofs.get(mirror.name)
    rows = tuple(_rows(statuses, proof, positions, starts, ends))
    fence = [*words(debt), *(pending(debt, (run.id,) if run else ()) if ends else ())]
    absent = (*_absent(mirror.source, not_there, statuses), *_absent(mirror.destination, not_here, statuses))
    trouble = "; ".join(t for t in (source_trouble, destination_trouble, *absent) if t)
    silences = ((link.source, source_trouble, ends), (link.destination, destination_trouble, positions))
    silent = {side.name: why for side, why, seen in silences if why and not seen}
    beats = _heartbeats(link)
    now_ms += int((time.monotonic() - began) * 1000)  # heartbeats were read last, seconds later
    lost = loss(statuses, state.sightings.get(mirror.name), positions, beats, now_ms=now_ms)
    behind = clocks.behind_s(now_ms, lease, state.sightings.get(mirror.name), state.groups.get(mirror.name), beats)
    lag, left = _lag(rows), _groups_left(state, mirror)
    seen = Description(
        facts={
            "mirror": mirror.name,
            "source": f"{mirror.source} ({mirror.source_id})",
            "destination": f"{mirror.destination} ({mirror.destination_id})",
            "topics": " ".join(mirror.topics),
            "excluded": " ".join(mirror.exclude_topics) or "none",
            "groups": " ".join(mirror.groups),
            "gaps": "; ".join(filter(None, (GAPS[mirror.gaps], crowded.in_words(statuses.values())))),
            "compacted topics": "unknown" if trouble else _compacted(link, statuses.values()),
            "rights narrowed until promotion": narrowed_in_words(state.ledger_of(mirror.name)),
            "desired": mirror.desired,
            "throttle": "none" if mirror.throttle is None else f"{in_bytes(mirror.throttle)}/s",
            "run under way": "; ".join(_under_way(mirror, run, state)) if run else "none",
            "standing fence": "; ".join(fence) or "none",
            "lifted denials that stand again": reappeared_in_words(link, state, silent) or "none",
            "watcher": "; ".join(unwatched.alarms()) or str(unwatched),
            "accepted while unfenced": slip_in_words(debt, statuses, state.sightings.get(mirror.name)),
            "data plane": f"{lease.owner}, generation {lease.generation}" if lease and held else "not running",
            "copying waits for": _waits(lease, held=held),
            "lag": lag,
            "hidden by open transactions": _hidden(state.sightings.get(mirror.name), ends),
            "source last looked at": looked(lost),
            LISTED: listed(lost),
            NOT_MIRRORED: uncopied_in_words(lost),
            "offsets known to be missing": None if lost.unknown or not rows else max(lost.known, lag or 0),
            "deleted before they were copied": deletions.in_words(statuses) or "none",
            "proved equal": in_words(proof, positions, _ids(statuses.values()), now_ms),
            "groups' offsets that could not be committed": (left_in_words(left.uncommitted) if left else "unknown")
            or "none",
            "groups that are not synced": (some(left.others) if left else "unknown") or "none",
            "known to differ": differing_in_words(differing(proof, statuses), now_ms) or "none",
            "newest heartbeats on the destination": heartbeats(beats, now_ms),
            "clock": _clock(mirror, ahead_ms, behind),
            "security of the source": link.source.control.get("security.protocol", "PLAINTEXT"),
            "security of the destination": link.destination.control.get("security.protocol", "PLAINTEXT"),
            "trouble": trouble or "none",
        },
        rows=rows,
    )
    return seen, lost


def _clock(mirror: Mirror, ahead_ms: int | None, behind: float | None) -> str:
    if differing := clocks.differing(mirror.destination, ahead_ms or 0):
        return f"{differing}: ages shown here go by the brokers' clock"
    return NOT_BEHIND if behind is None else clocks.words(mirror.name, behind)


def _rows(
    statuses: Mapping[Partition, PartitionStatus],
    proof: Proof | None,
    positions: Mapping[Partition, Offset],
    starts: Mapping[Partition, Offset],
    ends: Mapping[Partition, Offset],
) -> Iterator[PartitionRow]:
    proved = recorded(proof, _ids(statuses.values()))
    for partition, status in sorted(statuses.items()):
        end, position = ends.get(partition), positions.get(partition)
        yield PartitionRow(
            partition=str(partition),
            state=status.state,
            position=position,
            source_start=starts.get(partition),
            source_end=end,
            lag=None if end is None or position is None else end - position,
            lmo=status.lmo,
            proved=proved[partition].end if partition in proved else None,
            kind=status.kind,
            reason=told(status),
            never_copied=status.never_copied,
        )


def _groups_left(state: State, mirror: Mirror) -> GroupsLeft | None:
    """Unknown (None) before the first sync."""
    nothing = GroupsLeft(mirror=mirror.name) if mirror.name in state.groups else None
    return state.groups_left.get(mirror.name, nothing)


def _lag(rows: Collection[PartitionRow]) -> int | None:
    """Unknown (None) before the first epoch, even for an empty source."""
    lags = [row.lag for row in rows if row.state is PartitionState.MIRRORING]
    return None if not rows or None in lags else sum(lag or 0 for lag in lags)


def _under_way(mirror: Mirror, run: Run, state: State) -> tuple[str, ...]:
    alarms = abandoned(mirror, run, standing_of(run, state.steps_of(run)), conducted(state, run))
    return alarms or (f"{run.plan.kind} {run.id}",)


def _waits(lease: Lease | None, *, held: bool) -> str | None:
    if lease is None or not held:
        return None
    if lease.waits is None:
        return "not known yet: no epoch of this data plane has ended, or its version does not tell"
    return "; ".join(lease.waits) or "nothing"


def _hidden(sighting: Sighting | None, ends: Mapping[Partition, Offset]) -> str:
    """Beyond the last stable offset: not in any lag, and it blocks what lies behind."""
    if sighting is None or not ends:
        return "unknown"
    hidden = {p: seen.end - ends[p] for p, seen in sighting.seen() if p in ends and seen.end > ends[p]}
    if not hidden:
        return "none"
    parts = ((t, part) for t in sighting.transactions if t.state != OVER for part in t.parts)
    names = sorted({t.id for t, part in parts if part.partition in hidden and part.first == ends[part.partition]})
    whose = f"transactions {some(names)}" if names else "transactions whose ids are not known"
    return f"{sum(hidden.values())} offset(s) of {some(sorted(hidden))}: {whose}"


def _ids(statuses: Iterable[PartitionStatus]) -> dict[str, str]:
    return {status.partition.topic: status.destination_topic_id for status in statuses}


def _heartbeats(link: Link) -> tuple[Heartbeat, ...]:
    try:
        return newest(link.destination, heartbeat_topic(link.mirror.name), timeout_s=LIMITS.described_side_s)
    except RemoteFault:
        return ()  # reported as trouble already


def _compacted(link: Link, statuses: Iterable[PartitionStatus]) -> str:
    """ADR 0009."""
    names = sorted({s.partition.topic for s in statuses if s.state is not PartitionState.STOPPED})
    if not names:
        return "none"
    try:
        with (
            ClusterClient(link.source, timeout_s=LIMITS.described_side_s) as source,
            ClusterClient(link.destination, timeout_s=LIMITS.described_side_s) as destination,
        ):
            there = [name for name, found in describe_configs(source, names).items() if cleans(found.effective)]
            here = describe_configs(destination, there)
    except RemoteFault as error:
        return f"unknown: {error}"
    grow = [name for name in there if name in here and not cleans(here[name].effective)]
    words = f"{len(there)}, of which {len(grow)} not cleaned on {link.mirror.destination}, and growing by all that is "
    if not grow:
        return str(len(there)) if there else "none"
    if link.mirror.gaps is Gaps.HIDDEN:
        return f"{words}written, until promotion: hidden records have no key"
    return f"{words}written, until a `mirrorbook sync {link.mirror.name}` finds the copy caught up: {some(grow)}"


def _offsets(
    cluster: ClusterConfig, partitions: Iterable[Partition], *points: Point
) -> tuple[list[dict[Partition, Offset]], str, frozenset[Partition]]:
    wanted = list(partitions)
    nothing: list[dict[Partition, Offset]] = [{} for _ in points]
    if not wanted:
        return nothing, "", frozenset()
    try:
        with ClusterClient(cluster, timeout_s=LIMITS.described_side_s) as client:
            known = presence(client, wanted)
            present = [p for p in wanted if p not in known.absent and p not in known.denied]
            found = [led_offsets(client, present, point, within_s=LIMITS.new_leader_s) for point in points]
            leaderless = sorted({p for one in found for p in one.leaderless})
            troubles = [f"cluster {cluster.name}: no leader for {some(leaderless)}"] if leaderless else []
            troubles += [str(undescribed(client, {p.topic for p in known.denied}))] if known.denied else []
            return [dict(one.offsets) for one in found], "; ".join(troubles), known.absent
    except RemoteFault as error:
        return nothing, str(error), frozenset()


def _absent(cluster: str, absent: Collection[Partition], statuses: Mapping[Partition, PartitionStatus]) -> list[str]:
    """FAILED and STOPPED partitions show it themselves."""
    over = (PartitionState.STOPPED, PartitionState.FAILED)
    missing = sorted(p for p in absent if statuses[p].state not in over)
    return [f"missing on {cluster}: {some(missing)}: it has no such topic or partition"] if missing else []
