"""What is known of a mirror, as typed values under stable keys."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

import msgspec

from mirror_core.dataplane.epoch_planner import COPIED_STATES
from mirror_core.decide.clock_skew import compute_age_s
from mirror_core.decide.mirror_snapshot import join_limited
from mirror_core.model.mirror import Lease, PartitionState, PartitionStatus
from mirror_core.model.names import Offset, Partition
from mirror_core.model.source_observation import TRANSACTION_OVER, Heartbeat, SourceObservation
from mirror_core.model.text import format_count

FactValue = bool | int | float | str | tuple[str, ...] | None
"""A tuple: names, or troubles. None: unknown."""


class FactKey(StrEnum):
    MIRROR = "mirror"
    SOURCE = "source"
    DESTINATION = "destination"
    PROBLEMS = "problems"
    DESIRED = "desired"
    OPEN_RUN = "open_run"
    OPEN_RUN_FENCE = "open_run_fence"
    OLD_SOURCE_FENCE = "old_source_fence"
    WATCHER = "watcher"
    LATE_WRITES = "late_writes"
    STRAY_DENIALS = "stray_denials"
    DATA_PLANE = "data_plane"
    COPY_WAITS = "copy_waits"
    LAG = "lag"
    HIDDEN_OFFSETS = "hidden_offsets"
    SOURCE_SEEN = "source_seen"
    TOPICS_LISTED = "topics_listed"
    UNCOPIED = "uncopied"
    MISSING_OFFSETS = "missing_offsets"
    NEVER_COPIED = "never_copied"
    HELD_DELETIONS = "held_deletions"
    PROOF = "proof"
    DIFFERENCES = "differences"
    UNCOMMITTED_GROUPS = "uncommitted_groups"
    WAITING_GROUPS = "waiting_groups"
    DELETED_GROUP_OFFSETS = "deleted_group_offsets"
    HEARTBEATS = "heartbeats"
    CLOCK = "clock"
    TOPICS = "topics"
    EXCLUDE_TOPICS = "exclude_topics"
    GROUPS = "groups"
    EXCLUDE_GROUPS = "exclude_groups"
    PRINCIPALS = "principals"
    EXCLUDE_PRINCIPALS = "exclude_principals"
    EXCLUDE_RIGHTS = "exclude_rights"
    EXCLUDE_SETTINGS = "exclude_settings"
    REPLICATION_FACTOR = "replication_factor"
    PAUSED_TOPICS = "paused_topics"
    LEAVING_TOPICS = "leaving_topics"
    CLOSED_TOPICS = "closed_topics"
    RELEASED_TOPICS = "released_topics"
    GAPS = "gaps"
    COMPACTED_TOPICS = "compacted_topics"
    NARROWED_RIGHTS = "narrowed_rights"
    THROTTLE = "throttle"
    SOURCE_SECURITY = "source_security"
    DESTINATION_SECURITY = "destination_security"


FACT_LABELS: Final[Mapping[FactKey, str]] = MappingProxyType(
    {
        FactKey.MIRROR: "mirror",
        FactKey.SOURCE: "source",
        FactKey.DESTINATION: "destination",
        FactKey.PROBLEMS: "trouble",
        FactKey.DESIRED: "desired",
        FactKey.OPEN_RUN: "run under way",
        FactKey.OPEN_RUN_FENCE: "fence of the open run",
        FactKey.OLD_SOURCE_FENCE: "fence on the old source",
        FactKey.WATCHER: "watcher",
        FactKey.LATE_WRITES: "accepted while unfenced",
        FactKey.STRAY_DENIALS: "lifted denials that stand again",
        FactKey.DATA_PLANE: "data plane",
        FactKey.COPY_WAITS: "copying waits for",
        FactKey.LAG: "lag",
        FactKey.HIDDEN_OFFSETS: "hidden by open transactions",
        FactKey.SOURCE_SEEN: "source last looked at",
        FactKey.TOPICS_LISTED: "topics of the source last listed",
        FactKey.UNCOPIED: "not mirrored",
        FactKey.MISSING_OFFSETS: "known to be missing",
        FactKey.NEVER_COPIED: "deleted before they were copied",
        FactKey.HELD_DELETIONS: "deletions held back",
        FactKey.PROOF: "proved equal",
        FactKey.DIFFERENCES: "known to differ",
        FactKey.UNCOMMITTED_GROUPS: "groups' offsets that could not be committed",
        FactKey.WAITING_GROUPS: "groups' offsets that wait for the destination",
        FactKey.DELETED_GROUP_OFFSETS: "groups' offsets that the source deleted",
        FactKey.HEARTBEATS: "newest heartbeats on the destination",
        FactKey.CLOCK: "clock",
        FactKey.TOPICS: "topics",
        FactKey.EXCLUDE_TOPICS: "excluded",
        FactKey.GROUPS: "groups",
        FactKey.EXCLUDE_GROUPS: "excluded groups",
        FactKey.PRINCIPALS: "rights synced of",
        FactKey.EXCLUDE_PRINCIPALS: "rights not synced of",
        FactKey.EXCLUDE_RIGHTS: "rights not synced",
        FactKey.EXCLUDE_SETTINGS: "settings not synced",
        FactKey.REPLICATION_FACTOR: "replication factor of new topics",
        FactKey.PAUSED_TOPICS: "topics paused",
        FactKey.LEAVING_TOPICS: "topics that are leaving",
        FactKey.CLOSED_TOPICS: "topics kept closed",
        FactKey.RELEASED_TOPICS: "topics released",
        FactKey.GAPS: "gaps",
        FactKey.COMPACTED_TOPICS: "compacted topics",
        FactKey.NARROWED_RIGHTS: "rights narrowed until promotion",
        FactKey.THROTTLE: "throttle",
        FactKey.SOURCE_SECURITY: "security of the source",
        FactKey.DESTINATION_SECURITY: "security of the destination",
    }
)


class MirrorFact(msgspec.Struct, frozen=True, kw_only=True):
    """`text` says it for people; no program reads it."""

    value: FactValue
    text: str


@dataclass(frozen=True, slots=True)
class DescribedFact:
    key: FactKey
    value: FactValue
    text: str | None = None
    is_normal: bool = True
    """As on a quiet day, or said by another fact."""


def make_fact(value: FactValue, text: str | None = None) -> MirrorFact:
    return MirrorFact(value=value, text=format_fact_value(value) if text is None else text)


def format_driver(lease: Lease | None, *, has_driver: bool, is_unknown: bool) -> str:
    if lease is None or not (has_driver or is_unknown):
        return "not running"
    owner = f"{lease.owner}, generation {lease.generation}"
    return owner if has_driver else f"unknown whether {owner} runs: clocks contradict each other"


def format_lag(lag: int | None, *, left_out: int) -> str:
    """`left_out`: partitions that are not copied."""
    text = format_offsets(lag)
    return f"{text}, not counting {format_count(left_out, 'partition')} not copied" if left_out else text


def format_offsets(count: int | None) -> str:
    return format_fact_value(None) if count is None else format_count(count, "offset")


def format_absent(
    cluster: str, absent: Collection[Partition], statuses: Mapping[Partition, PartitionStatus]
) -> list[str]:
    """FAILED and STOPPED partitions show it themselves."""
    final_states = (PartitionState.STOPPED, PartitionState.FAILED)
    missing = sorted(p for p in absent if statuses[p].state not in final_states)
    return [f"missing on {cluster}: {join_limited(missing)}: it has no such topic or partition"] if missing else []


def format_fact_value(value: FactValue) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, tuple):
        return "; ".join(value) or "none"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def make_waits_fact(lease: Lease | None, *, has_driver: bool, silent_source: str | None = None) -> DescribedFact:
    if lease is None or not has_driver:
        return DescribedFact(FactKey.COPY_WAITS, None)
    if silent_source is not None:
        text = f"{silent_source}, which does not answer"
        return DescribedFact(FactKey.COPY_WAITS, (silent_source,), text, is_normal=False)
    if lease.wait_reasons is None:
        text = "not known yet: no epoch of this data plane has ended, or its version does not tell"
        return DescribedFact(FactKey.COPY_WAITS, None, text)
    reasons = tuple(lease.wait_reasons)
    return DescribedFact(FactKey.COPY_WAITS, reasons, "; ".join(reasons) or "nothing", is_normal=not reasons)


def make_hidden_fact(
    observation: SourceObservation | None,
    statuses: Iterable[PartitionStatus],
    high_watermarks: Mapping[Partition, Offset],
    stable_ends: Mapping[Partition, Offset],
) -> DescribedFact:
    """Beyond the last stable offset: in no lag, and blocks what lies behind.

    Both ends are read now; the observation, which may be old, only tells the transactions' ids.
    """
    copied = [status.partition for status in statuses if status.state in COPIED_STATES]
    ends = {p: (high_watermarks[p], stable_ends[p]) for p in copied if p in high_watermarks and p in stable_ends}
    if not ends:
        return DescribedFact(FactKey.HIDDEN_OFFSETS, None, None if copied else "none: nothing is copied")
    hidden = {p: high - stable for p, (high, stable) in ends.items() if high > stable}
    if not hidden:
        return DescribedFact(FactKey.HIDDEN_OFFSETS, 0, "none")
    transactions = () if observation is None else observation.transactions
    parts = ((t, part) for t in transactions if t.state != TRANSACTION_OVER for part in t.parts)
    blocking = (t.id for t, part in parts if part.partition in hidden and part.first == stable_ends[part.partition])
    names = sorted(set(blocking))
    owner_text = f"transactions {join_limited(names)}" if names else "transactions whose ids are not known"
    total = sum(hidden.values())
    text = f"{format_count(total, 'offset')} of {join_limited(sorted(hidden))}: {owner_text}"
    return DescribedFact(FactKey.HIDDEN_OFFSETS, total, text, is_normal=False)


def format_heartbeats(newest_heartbeats: tuple[Heartbeat, ...], now_ms: int) -> str:
    if not newest_heartbeats:
        return "none"
    return join_limited(
        f"partition {beat.partition}: number {beat.number}, {_format_heartbeat_age(beat, now_ms)}"
        for beat in newest_heartbeats
    )


def _format_heartbeat_age(beat: Heartbeat, now_ms: int) -> str:
    seconds = compute_age_s(now_ms, beat.at_ms)
    return "of unknown age (clocks differ)" if seconds is None else f"{seconds:.1f} s old"
