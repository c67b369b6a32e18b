"""What a mirror topic's configuration must be while it is mirrored, and what it becomes at promotion.

While it is mirrored, nothing on the destination may drop, rewrite or refuse a record that the source still has. So
some settings are the mirror's own for that time; what the source says of them is applied at promotion.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

_FOREVER: Final = str(2**63 - 1)
_LARGEST_BATCH: Final = 2**31 - 1
BATCH_MARGIN_BYTES: Final = 1 << 20
"""A batch whose records had to be encoded again may be larger than the source's limit."""

FIXED: Final[Mapping[str, str]] = MappingProxyType(
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
"""Values that hold as long as a topic is mirrored, whatever the source says."""

CLEANED: Final = "compact,delete"
"""The policy of a mirror topic that is cleaned by key as the source's is. With `compact` alone DeleteRecords, which
follows the source's log start, is refused (POLICY_VIOLATION); without limits of retention `delete` does no more."""

PROMISES: Final = ("delete.retention.ms", "min.compaction.lag.ms")
"""How long the source keeps tombstones, and anything, for readers. A cleaned mirror topic is held at what is in effect
on the source, also where that is only its brokers' default: the destination's may be shorter."""

HELD: Final = frozenset({*FIXED, "min.insync.replicas", "max.message.bytes"})
"""Settings that are the mirror's while it mirrors; the source's values are applied at promotion."""

TAKES: Final = frozenset(
    {
        "cleanup.policy",  # `compact` takes no record without a key; the cleaner would drop one that was taken before
        "max.message.bytes",
        "message.timestamp.type",
        "message.timestamp.before.max.ms",
        "message.timestamp.after.max.ms",
        "min.insync.replicas",  # fewer could acknowledge what the topic promises to have on more
    }
)
"""Settings that say which records a topic takes, and what it makes of them: what was written under other values stays
so. Applications get no right to write before these are final."""

KEEPS_RECORDS: Final = frozenset(
    {
        "retention.ms",
        "retention.bytes",
        "cleanup.policy",
        "message.timestamp.type",
        "compression.type",
        "unclean.leader.election.enable",
    }
)
"""Settings of FIXED with whose value a copy stands or falls: by another one the destination drops or rewrites records
without an error. By another value of the other settings it refuses a record, which is seen."""

NEVER: Final = frozenset(
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
        # Gone from brokers since 4.0, which refuse them.
        "message.format.version",
        "message.downconversion.enable",
        "message.timestamp.difference.max.ms",
    }
)
"""Settings that are neither copied nor removed, at no time."""


def cleans(effective: Mapping[str, str]) -> bool:
    """Whether these settings of a topic let the cleaner take records that newer ones of their key replace."""
    return "compact" in effective.get("cleanup.policy", "").replace(" ", "").split(",")


def mirroring_configs(
    source_effective: Mapping[str, str], replication_factor: int, *, cleaned: bool = False
) -> dict[str, str]:
    """The settings that the mirror holds, for a topic with this replication factor on the destination.

    `cleaned`: it may be cleaned by key by now. Not before it has caught up with a source that is: older records may
    have no key, as seeds have none, and a cleaned topic takes no such records.
    """
    limit = int(source_effective.get("max.message.bytes") or 1 << 20)
    promises = {key: source_effective[key] for key in PROMISES if key in source_effective}
    return {
        **FIXED,
        **({"cleanup.policy": CLEANED, **promises} if cleaned else {}),
        "min.insync.replicas": str(brokers_that_must_have_it(replication_factor)),
        "max.message.bytes": str(min(limit + BATCH_MARGIN_BYTES, _LARGEST_BATCH)),
    }


def wanted_configs(
    source_overrides: Mapping[str, str],
    source_effective: Mapping[str, str],
    replication_factor: int,
    *,
    cleaned: bool = False,
) -> dict[str, str]:
    """All overrides of a topic while it is mirrored: the mirror's own, and the source's others."""
    copied = {key: value for key, value in source_overrides.items() if key not in HELD | NEVER}
    return {**copied, **mirroring_configs(source_effective, replication_factor, cleaned=cleaned)}


def with_limit(wanted: Mapping[str, str], effective: Mapping[str, str]) -> dict[str, str]:
    """A limit that was raised for a batch stays: the source may hold others that are older than its present limit."""
    limit = max(int(wanted["max.message.bytes"]), int(effective.get("max.message.bytes") or 0))
    return {**wanted, "max.message.bytes": str(limit)}


def raised_limit(needs_bytes: int, source_limit: int | None) -> int:
    """max.message.bytes of a mirror topic that has refused a batch of this size: all that the source's topic takes now.

    A batch above that, or of a source that does not tell its limit, is older, and the next one may be larger still."""
    allowed = 0 if source_limit is None else source_limit + BATCH_MARGIN_BYTES
    return min(max(allowed, needs_bytes if needs_bytes <= allowed else 2 * needs_bytes), _LARGEST_BATCH)


def promotion_configs(source_overrides: Mapping[str, str], replication_factor: int) -> dict[str, str]:
    """All overrides of a topic once applications write it: the source's. Where it has none, the cluster's defaults."""
    final = {key: value for key, value in source_overrides.items() if key not in NEVER}
    insync = final.get("min.insync.replicas")
    if insync is not None and int(insync) > replication_factor:
        final["min.insync.replicas"] = str(replication_factor)  # more than there are replicas can never be met
    return final


def config_changes(wanted: Mapping[str, str], current: Mapping[str, str]) -> dict[str, str | None]:
    """From these overrides to those wanted: values to set, and None for what is to be removed."""
    changes: dict[str, str | None] = {key: value for key, value in wanted.items() if current.get(key) != value}
    changes.update({key: None for key in current if key not in wanted and key not in NEVER})
    return changes


@dataclass(frozen=True, slots=True)
class AcceptedSettings:
    """Of a new topic's settings those that the cluster accepts, and why it refuses the others, by name."""

    configs: Mapping[str, str]
    refused: Mapping[str, str]


def search_accepted(wanted: Mapping[str, str]) -> Generator[dict[str, str], str | None, AcceptedSettings | None]:
    """Yields settings to validate; is sent why they were refused as a whole, or None if they were accepted.

    Returns None when settings are not the reason. Adds one setting at a time to those that the mirror needs, or to
    none: at most one trial for each setting, and three more.
    """
    accepted = {key: value for key, value in wanted.items() if key in HELD}
    if (yield accepted) is not None:
        accepted = {}
        if (yield accepted) is not None:
            return None
    refused = dict[str, str]()
    for key in sorted(wanted.keys() - accepted.keys()):
        for value in (wanted[key], *lower_limit(key, wanted[key])):
            why = yield {**accepted, key: value}
            if why is None:
                accepted = {**accepted, key: value}
                break
            refused.setdefault(key, why)
    return AcceptedSettings(accepted, refused)


def lower_limit(key: str, value: str | None) -> tuple[str, ...]:
    """What to set instead where the cluster refuses this value: the source's limit, without our margin."""
    limit = int(value or 0) - BATCH_MARGIN_BYTES if key == "max.message.bytes" else 0
    return (str(limit),) if limit > 0 else ()


def harmful_without(
    wanted: Mapping[str, str | None], refused: Mapping[str, str], effective: Mapping[str, str]
) -> dict[str, str]:
    """Of the refused settings those without which a copy could lose records unseen, with the value in effect."""
    return {
        key: effective.get(key, "unknown") for key in sorted(refused) if _harms(key, wanted[key], effective.get(key))
    }


def _harms(key: str, wanted: str | None, effective: str | None) -> bool:
    if key == "min.insync.replicas":
        return int(effective or 0) < int(wanted or 1)
    return key in KEEPS_RECORDS and wanted is not None and effective != wanted


def brokers_that_must_have_it(replication_factor: int) -> int:
    """Before a record counts as copied. Of two replicas it is one: else nothing is copied while either is down."""
    return 2 if replication_factor >= 3 else 1


def mirror_replication_factor(source: int, destination_brokers: int) -> int:
    """As many replicas as the source has, where there are brokers for them."""
    return max(1, min(source, destination_brokers))
