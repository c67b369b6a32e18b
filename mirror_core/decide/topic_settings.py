"""A mirror topic's configuration, and what it becomes at promotion.

While mirrored, the destination must not drop, rewrite or refuse a record that the source still has.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from mirror_core.model.errors import BadRequest

_FOREVER: Final = str(2**63 - 1)
_LARGEST_BATCH: Final = 2**31 - 1
BATCH_MARGIN_BYTES: Final = 1 << 20
DEFAULT_REPLICAS: Final = -1
"""In CreateTopics: as many as the brokers' default.replication.factor."""
_MAX_REPLICAS: Final = 2**15 - 1

MIRROR_CONFIGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        # Copied records are old: the destination's own clock would delete them at once. The source's log start is
        # followed instead.
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "cleanup.policy": "delete",  # but see CLEANED
        "message.timestamp.type": "CreateTime",  # LogAppendTime would rewrite the source's timestamps
        "message.timestamp.before.max.ms": _FOREVER,
        "message.timestamp.after.max.ms": _FOREVER,
        "compression.type": "producer",  # anything else makes the broker compress again
        "unclean.leader.election.enable": "false",  # it may lose records that were acknowledged to the mirror
    }
)
"""Fixed while a topic is mirrored, whatever the source has."""

COMPACTED_POLICY: Final = "compact,delete"
"""With `compact` alone DeleteRecords, which follows the source's log start, fails (POLICY_VIOLATION); without retention
limits `delete` adds nothing.
"""

RETENTION_PROMISE_KEYS: Final = ("delete.retention.ms", "min.compaction.lag.ms")
"""How long the source keeps tombstones, and anything, for readers. Set to the source's effective values, broker
defaults included: the destination's may be shorter.
"""

MIRROR_HELD_KEYS: Final = frozenset({*MIRROR_CONFIGS, "min.insync.replicas", "max.message.bytes"})

ALWAYS_SYNCED_KEYS: Final = MIRROR_HELD_KEYS.union(RETENTION_PROMISE_KEYS)
"""The mirror needs values of its own: promotion sets the source's."""

ACCEPTANCE_KEYS: Final = frozenset(
    {
        "cleanup.policy",  # `compact` takes no record without a key; the cleaner would drop one that was taken before
        "max.message.bytes",
        "message.timestamp.type",
        "message.timestamp.before.max.ms",
        "message.timestamp.after.max.ms",
        "min.insync.replicas",  # fewer could acknowledge what the topic promises to have on more
    }
)
"""They decide for good which records a topic accepts and changes: final before applications write."""

RECORD_KEEPING_KEYS: Final = frozenset(
    {
        "retention.ms",
        "retention.bytes",
        "cleanup.policy",
        "message.timestamp.type",
        "compression.type",
        "unclean.leader.election.enable",
    }
)
"""Other values would drop or rewrite records without an error. Wrong ones of other `MIRROR_CONFIGS` are noticed."""

NEVER_COPIED_KEYS: Final = frozenset(
    {
        # Lists of broker ids, which mean nothing on another cluster.
        "leader.replication.throttled.replicas",
        "follower.replication.throttled.replicas",
        # Tiered storage: its presence and its sizes belong to the cluster, and can't be switched off again at will.
        "remote.storage.enable",
        "remote.log.copy.disable",
        "remote.log.delete.on.disable",
        "local.retention.ms",
        "local.retention.bytes",
        # No record depends on it. Of a few bytes a broker can neither create nor load the log, applies nothing that was
        # created in the same moment, and refuses what would be appended to a new segment.
        "segment.index.bytes",
        # Gone from brokers since 4.0, which refuse them.
        "message.format.version",
        "message.downconversion.enable",
        "message.timestamp.difference.max.ms",
    }
)

UNKNOWN_SETTING: Final = "the destination's brokers do not know this setting"


def is_compacted(effective: Mapping[str, str]) -> bool:
    return "compact" in effective.get("cleanup.policy", "").replace(" ", "").split(",")


def is_tiered(effective: Mapping[str, str]) -> bool:
    return effective.get("remote.storage.enable") == "true"


def build_mirroring_configs(
    source_effective: Mapping[str, str], replication_factor: int, *, is_cleaned: bool = False
) -> dict[str, str]:
    """`replication_factor`: on the destination.

    `is_cleaned`: it may be compacted already. Not before it has caught up with a compacted source: older records, and
    seeds, may have no key, and a compacted topic refuses those.
    """
    limit = int(source_effective.get("max.message.bytes") or 1 << 20)
    retention_promises = {key: source_effective[key] for key in RETENTION_PROMISE_KEYS if key in source_effective}
    return {
        **MIRROR_CONFIGS,
        **({"cleanup.policy": COMPACTED_POLICY, **retention_promises} if is_cleaned else {}),
        "min.insync.replicas": str(choose_min_insync_replicas(replication_factor)),
        "max.message.bytes": str(min(limit + BATCH_MARGIN_BYTES, _LARGEST_BATCH)),
    }


def build_wanted_configs(
    source_overrides: Mapping[str, str],
    source_effective: Mapping[str, str],
    replication_factor: int,
    *,
    is_cleaned: bool = False,
) -> dict[str, str]:
    copied = {key: value for key, value in source_overrides.items() if key not in MIRROR_HELD_KEYS | NEVER_COPIED_KEYS}
    return {**copied, **build_mirroring_configs(source_effective, replication_factor, is_cleaned=is_cleaned)}


def keep_raised_limit(wanted: Mapping[str, str], effective: Mapping[str, str]) -> dict[str, str]:
    """The source may hold batches older than its present limit."""
    limit = max(int(wanted["max.message.bytes"]), int(effective.get("max.message.bytes") or 0))
    return {**wanted, "max.message.bytes": str(limit)}


def compute_raised_limit(needs_bytes: int, source_limit: int | None) -> int:
    """max.message.bytes after a batch of this size was refused: all that the source accepts now.

    A larger batch is older, or its source hides its limit.
    """
    allowed = 0 if source_limit is None else source_limit + BATCH_MARGIN_BYTES
    return min(max(allowed, needs_bytes if needs_bytes <= allowed else 2 * needs_bytes), _LARGEST_BATCH)


def add_source_defaults(
    source_overrides: Mapping[str, str],
    source_effective: Mapping[str, str],
    destination_defaults: Mapping[str, str | None],
) -> dict[str, str]:
    """Overrides that give a promoted topic the source's effective settings.

    The clusters' defaults may differ. An unknown one (None) counts as different. One that promises less than the
    destination's is not kept.
    """
    keys = MIRROR_HELD_KEYS.union(RETENTION_PROMISE_KEYS if is_compacted(source_effective) else ())
    differing = {
        key: source_effective[key]
        for key in keys & source_effective.keys() & destination_defaults.keys()
        if source_effective[key] != destination_defaults[key]
        and not _is_weaker(key, source_effective[key], destination_defaults[key])
    }
    return {**differing, **source_overrides}


def _is_weaker(key: str, source_default: str, destination_default: str | None) -> bool:
    if key == "unclean.leader.election.enable":
        return source_default == "true"
    if key == "min.insync.replicas" and destination_default is not None:
        return int(source_default) < int(destination_default)
    return False


def build_promotion_configs(source_overrides: Mapping[str, str], replication_factor: int) -> dict[str, str]:
    final = {key: value for key, value in source_overrides.items() if key not in NEVER_COPIED_KEYS}
    insync = final.get("min.insync.replicas")
    if insync is not None and int(insync) > replication_factor:
        final["min.insync.replicas"] = str(replication_factor)  # more than there are replicas can never be met
    return final


def list_staged_settings(
    source: Mapping[str, str], destination: Mapping[str, str], replication_factor: int, known_keys: Collection[str]
) -> dict[str, str]:
    final = keep_known(known_keys, build_promotion_configs(source, replication_factor))
    return {
        key: final[key]
        for key in source
        if key in MIRROR_HELD_KEYS & final.keys() and destination.get(key) != source[key]
    }


def keep_known(known_keys: Collection[str], configs: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in configs.items() if not known_keys or key in known_keys}


def list_unknown_settings(known_keys: Collection[str], overrides: Mapping[str, str]) -> dict[str, str]:
    unknown = sorted(key for key in overrides if known_keys and key not in known_keys and key not in NEVER_COPIED_KEYS)
    return dict.fromkeys(unknown, UNKNOWN_SETTING)


def diff_configs(wanted: Mapping[str, str], current: Mapping[str, str]) -> dict[str, str | None]:
    changes: dict[str, str | None] = {key: value for key, value in wanted.items() if current.get(key) != value}
    changes.update({key: None for key in current if key not in wanted and key not in NEVER_COPIED_KEYS})
    return changes


@dataclass(frozen=True, slots=True)
class AcceptedSettings:
    configs: Mapping[str, str]
    refused: Mapping[str, str]


def search_accepted(wanted: Mapping[str, str]) -> Generator[dict[str, str], str | None, AcceptedSettings | None]:
    """Yields configs to validate; receives why they were refused as a whole, or None if accepted.

    Returns None if configs are not the reason. At most three trials more than configs.
    """
    accepted = {key: value for key, value in wanted.items() if key in MIRROR_HELD_KEYS}
    if (yield accepted) is not None:
        accepted = {}
        if (yield accepted) is not None:
            return None
    refused = dict[str, str]()
    for key in sorted(wanted.keys() - accepted.keys()):
        reasons = list[str]()
        for value in (wanted[key], *list_lower_limits(key, wanted[key])):
            reason = yield {**accepted, key: value}
            if reason is None:
                accepted = {**accepted, key: value}
                break
            reasons.append(reason)
        else:
            refused[key] = reasons[0]
    return AcceptedSettings(accepted, refused)


def list_lower_limits(key: str, value: str | None) -> tuple[str, ...]:
    """Without the mirror's margin the source's own limit holds: nothing of the source's is left out then."""
    limit = int(value or 0) - BATCH_MARGIN_BYTES if key == "max.message.bytes" else 0
    return (str(limit),) if limit > 0 else ()


def find_harmful_refusals(
    wanted: Mapping[str, str | None], refused: Mapping[str, str], effective: Mapping[str, str]
) -> dict[str, str]:
    return {
        key: effective.get(key, "unknown")
        for key in sorted(refused)
        if _is_harmful(key, wanted[key], effective.get(key))
    }


def _is_harmful(key: str, wanted: str | None, effective: str | None) -> bool:
    if key == "min.insync.replicas":
        return int(effective or 0) < int(wanted or 1)
    return key in RECORD_KEEPING_KEYS and wanted is not None and effective != wanted


def choose_min_insync_replicas(replication_factor: int) -> int:
    """With two replicas one: else nothing is copied while either is down."""
    return 2 if replication_factor >= 3 else 1


def parse_replication_factor(policy: str, source: int) -> int:
    """Replicas wanted, or DEFAULT_REPLICAS. BadRequest for another text."""
    if policy in ("source", "default"):
        return source if policy == "source" else DEFAULT_REPLICAS
    if policy.isascii() and policy.isdecimal() and 0 < int(policy) <= _MAX_REPLICAS:
        return int(policy)
    raise BadRequest(f"--replication-factor {policy!r}: say source, default or a number from 1 to {_MAX_REPLICAS:,}")


def choose_replication_factor(wanted: int, max_replicas: int) -> int:
    return wanted if wanted == DEFAULT_REPLICAS else max(1, min(wanted, max_replicas))
