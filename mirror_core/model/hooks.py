"""Hooks of mirrorbook.yaml.

References (`${env:NAME}`) stay unresolved: displayed hooks must hold no secret.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final
from urllib.parse import urlsplit

from mirror_core.model.errors import BadRequest
from mirror_core.model.names import MirrorName

TIMEOUT_S: Final = 30.0
RETRIES: Final = 3
_MOST_S: Final = 600.0
_MOST_RETRIES: Final = 20


@dataclass(frozen=True, slots=True)
class Command:
    argv: tuple[str, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Http:
    url: str = field(repr=False)
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    json: Mapping[str, object] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class AssetEvent:
    """Emitted by Airflow's own task of the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    name: str
    call: Command | Http | AssetEvent
    timeout_s: float = TIMEOUT_S
    """Per attempt."""
    retries: int = RETRIES

    @property
    def words(self) -> str:
        """Shows only the program's name or the host."""
        match self.call:
            case Command():
                what = f"command {self.call.argv[0]}"
            case Http():
                what = f"HTTP {self.call.method} to {urlsplit(self.call.url).hostname}"
            case AssetEvent():
                return "asset event, emitted by Airflow"
        return f"{what}, at most {self.retries + 1} time(s), {self.timeout_s:g} s each"


def asset_uri(mirror: MirrorName, what: str = "active") -> str:
    return f"mirrorbook://{mirror}/{what}"


def hooks_of(where: str, raw: object) -> tuple[Hook, ...]:
    """BadRequest names the mistake and shows no value."""
    if not isinstance(raw, list):
        raise BadRequest(f"{where}: must be a list of hooks")
    hooks = tuple(_hook(f"{where}[{number}]", one) for number, one in enumerate(raw))
    names = [hook.name for hook in hooks]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise BadRequest(f"{where}: more than one hook is named {min(twice)!r}")
    return hooks


def hook_of(where: str, name: str, raw: object) -> Hook:
    """Parses a single command, such as `fence_command`."""
    fields = _mapping(where, raw, {"timeout_s", "retries", "command"})
    if "command" not in fields:
        raise BadRequest(f"{where}: needs a command: the program, then each argument")
    return _with_limits(where, name, _command(f"{where}.command", fields["command"]), fields)


def _hook(where: str, raw: object) -> Hook:
    fields = _mapping(where, raw, {"name", "timeout_s", "retries", "command", "http", "airflow"})
    name = fields.get("name")
    if not isinstance(name, str) or not name.isprintable() or not name.strip():
        raise BadRequest(f"{where}: needs a name")
    kinds = [kind for kind in ("command", "http", "airflow") if kind in fields]
    if len(kinds) != 1:
        raise BadRequest(f"{where} ({name}): needs one of command, http, airflow")
    kind = kinds[0]
    return _with_limits(where, name, _CALLS[kind](f"{where}.{kind}", fields[kind]), fields)


def _with_limits(where: str, name: str, call: Command | Http | AssetEvent, fields: Mapping[str, object]) -> Hook:
    return Hook(
        name=name,
        call=call,
        timeout_s=_number(f"{where}.timeout_s", fields.get("timeout_s", TIMEOUT_S), 0.1, _MOST_S),
        retries=int(_number(f"{where}.retries", fields.get("retries", RETRIES), 0, _MOST_RETRIES)),
    )


def _command(where: str, raw: object) -> Command:
    if not isinstance(raw, list) or not raw or not all(isinstance(word, str) and word for word in raw):
        raise BadRequest(f"{where}: must be a list: the program, then each argument; there is no shell")
    return Command(tuple(raw))


def _http(where: str, raw: object) -> Http:
    fields = _mapping(where, raw, {"url", "method", "headers", "json"})
    url, method = fields.get("url"), fields.get("method", "POST")
    if not isinstance(url, str) or urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        raise BadRequest(f"{where}.url: must be http://... or https://...")
    if method not in ("POST", "PUT", "PATCH"):
        raise BadRequest(f"{where}.method: must be POST, PUT or PATCH")
    headers = _mapping(f"{where}.headers", fields.get("headers", {}))
    if not all(isinstance(value, str) for value in headers.values()):
        raise BadRequest(f"{where}.headers: must be a mapping of names to text")
    body = _mapping(f"{where}.json", fields.get("json", {}))
    return Http(url, method, {name: str(value) for name, value in headers.items()}, body)


def _asset(where: str, raw: object) -> AssetEvent:
    if raw != "asset":
        raise BadRequest(f"{where}: must be `asset`")
    return AssetEvent()


_CALLS: Final[Mapping[str, Callable[[str, object], Command | Http | AssetEvent]]] = MappingProxyType(
    {"command": _command, "http": _http, "airflow": _asset}
)


def _mapping(where: str, raw: object, known: set[str] | None = None) -> dict[str, object]:
    if not isinstance(raw, dict):
        raise BadRequest(f"{where}: must be a mapping")
    fields = {str(key): value for key, value in raw.items()}
    unknown = set() if known is None else fields.keys() - known
    if unknown:
        raise BadRequest(f"{where}: unknown {min(unknown)!r}; known are {', '.join(sorted(known or ()))}")
    return fields


def _number(where: str, raw: object, least: float, most: float) -> float:
    if isinstance(raw, bool) or not isinstance(raw, int | float) or not least <= raw <= most:
        raise BadRequest(f"{where}: must be a number from {least:g} to {most:g}")
    return float(raw)
