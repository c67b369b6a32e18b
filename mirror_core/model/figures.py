"""Figures of plans and steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Final, TypeVar, cast

from mirror_core.model.text import format_age, format_bytes, format_count

K = TypeVar("K", bound=str)
FigureScalar = bool | int | float | str | None
FigureValue = bool | int | float | str | tuple[str, ...] | Mapping[str, FigureScalar] | None
"""A tuple: names. A mapping: by name, as of a partition or a hook. None: unknown."""

UNKNOWN_TEXT: Final = "unknown"
FIRST_STEP_TEXT: Final = "first step to promotion (waiting included)"
MAX_LISTED_NAMES: Final = 10
MAX_RECORDED_NAMES: Final = 200


class FigureKey(StrEnum):
    OWNER = "owner"
    RTO_S = "rto_s"
    PARTITIONS = "partitions"
    RIGHTS_GIVEN = "rights_given"
    LAG_OFFSETS = "lag_offsets"
    LEFT_BEHIND_PARTITIONS = "left_behind_partitions"
    LEFT_BEHIND_OFFSETS = "left_behind_offsets"
    LEFT_BEHIND_UNKNOWN_PARTITIONS = "left_behind_unknown_partitions"
    LEFT_BEHIND_ENDS = "left_behind_ends"
    LEFT_BEHIND_HIGH_WATERMARKS = "left_behind_high_watermarks"
    HELD_OFFSETS = "held_offsets"
    HELD_PARTITIONS = "held_partitions"
    HELD_SINCE_MS = "held_since_ms"
    HELD_RANGES = "held_ranges"
    WITHOUT_WRITES_S = "without_writes_s"
    FIRST_STEP_TO_PROMOTION_S = "first_step_to_promotion_s"
    FORECAST_BASIS = "forecast_basis"
    PROVED_OFFSETS = "proved_offsets"
    PROVABLE_OFFSETS = "provable_offsets"
    NEWEST_PROOF_S = "newest_proof_s"
    OLDEST_PROOF_S = "oldest_proof_s"
    SOURCE_PROBLEM = "source_problem"
    DESTINATION_PROBLEM = "destination_problem"
    SOURCE_DRAINED = "source_drained"
    LOST_OFFSETS = "lost_offsets"
    LOST_UNKNOWN_PARTITIONS = "lost_unknown_partitions"
    SOURCE_SEEN_S = "source_seen_s"
    SOURCE_REFUSED_S = "source_refused_s"
    TOPICS_LISTED_S = "topics_listed_s"
    UNCOPIED_PARTITIONS = "uncopied_partitions"
    UNCOPIED_OFFSETS = "uncopied_offsets"
    UNCOPIED_UNKNOWN_PARTITIONS = "uncopied_unknown_partitions"
    UNCOPIED_SIZES = "uncopied_sizes"
    UNCOPIED_REASONS = "uncopied_reasons"
    HEARTBEAT_AGES_S = "heartbeat_ages_s"
    HEARTBEAT_NUMBERS = "heartbeat_numbers"
    OUTSIDE_BOUND_PARTITIONS = "outside_bound_partitions"
    OUTSIDE_BOUND_OFFSETS = "outside_bound_offsets"
    CUT_TRANSACTIONS = "cut_transactions"
    TRANSACTIONS_SEEN_S = "transactions_seen_s"
    DOUBTFUL_TRANSACTIONS = "doubtful_transactions"
    TRANSACTIONS_COPIED_TO = "transactions_copied_to"
    TRANSACTIONS_MISSING_IN = "transactions_missing_in"
    UNLISTED_TRANSACTIONS = "unlisted_transactions"
    OPEN_TRANSACTIONAL_IDS = "open_transactional_ids"
    COMPLETE_UP_TO_MS = "complete_up_to_ms"
    COMPLETE_LIMITED_BY = "complete_limited_by"
    SWITCH_HOOKS = "switch_hooks"
    LEASE_OWNER = "lease_owner"
    LEASE_RELEASED = "lease_released"
    LEASE_HEARTBEAT_S = "lease_heartbeat_s"
    UNREAD_GROUPS = "unread_groups"
    PARTITION_STATE = "partition_state"
    PARTITION_LEFT_BEHIND = "partition_left_behind"
    UNCOPIED_REASON = "uncopied_reason"
    MIRROR_POSITION = "mirror_position"
    MISSING_OFFSETS = "missing_offsets"
    END_SEEN_S = "end_seen_s"
    READ_AGAIN_MOST = "read_again_most"
    READ_AGAIN_OFFSETS = "read_again_offsets"
    READ_AGAIN_AFTER_SYNC = "read_again_after_sync"
    NOT_SYNCED_PARTITIONS = "not_synced_partitions"
    WITHOUT_OFFSET_PARTITIONS = "without_offset_partitions"
    GROUP_COVERAGE = "group_coverage"
    GROUPS_SYNCED_S = "groups_synced_s"
    FENCE_STATE = "fence_state"
    FENCE_SINCE_MS = "fence_since_ms"
    FENCE_BY_COMMAND = "fence_by_command"
    FENCE_PROBLEM = "fence_problem"
    ACCEPTED_BEFORE_FENCE_OFFSETS = "accepted_before_fence_offsets"
    TAKEN_SINCE_FAILOVER_OFFSETS = "taken_since_failover_offsets"
    DISCARDED_OFFSETS = "discarded_offsets"
    DISCARDED_FROM = "discarded_from"
    DISCARDED_BEFORE = "discarded_before"
    OFFSETS_TO_COPY = "offsets_to_copy"
    RECREATED_OFFSETS = "recreated_offsets"
    RECREATED_BYTES = "recreated_bytes"
    LINK_BYTES = "link_bytes"
    DISK_BYTES = "disk_bytes"
    STRATEGY_RISKS = "strategy_risks"
    STRATEGY_REASONS = "strategy_reasons"
    STRATEGY_OBSTACLES = "strategy_obstacles"
    PARITY_VERDICT = "parity_verdict"
    NOT_COMPARED = "not_compared"
    HEARTBEATS_NOT_COMPARED = "heartbeats_not_compared"
    COMPARED_BEFORE_OFFSETS = "compared_before_offsets"
    MIRRORED_OFFSETS = "mirrored_offsets"
    COMPARED_NOT_CONFIRMED = "compared_not_confirmed"
    NEVER_COMPARED = "never_compared"
    CERTIFICATES_VERDICT = "certificates_verdict"
    CERTIFIED_OFFSETS = "certified_offsets"
    CERTIFIABLE_OFFSETS = "certifiable_offsets"
    NOT_PROVED = "not_proved"
    NOT_PROVED_BECAUSE = "not_proved_because"
    NOT_AS_COPIED = "not_as_copied"
    CERTIFICATES_READ_FROM = "certificates_read_from"
    CERTIFICATES_REPORT = "certificates_report"
    TO_PROVE_MORE = "to_prove_more"
    TO_PROVE_MORE_FROM_SOURCE = "to_prove_more_from_source"
    GROUPS_NOT_BROUGHT_OVER = "groups_not_brought_over"
    FAILED_HOOKS = "failed_hooks"
    HEALTH_COMMAND = "health_command"
    HEALTH_WELL = "health_well"
    HEALTH_CALLS = "health_calls"
    HEALTH_S = "health_s"
    HEALTH_PROBLEM = "health_problem"

    @classmethod
    def _missing_(cls, value: object) -> FigureKey:
        """Keys of newer versions stay readable."""
        member = str.__new__(cls, str(value))
        member._name_, member._value_ = str(value).upper(), str(value)
        return member


class Unit(StrEnum):
    """A number's unit, or the kind of text."""

    OFFSETS = "offsets"
    PARTITIONS = "partitions"
    NUMBER = "number"
    SECONDS = "seconds"
    AGE = "seconds ago"
    TIME = "milliseconds since 1970"
    BYTES = "bytes"
    OFFSET = "offset"
    YES_NO = "yes or no"
    TEXT = "text"


@dataclass(frozen=True, slots=True)
class FigureDefinition:
    label: str
    unit: Unit
    texts: Mapping[str, str] = field(default_factory=dict)
    """For values that are codes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A figure as JSON shows it."""

    value: FigureValue
    """Null: unknown. A list: names; an object: by name."""
    unit: Unit
    text: str
    """As people read it."""


Figures = Mapping[FigureKey, FigureValue]
"""In reading order."""
FigureItems = Iterator[tuple[FigureKey, FigureValue]]

_FENCE_TEXTS: Final = {
    "pending": "pending; until it is in place, applications may write there",
    "applied": "stands",
    "watched": "cannot be fenced; it is only watched",
    "lifting": "waits to be removed, since its run was aborted",
}
_LIMIT_TEXTS: Final = {
    "no_topic": "the mirror has no such topic",
    "topic_list": "the time when the source's topics were listed",
}
_VERDICT_TEXTS: Final = {
    "both_empty": "neither side held a record",
    "nothing_mirrored": "nothing mirrored yet",
}
_RISK_TEXTS: Final = {
    "recreate": "the topic is deleted there; nobody at a broker; consumers stopped; until it is copied anew there is no"
    " second copy of the topic; a new topic id, and all committed offsets of the topic there are gone",
    "handover": "nobody at a broker, no unclean election; needs CLUSTER_ACTION for the control principal; one replica"
    " for a while",
    "offline": "one broker, or a few, stopped by you (some 10 s each), hands on files, with a backup; one replica"
    " meanwhile, the others are filled again",
    "replica": "one broker is stopped by you (some 5 s) and an unclean election takes place; one replica for a while",
}
_STRATEGY_REASON_TEXTS: Final = {
    "named": "named by you",
    "cheapest": "the fewest bytes over the link of those that need nobody at a broker",
    "only": "no other one is possible that needs nobody at a broker",
}
_STRATEGY_OBSTACLE_TEXTS: Final = {
    "recreated_topics_not_truncatable": "the topic was created anew there, so nothing of it can stay",
    "topic_narrower": "more partitions than on the new primary, and none can be taken away",
    "strategy_replica_impossible": "it takes two brokers",
    "compacted_topics_not_truncatable": "compaction may have removed records in favour of the tail's",
    "tiered_topics_not_truncatable": "a part of the tail may be in remote storage",
    "unmirrored_partitions_not_truncatable": "a partition was never mirrored, so nothing of it can stay",
    "late_logs_not_truncatable": "a log begins at or behind the truncation point, so nothing of it can stay",
    "failback_rights_lacking": "the control principal lacks rights for it",
    "log_too_short": "by its size too little of a log could stay",
    "log_size_unknown": "sizes of logs are not known, so it is not chosen unless you name it",
}
_K, _U = FigureKey, Unit
FIGURES: Final[Mapping[FigureKey, FigureDefinition]] = MappingProxyType(
    {
        key: FigureDefinition(label, unit, *texts)
        for key, unit, label, *texts in (
            (_K.OWNER, _U.TEXT, "owner"),
            (_K.RTO_S, _U.SECONDS, "RTO: without writes, at most"),
            (_K.PARTITIONS, _U.NUMBER, "partitions"),
            (_K.RIGHTS_GIVEN, _U.NUMBER, "rights given at promotion"),
            (_K.LAG_OFFSETS, _U.OFFSETS, "lag"),
            (_K.LEFT_BEHIND_PARTITIONS, _U.NUMBER, "partitions left behind"),
            (_K.LEFT_BEHIND_OFFSETS, _U.OFFSETS, "left behind, missing at least"),
            (_K.LEFT_BEHIND_UNKNOWN_PARTITIONS, _U.PARTITIONS, "left behind, unknown of"),
            (_K.LEFT_BEHIND_ENDS, _U.OFFSET, "left behind, log end on the destination"),
            (_K.LEFT_BEHIND_HIGH_WATERMARKS, _U.OFFSET, "left behind, high watermark on the destination"),
            (
                _K.HELD_OFFSETS,
                _U.OFFSETS,
                "deleted on the source, readable on the destination",
            ),
            (_K.HELD_PARTITIONS, _U.NUMBER, "partitions of these"),
            (_K.HELD_SINCE_MS, _U.TIME, "the oldest since"),
            (_K.HELD_RANGES, _U.TEXT, "their offsets"),
            (_K.WITHOUT_WRITES_S, _U.SECONDS, "without writes, predicted"),
            (_K.FIRST_STEP_TO_PROMOTION_S, _U.SECONDS, f"{FIRST_STEP_TEXT}, predicted"),
            (_K.FORECAST_BASIS, _U.TEXT, "predicted by"),
            (_K.PROVED_OFFSETS, _U.OFFSETS, "proved equal before"),
            (_K.PROVABLE_OFFSETS, _U.OFFSETS, "of all"),
            (_K.NEWEST_PROOF_S, _U.AGE, "newest comparison"),
            (_K.OLDEST_PROOF_S, _U.AGE, "oldest comparison"),
            (_K.SOURCE_PROBLEM, _U.TEXT, "source"),
            (_K.DESTINATION_PROBLEM, _U.TEXT, "destination"),
            (_K.SOURCE_DRAINED, _U.YES_NO, "fenced and drained before the source died"),
            (_K.LOST_OFFSETS, _U.OFFSETS, "loss, at least"),
            (_K.LOST_UNKNOWN_PARTITIONS, _U.PARTITIONS, "loss unknown of"),
            (_K.SOURCE_SEEN_S, _U.AGE, "source last looked at (what it acknowledged since is lost, too)"),
            (_K.SOURCE_REFUSED_S, _U.AGE, "source first refused our connections"),
            (_K.TOPICS_LISTED_S, _U.AGE, "topics of the source last listed (later ones are not counted)"),
            (_K.UNCOPIED_PARTITIONS, _U.NUMBER, "partitions without a copy"),
            (_K.UNCOPIED_OFFSETS, _U.OFFSETS, "without a copy, at least"),
            (_K.UNCOPIED_UNKNOWN_PARTITIONS, _U.PARTITIONS, "without a copy, size unknown of"),
            (_K.UNCOPIED_SIZES, _U.OFFSETS, "without a copy"),
            (_K.UNCOPIED_REASONS, _U.TEXT, "why without a copy"),
            (_K.HEARTBEAT_AGES_S, _U.AGE, "newest heartbeats on the destination, by partition"),
            (_K.HEARTBEAT_NUMBERS, _U.NUMBER, "numbers of these heartbeats"),
            (_K.OUTSIDE_BOUND_PARTITIONS, _U.NUMBER, "partitions FAILED or without a leader"),
            (_K.OUTSIDE_BOUND_OFFSETS, _U.OFFSETS, "of the loss, FAILED or without a leader"),
            (_K.CUT_TRANSACTIONS, _U.NUMBER, "transactions cut in half, of those seen"),
            (_K.TRANSACTIONS_SEEN_S, _U.AGE, "transactions last seen (later ones are unknown)"),
            (_K.DOUBTFUL_TRANSACTIONS, _U.TEXT, "transactions in doubt"),
            (_K.TRANSACTIONS_COPIED_TO, _U.TEXT, "partitions that have of them at least the beginning"),
            (_K.TRANSACTIONS_MISSING_IN, _U.TEXT, "partitions that have nothing of them"),
            (_K.UNLISTED_TRANSACTIONS, _U.NUMBER, "transactions in doubt that were too many to be noted"),
            (_K.OPEN_TRANSACTIONAL_IDS, _U.NUMBER, "transactional ids that were busy then"),
            (_K.COMPLETE_UP_TO_MS, _U.TIME, "complete up to"),
            (_K.COMPLETE_LIMITED_BY, _U.TEXT, "limited by", _LIMIT_TEXTS),
            (_K.SWITCH_HOOKS, _U.TEXT, "switch hooks"),
            (_K.LEASE_OWNER, _U.TEXT, "data plane"),
            (_K.LEASE_RELEASED, _U.YES_NO, "its lease is released"),
            (_K.LEASE_HEARTBEAT_S, _U.AGE, "its last heartbeat"),
            (_K.UNREAD_GROUPS, _U.NUMBER, "groups not looked at in time"),
            (_K.PARTITION_STATE, _U.TEXT, "state"),
            (_K.PARTITION_LEFT_BEHIND, _U.YES_NO, "no leader on the source, left behind"),
            (_K.UNCOPIED_REASON, _U.TEXT, "no copy because"),
            (_K.MIRROR_POSITION, _U.OFFSET, "position"),
            (_K.MISSING_OFFSETS, _U.OFFSETS, "missing at least"),
            (_K.END_SEEN_S, _U.AGE, "its end last seen"),
            (_K.READ_AGAIN_MOST, _U.OFFSETS, "read again at most"),
            (_K.READ_AGAIN_OFFSETS, _U.OFFSETS, "read again as of the last sync"),
            (_K.READ_AGAIN_AFTER_SYNC, _U.OFFSETS, "read again after the final sync"),
            (_K.NOT_SYNCED_PARTITIONS, _U.NUMBER, "partitions not synced yet"),
            (
                _K.WITHOUT_OFFSET_PARTITIONS,
                _U.NUMBER,
                "partitions without an offset (auto.offset.reset rules)",
            ),
            (_K.GROUP_COVERAGE, _U.NUMBER, "partitions"),
            (_K.GROUPS_SYNCED_S, _U.AGE, "group offsets last synced"),
            (_K.FENCE_STATE, _U.TEXT, "fence on the old source", _FENCE_TEXTS),
            (_K.FENCE_SINCE_MS, _U.TIME, "fence since"),
            (_K.FENCE_BY_COMMAND, _U.YES_NO, "closed by fence_command, which no broker can show"),
            (_K.FENCE_PROBLEM, _U.TEXT, "fence, problem"),
            (_K.ACCEPTED_BEFORE_FENCE_OFFSETS, _U.OFFSETS, "accepted before the fence stood"),
            (_K.TAKEN_SINCE_FAILOVER_OFFSETS, _U.OFFSETS, "of these, after the failover, by the records' own times"),
            (_K.DISCARDED_OFFSETS, _U.OFFSETS, "salvaged, then discarded"),
            (_K.DISCARDED_FROM, _U.OFFSET, "from offset"),
            (_K.DISCARDED_BEFORE, _U.OFFSET, "to before offset"),
            (_K.OFFSETS_TO_COPY, _U.OFFSETS, "to copy"),
            (_K.RECREATED_OFFSETS, _U.OFFSETS, "deleted with their topics, then copied anew"),
            (_K.RECREATED_BYTES, _U.BYTES, "of these topics, over the link"),
            (_K.LINK_BYTES, _U.BYTES, "about so much over the link"),
            (_K.DISK_BYTES, _U.BYTES, "about so much written to disks"),
            (_K.STRATEGY_RISKS, _U.TEXT, "needs and risks", _RISK_TEXTS),
            (_K.STRATEGY_REASONS, _U.TEXT, "strategy chosen", _STRATEGY_REASON_TEXTS),
            (_K.STRATEGY_OBSTACLES, _U.TEXT, "why not", _STRATEGY_OBSTACLE_TEXTS),
            (_K.PARITY_VERDICT, _U.TEXT, "verdict", _VERDICT_TEXTS),
            (_K.NOT_COMPARED, _U.TEXT, "promoted as they were, and not compared"),
            (_K.HEARTBEATS_NOT_COMPARED, _U.TEXT, "Mirrorbook's own heartbeats, not compared"),
            (_K.COMPARED_BEFORE_OFFSETS, _U.OFFSETS, "compared equal before"),
            (_K.MIRRORED_OFFSETS, _U.OFFSETS, "of all that was mirrored"),
            (_K.COMPARED_NOT_CONFIRMED, _U.TEXT, "compared earlier, not confirmed in this run"),
            (_K.NEVER_COMPARED, _U.TEXT, "never compared"),
            (_K.CERTIFICATES_VERDICT, _U.TEXT, "certificates"),
            (_K.CERTIFIED_OFFSETS, _U.OFFSETS, "proved by certificates"),
            (_K.CERTIFIABLE_OFFSETS, _U.OFFSETS, "of all that the destination holds"),
            (_K.NOT_PROVED, _U.TEXT, "not proved"),
            (_K.NOT_PROVED_BECAUSE, _U.TEXT, "not proved because"),
            (_K.NOT_AS_COPIED, _U.TEXT, "not as it was copied"),
            (_K.CERTIFICATES_READ_FROM, _U.TEXT, "certificates read from"),
            (_K.CERTIFICATES_REPORT, _U.TEXT, "certificates' report"),
            (_K.TO_PROVE_MORE, _U.TEXT, "to prove more"),
            (_K.TO_PROVE_MORE_FROM_SOURCE, _U.TEXT, "to prove more, when the source answers"),
            (_K.GROUPS_NOT_BROUGHT_OVER, _U.TEXT, "groups not brought over"),
            (_K.FAILED_HOOKS, _U.TEXT, "hooks that failed"),
            (_K.HEALTH_COMMAND, _U.TEXT, "health command"),
            (_K.HEALTH_WELL, _U.YES_NO, "application well, by its health command"),
            (_K.HEALTH_CALLS, _U.NUMBER, "health command, calls"),
            (_K.HEALTH_S, _U.SECONDS, "health command, time"),
            (_K.HEALTH_PROBLEM, _U.TEXT, "health command, problem"),
        )
    }
)


def _to_iso(at_ms: float) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).replace(tzinfo=None).isoformat(sep=" ", timespec="milliseconds")


_FORMATS: Final[Mapping[Unit, Callable[[float], str]]] = MappingProxyType(
    {
        Unit.OFFSETS: lambda count: format_count(int(count), "offset"),
        Unit.PARTITIONS: lambda count: format_count(int(count), "partition"),
        Unit.NUMBER: lambda count: f"{count:,}",
        Unit.SECONDS: lambda seconds: f"{seconds:,.1f} s",
        Unit.AGE: format_age,
        Unit.TIME: lambda at_ms: f"{_to_iso(at_ms)} UTC",
        Unit.BYTES: format_bytes,
    }
)


def find_definition(key: str) -> FigureDefinition:
    """Keys of newer versions included."""
    return FIGURES.get(FigureKey(key)) or FigureDefinition(key.replace("_", " "), Unit.TEXT)


def format_value(key: str, value: FigureValue) -> str:
    """The only place where a figure becomes text."""
    definition = find_definition(key)
    if value is None:
        return UNKNOWN_TEXT
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        try:
            return _FORMATS[definition.unit](value) if definition.unit in _FORMATS else str(value)
        except (ArithmeticError, ValueError, OSError):  # such as a time of a clock that was far off
            return str(value)
    if isinstance(value, str):
        return definition.texts.get(value, value)
    if isinstance(value, Mapping):
        texts = [f"{name}: {format_value(key, item)}" for name, item in value.items()]
    else:
        texts = [format_value(key, item) for item in value]
    more_text = f" and {len(texts) - MAX_LISTED_NAMES} more" if len(texts) > MAX_LISTED_NAMES else ""
    return ", ".join(texts[:MAX_LISTED_NAMES]) + more_text if texts else "none"


def format_share(figures: Mapping[K, FigureValue], part: FigureKey, whole: FigureKey) -> str:
    """`45 of 65 offsets`."""
    count, total = (figures.get(cast("K", key)) for key in (part, whole))
    return f"{count:,} of {format_value(whole, total)}" if isinstance(count, int) else format_value(part, count)


def list_figure_rows(figures: Mapping[K, FigureValue]) -> Iterator[tuple[str, str]]:
    """(label, text); one row for each name of a mapping."""
    for key, value in figures.items():
        label = find_definition(key).label
        if isinstance(value, Mapping) and value:
            listed = list(value.items())[:MAX_LISTED_NAMES]
            yield from ((f"{label}, {name}", format_value(key, item)) for name, item in listed)
            if len(value) > len(listed):
                yield label, f"{len(value) - len(listed):,} more"
        else:
            yield label, format_value(key, value)


def format_figures(figures: Mapping[K, FigureValue]) -> str:
    return "; ".join(f"{label}: {text}" for label, text in list_figure_rows(figures)) or UNKNOWN_TEXT


def format_figure_documents(documents: Mapping[FigureKey, Figure]) -> str:
    return format_figures({key: figure.value for key, figure in documents.items()})


def limit_names(names: Iterable[object], limit: int = MAX_RECORDED_NAMES) -> tuple[str, ...]:
    """The first ones, and how many more there are."""
    texts = [str(name) for name in names]
    return (*texts[:limit], *([f"and {len(texts) - limit:,} more"] if len(texts) > limit else []))


def list_values(figures: Mapping[K, FigureValue], key: FigureKey) -> tuple[str, ...]:
    """Names of a figure, none of an absent one. Anything else counts as one name, never as none."""
    value = figures.get(cast("K", key), ())
    return tuple(map(str, value)) if isinstance(value, tuple | list) else (format_value(key, value),)


def to_figure_documents(figures: Figures) -> dict[FigureKey, Figure]:
    return {
        key: Figure(value=value, unit=find_definition(key).unit, text=format_value(key, value))
        for key, value in figures.items()
    }
