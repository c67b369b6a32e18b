"""Kafka error codes as exceptions, and retries of retriable ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, MutableMapping
from types import MappingProxyType
from typing import Any, Final, TypeVar

from kio.schema.errors import ErrorCode

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.transient import MISLED, TRANSIENT
from mirror_core.model.errors import MissingPermission, RemoteFault, SettingRefused, Unreachable

__all__ = ["DENIED", "Answers", "ErrorCode", "code_of", "fault", "settle"]

DENIED: Final = frozenset(
    {
        ErrorCode.topic_authorization_failed,
        ErrorCode.group_authorization_failed,
        ErrorCode.cluster_authorization_failed,
        ErrorCode.transactional_id_authorization_failed,
        ErrorCode.delegation_token_authorization_failed,
    }
)
_AGAIN: Final = TRANSIENT | {
    ErrorCode.request_timed_out,
    ErrorCode.network_exception,
    ErrorCode.throttling_quota_exceeded,
}
_OF_SETTINGS: Final = frozenset({ErrorCode.invalid_config, ErrorCode.policy_violation})
_PAUSE_S: Final = 0.05
_DUMP: Final = "Request Request("
"""Then the message is a printed broker object, useless to people."""

Key = TypeVar("Key")
_NONE: Final[Mapping[Any, RemoteFault]] = MappingProxyType({})
Answers = Mapping[Key, tuple[ErrorCode, str | None]]
"""Code and message for each key."""


def code_of(number: int) -> ErrorCode:
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.unknown_server_error


def fault(
    client: ClusterClient,
    subject: str,
    action: str,
    code: ErrorCode,
    words: str | None = None,
    refused: Mapping[Any, RemoteFault] = _NONE,
) -> RemoteFault:
    """`action`: operation (needs RIGHT); the right is shown for authorization errors only."""
    said = "" if words is None or words.startswith(_DUMP) else words
    detail = f"{code.name}" + (f" ({said})" if said else "")
    operation = action if code in DENIED else _without_right(action)
    where = f"cluster {client.name}, {subject}: {operation}: {detail}"
    if code in DENIED:
        who = client.config.user(client.principal) or "this principal"
        return MissingPermission(
            f"{where}: {who} may not do this; `mirrorbook cluster check {client.name}` names the rights", refused
        )
    return (SettingRefused if code in _OF_SETTINGS else RemoteFault)(where, refused)


def _without_right(action: str) -> str:
    return action.partition(" (needs ")[0]


def settle(
    client: ClusterClient,
    action: str,
    wanted: Collection[Key],
    attempt: Callable[[list[Key]], Answers[Key]],
    *,
    expected: Collection[ErrorCode] = (),
    refusals: MutableMapping[Key, RemoteFault] | None = None,
) -> dict[Key, ErrorCode]:
    """Retries retriable codes within the client's time limit; accepted keys stay done.

    Raises for the first refused key and counts the others, or collects them in `refusals`.
    """
    rest, done = list(wanted), dict[Key, ErrorCode]()
    deadline = time.monotonic() + client.timeout_s
    while rest:
        answers = attempt(rest)
        refused = [
            (key, code, words)
            for key, (code, words) in answers.items()
            if code is not ErrorCode.none and code not in expected and code not in _AGAIN
        ]
        if refused and refusals is None:
            key, code, words = refused[0]
            more = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
            each = {key: fault(client, str(key), action, code, words) for key, code, words in refused}
            raise fault(client, str(key) + more, action, code, words, each)
        if refusals is not None:
            refusals.update({key: fault(client, str(key), action, code, words) for key, code, words in refused})
        settled = {key: code for key, (code, _) in answers.items() if code not in _AGAIN}
        done.update({key: code for key, code in settled.items() if not refusals or key not in refusals})
        rest = [key for key in rest if key not in settled]
        if rest:
            if time.monotonic() > deadline:
                last = answers[rest[0]][0].name if rest[0] in answers else "no answer"
                where = f"cluster {client.name}, {rest[0]}: {_without_right(action)}"
                raise Unreachable(f"{where}: not settled within {client.timeout_s} s ({last})")
            if any(code in MISLED for code, _ in answers.values()):
                client.ask_another()
            time.sleep(_PAUSE_S)
    return done
