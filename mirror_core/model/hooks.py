"""Hooks of mirrorbook.yaml, and what their results mean.

References (`${env:NAME}`) stay unresolved: displayed hooks must hold no secret.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final
from urllib.parse import urlsplit

from mirror_core.model.errors import BadRequest
from mirror_core.model.text import format_count

HOOK_TIMEOUT_S: Final = 30.0
HOOK_RETRIES: Final = 3
HOOK_VARIABLE_PREFIX: Final = "MIRRORBOOK_"
_VARIABLE_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MAX_TIMEOUT_S: Final = 600.0
_MAX_RETRIES: Final = 20


@dataclass(frozen=True, slots=True)
class HookCommand:
    argv: tuple[str, ...] = field(repr=False)
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Beside Mirrorbook's own variables and those that every command inherits."""


@dataclass(frozen=True, slots=True)
class HookRequest:
    url: str = field(repr=False)
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    json: Mapping[str, object] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    name: str
    call: HookCommand | HookRequest
    timeout_s: float = HOOK_TIMEOUT_S
    """Per attempt."""
    retries: int = HOOK_RETRIES

    @property
    def description(self) -> str:
        """Only the program's name or the host."""
        match self.call:
            case HookCommand():
                call_text = f"command {self.call.argv[0]}"
            case HookRequest():
                call_text = f"HTTP {self.call.method} to {urlsplit(self.call.url).hostname}"
        return f"{call_text}, at most {format_count(self.retries + 1, 'time')}, {self.timeout_s:g} s each"


def parse_hooks(location: str, raw: object) -> tuple[Hook, ...]:
    """BadRequest shows no value."""
    if not isinstance(raw, list):
        raise BadRequest(f"{location}: must be a list of hooks")
    hooks = tuple(_parse_hook(f"{location}[{number}]", entry) for number, entry in enumerate(raw))
    names = [hook.name for hook in hooks]
    duplicates = {name for name in names if names.count(name) > 1}
    if duplicates:
        raise BadRequest(f"{location}: more than one hook is named {min(duplicates)!r}")
    return hooks


def parse_command_hook(location: str, name: str, raw: object) -> Hook:
    fields = _check_mapping(location, raw, {"timeout_s", "retries", "command", "environment"})
    if "command" not in fields:
        raise BadRequest(f"{location}: needs a command: the program, then each argument")
    return _build_hook(location, name, _parse_command(f"{location}.command", fields["command"]), fields)


def parse_health_command(location: str, raw: object) -> Hook:
    """`timeout_s` covers all calls: there are no retries."""
    if isinstance(raw, dict) and "retries" in raw:
        raise BadRequest(f"{location}.retries: there is none: the command is called again until timeout_s is over")
    return parse_command_hook(location, "health", raw)


def _parse_hook(location: str, raw: object) -> Hook:
    fields = _check_mapping(location, raw, {"name", "timeout_s", "retries", "command", "environment", "http"})
    name = fields.get("name")
    if not isinstance(name, str) or not name.isprintable() or not name.strip():
        raise BadRequest(f"{location}: needs a name")
    kinds = [kind for kind in ("command", "http") if kind in fields]
    if len(kinds) != 1:
        raise BadRequest(f"{location} ({name}): needs either command or http")
    kind = kinds[0]
    return _build_hook(location, name, _CALL_PARSERS[kind](f"{location}.{kind}", fields[kind]), fields)


def _build_hook(location: str, name: str, call: HookCommand | HookRequest, fields: Mapping[str, object]) -> Hook:
    if "environment" in fields:
        if not isinstance(call, HookCommand):
            raise BadRequest(f"{location}.environment: only for a command")
        call = HookCommand(call.argv, _parse_environment(f"{location}.environment", fields["environment"]))
    return Hook(
        name=name,
        call=call,
        timeout_s=_check_number(f"{location}.timeout_s", fields.get("timeout_s", HOOK_TIMEOUT_S), 0.1, _MAX_TIMEOUT_S),
        retries=int(_check_number(f"{location}.retries", fields.get("retries", HOOK_RETRIES), 0, _MAX_RETRIES)),
    )


def _parse_command(location: str, raw: object) -> HookCommand:
    if not isinstance(raw, list) or not raw or not all(isinstance(argument, str) and argument for argument in raw):
        raise BadRequest(f"{location}: must be a list: the program, then each argument; there is no shell")
    return HookCommand(tuple(raw))


def _parse_environment(location: str, raw: object) -> Mapping[str, str]:
    environment = _check_mapping(location, raw)
    for name, value in environment.items():
        if not _VARIABLE_NAME.fullmatch(name):
            raise BadRequest(f"{location}: {name!r} is no name of a variable")
        if name.startswith(HOOK_VARIABLE_PREFIX):
            raise BadRequest(f"{location}: {name} is not yours to set: Mirrorbook sets it itself")
        if not isinstance(value, str):
            raise BadRequest(f"{location}.{name}: must be text: write it in quotes")
    return {name: str(value) for name, value in environment.items()}


def _parse_request(location: str, raw: object) -> HookRequest:
    fields = _check_mapping(location, raw, {"url", "method", "headers", "json"})
    url, method = fields.get("url"), fields.get("method", "POST")
    if not isinstance(url, str) or urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        raise BadRequest(f"{location}.url: must be http://... or https://...")
    if method not in ("POST", "PUT", "PATCH"):
        raise BadRequest(f"{location}.method: must be POST, PUT or PATCH")
    headers = _check_mapping(f"{location}.headers", fields.get("headers", {}))
    if not all(isinstance(value, str) for value in headers.values()):
        raise BadRequest(f"{location}.headers: must be a mapping of names to text")
    body = _check_mapping(f"{location}.json", fields.get("json", {}))
    return HookRequest(url, method, {name: str(value) for name, value in headers.items()}, body)


_CALL_PARSERS: Final[Mapping[str, Callable[[str, object], HookCommand | HookRequest]]] = MappingProxyType(
    {"command": _parse_command, "http": _parse_request}
)


def _check_mapping(location: str, raw: object, known_keys: set[str] | None = None) -> dict[str, object]:
    if not isinstance(raw, dict):
        raise BadRequest(f"{location}: must be a mapping")
    fields = {str(key): value for key, value in raw.items()}
    unknown_keys = set() if known_keys is None else fields.keys() - known_keys
    if unknown_keys:
        raise BadRequest(f"{location}: unknown {min(unknown_keys)!r}; known are {', '.join(sorted(known_keys or ()))}")
    return fields


def _check_number(location: str, raw: object, minimum: float, maximum: float) -> float:
    if isinstance(raw, bool) or not isinstance(raw, int | float) or not minimum <= raw <= maximum:
        raise BadRequest(f"{location}: must be a number from {minimum:g} to {maximum:g}")
    return float(raw)


class HookOutcome(StrEnum):
    DONE = "done"
    RETRY = "retry"
    GIVE_UP = "give up"


_HTTP_OUTCOMES: Final[tuple[tuple[range, HookOutcome], ...]] = (
    (range(200, 300), HookOutcome.DONE),
    (range(408, 409), HookOutcome.RETRY),  # request timeout
    (range(425, 426), HookOutcome.RETRY),  # too early
    (range(429, 430), HookOutcome.RETRY),  # too many requests
    (range(500, 600), HookOutcome.RETRY),
)
"""Every other HTTP status gives up, redirects too: a redirect could leak a secret."""


def from_http_status(code: int) -> HookOutcome:
    return next((outcome for codes, outcome in _HTTP_OUTCOMES if code in codes), HookOutcome.GIVE_UP)


def from_exit_code(code: int) -> HookOutcome:
    return HookOutcome.DONE if code == 0 else HookOutcome.RETRY


def compute_retry_pause_s(tries: int) -> float:
    return float(min(30, 2 ** (tries - 1)))
