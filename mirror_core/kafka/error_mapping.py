"""Kafka error codes as exceptions, and retries of retriable ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, MutableMapping
from types import MappingProxyType
from typing import Any, Final, TypeVar

from kio.schema.errors import ErrorCode

from mirror_core.kafka.client import ClusterClient
from mirror_core.model.errors import MissingPermission, RemoteFault, SettingRefused, TooFewBrokers, Unreachable

__all__ = ["AUTHORIZATION_CODES", "ErrorCode", "KeyCodes", "make_fault", "retry_per_key", "to_error_code"]


RETRIABLE_CODES: Final = frozenset(
    {
        ErrorCode.leader_not_available,
        ErrorCode.not_leader_or_follower,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
        ErrorCode.not_controller,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.replica_not_available,
        ErrorCode.offset_not_available,  # new leader's high watermark lags (KIP-207)
        ErrorCode.kafka_storage_error,
    }
)


"""Refresh metadata and retry."""
STALE_METADATA_CODES: Final = frozenset(
    {
        ErrorCode.leader_not_available,
        ErrorCode.not_leader_or_follower,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_topic_id,
        ErrorCode.inconsistent_topic_id,
    }
)
"""The broker that named this leader has stale metadata."""
AUTHORIZATION_CODES: Final = frozenset(
    {
        ErrorCode.topic_authorization_failed,
        ErrorCode.group_authorization_failed,
        ErrorCode.cluster_authorization_failed,
        ErrorCode.transactional_id_authorization_failed,
        ErrorCode.delegation_token_authorization_failed,
    }
)
RETRIED_CODES: Final = RETRIABLE_CODES | {
    ErrorCode.request_timed_out,
    ErrorCode.network_exception,
    ErrorCode.throttling_quota_exceeded,
}
_SETTING_CODES: Final = frozenset({ErrorCode.invalid_config, ErrorCode.policy_violation})
_PAUSE_S: Final = 0.05
_DUMPED_REQUEST_PREFIX: Final = "Request Request("
"""Such a message is a printed broker object, useless to people."""
Key = TypeVar("Key")
_NO_REFUSALS: Final[Mapping[Any, RemoteFault]] = MappingProxyType({})
KeyCodes = Mapping[Key, tuple[ErrorCode, str | None]]


def to_error_code(number: int) -> ErrorCode:
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.unknown_server_error


def make_fault(
    client: ClusterClient,
    subject: str,
    action: str,
    code: ErrorCode,
    message: str | None = None,
    refused: Mapping[Any, RemoteFault] = _NO_REFUSALS,
) -> RemoteFault:
    """`action`: operation (needs RIGHT); the right is shown for authorization errors only."""
    detail_message = "" if message is None or message.startswith(_DUMPED_REQUEST_PREFIX) else message
    detail = f"{code.name}" + (f" ({detail_message})" if detail_message else "")
    operation = action if code in AUTHORIZATION_CODES else _without_right(action)
    where = f"cluster {client.name}, {subject}: {operation}: {detail}"
    if code in AUTHORIZATION_CODES:
        principal = client.config.user(client.principal) or "this principal"
        return MissingPermission(
            f"{where}: {principal} may not do this; `mirrorbook cluster check {client.name}` names the rights", refused
        )
    if code is ErrorCode.invalid_replication_factor:
        return TooFewBrokers(where, refused)
    return (SettingRefused if code in _SETTING_CODES else RemoteFault)(where, refused)


def _without_right(action: str) -> str:
    return action.partition(" (needs ")[0]


def retry_per_key(
    client: ClusterClient,
    action: str,
    keys: Collection[Key],
    attempt: Callable[[list[Key]], KeyCodes[Key]],
    *,
    expected: Collection[ErrorCode] = (),
    refusals: MutableMapping[Key, RemoteFault] | None = None,
) -> dict[Key, ErrorCode]:
    """Retries retriable codes within the client's time limit; accepted keys stay done.

    Raises for the first refused key and counts the others, or collects them in `refusals`.
    """
    remaining, results = list(keys), dict[Key, ErrorCode]()
    deadline = time.monotonic() + client.timeout_s
    while remaining:
        codes = attempt(remaining)
        refused = [
            (key, code, message)
            for key, (code, message) in codes.items()
            if code is not ErrorCode.none and code not in expected and code not in RETRIED_CODES
        ]
        if refused and refusals is None:
            key, code, message = refused[0]
            suffix = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
            faults = {key: make_fault(client, str(key), action, code, message) for key, code, message in refused}
            raise make_fault(client, str(key) + suffix, action, code, message, faults)
        if refusals is not None:
            refusals.update(
                {key: make_fault(client, str(key), action, code, message) for key, code, message in refused}
            )
        answered = {key: code for key, (code, _) in codes.items() if code not in RETRIED_CODES}
        results.update({key: code for key, code in answered.items() if not refusals or key not in refusals})
        remaining = [key for key in remaining if key not in answered]
        if remaining:
            if time.monotonic() > deadline:
                last_code = codes[remaining[0]][0].name if remaining[0] in codes else "no answer"
                where = f"cluster {client.name}, {remaining[0]}: {_without_right(action)}"
                raise Unreachable(f"{where}: not settled within {client.timeout_s} s ({last_code})")
            if any(code in STALE_METADATA_CODES for code, _ in codes.values()):
                client.mark_metadata_stale()
            time.sleep(_PAUSE_S)
    return results
