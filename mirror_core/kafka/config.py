"""mirrorbook.yaml: clusters as librdkafka properties, hooks, sets, evidence.

`${env:NAME}` is an environment variable, `${file:PATH:KEY}` the value of KEY in a properties file.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, Final

import yaml

from mirror_core.kafka.property_names import check_names
from mirror_core.kafka.subject import NoSubject, subject_of
from mirror_core.model.errors import BadRequest
from mirror_core.model.files import PASSWORD_APART, holds_password
from mirror_core.model.hooks import Hook
from mirror_core.model.logs import logger
from mirror_core.model.mirror_sections import MirrorSections, mirror_sections, of_mirror
from mirror_core.model.mirror_set import MirrorSet, sets_of
from mirror_core.model.names import ClusterName, MirrorName
from mirror_core.model.ruling import ENTRIES, KAFKAS, Ruling, ruling_of
from mirror_core.model.text import suggestion

_log = logger(__name__)

ANONYMOUS: Final = "ANONYMOUS"
"""The principal of every unauthenticated client."""
_TYPE: Final = "User:"
_REFERENCE = re.compile(r"\$\{([\w.-]+):([^}]*)\}")
_FILE = re.compile(r"\$\{file:([^}]*)\}")
_SECTIONS: Final = ("clusters", "mirrors", "evidence", "sets", "expectations")
_HELD: Final[dict[Path, str]] = {}
"""By path; only in this process's memory."""


class Principal(StrEnum):
    CONTROL = "control"
    DATA = "data"


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """Secrets are not in its repr."""

    name: ClusterName
    control: Mapping[str, str] = field(repr=False)
    data: Mapping[str, str] = field(repr=False)
    users: Mapping[Principal, str] = field(default_factory=dict)
    """From mirrorbook.yaml, where brokers map the login or certificate to another name."""
    ruling: Ruling = KAFKAS
    knows_data: bool = True
    """False if `load_config` read for CONTROL only."""

    def properties(self, principal: Principal = Principal.CONTROL) -> dict[str, str]:
        return dict(self.control if principal is Principal.CONTROL else self.data)

    @property
    def bootstrap(self) -> tuple[tuple[str, int], ...]:
        return addresses(self.control["bootstrap.servers"], f"cluster {self.name}: bootstrap.servers")

    def user(self, principal: Principal = Principal.CONTROL) -> str | None:
        """Kafka principal without `User:`; None if only an unreadable certificate has it."""
        if principal in self.users:
            return self.users[principal]
        properties = self.properties(principal)
        protocol = properties.get("security.protocol", "PLAINTEXT").upper()
        if "SASL" in protocol:
            return properties.get("sasl.username")
        certificate = properties.get("ssl.certificate.location")
        if protocol != "SSL" or certificate is None:
            return ANONYMOUS
        try:
            return subject_of(Path(certificate).read_bytes())
        except (OSError, NoSubject):
            return None

    def certain(self, principal: Principal) -> bool:
        """False for a certificate's subject: brokers may map it."""
        properties = self.properties(principal)
        by_subject = (
            properties.get("security.protocol", "").upper() == "SSL" and "ssl.certificate.location" in properties
        )
        return principal in self.users or not by_subject


@dataclass(frozen=True, slots=True)
class Config:
    path: Path
    clusters: Mapping[ClusterName, ClusterConfig]
    mirrors: MirrorSections = field(default_factory=MirrorSections)
    signing_key: Path | None = None
    """None: evidence stays unsigned."""
    evidence_copy: str | None = None
    """Folder or Spark URL for a copy of each bundle."""
    sets: Mapping[str, MirrorSet] = field(default_factory=dict)
    """Mirrors that fail over together."""
    expectations: object = field(default_factory=dict)
    """Section or path; unchecked, because a mistake here must stop neither copying nor a failover."""

    def cluster(self, name: str) -> ClusterConfig:
        try:
            return self.clusters[ClusterName(name)]
        except KeyError:
            known = ", ".join(sorted(self.clusters)) or "none"
            raise BadRequest(f"unknown cluster {name!r}: {self.path} knows {known}") from None

    def hooks(self, mirror: MirrorName) -> tuple[Hook, ...]:
        """A reverse mirror uses its forward mirror's hooks."""
        return of_mirror(self.mirrors.switch, mirror, ())

    def belonging(self, mirror: MirrorName) -> tuple[tuple[str, ...], ...]:
        """Consistency groups of topics; a reverse mirror has its forward mirror's."""
        return of_mirror(self.mirrors.together, mirror, ())

    def owner(self, mirror: MirrorName) -> str:
        """Contact for the mirror and its reverse mirror; may be empty."""
        return self.mirrors.owner(mirror)

    def resolved(self, where: str, text: str) -> str:
        """References may yield secrets. BadRequest for a dangling one."""
        return _REFERENCE.sub(lambda match: _resolve(self.path, where, match), text)


class _FollowedProperties(Mapping[str, str]):
    """Resolved again when a referenced file changes, so passwords can rotate.

    While a file is unusable, the old values stay.
    """

    def __init__(self, path: Path, texts: Mapping[str, tuple[str, str]]) -> None:
        self._path, self._texts = path, texts
        self._files = [_source(path, argument) for _, text in texts.values() for argument in _FILE.findall(text)]
        self._versions = self._now()
        self._values = self._resolved()

    def _resolved(self) -> dict[str, str]:
        return {
            key: _REFERENCE.sub(partial(_resolve, self._path, where), text)
            for key, (where, text) in self._texts.items()
        }

    def _now(self) -> list[tuple[int, int, int] | None]:
        return [_version(file) for file in self._files]

    def _current(self) -> dict[str, str]:
        if self._files and (versions := self._now()) != self._versions:
            self._versions = versions
            try:
                self._values = self._resolved()
            except BadRequest as error:
                _log.warning("goes on with what was read before: %s", error)
        return self._values

    def __or__(self, other: _FollowedProperties) -> _FollowedProperties:
        return _FollowedProperties(self._path, {**self._texts, **other._texts})

    def __getitem__(self, key: str) -> str:
        return self._current()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._current())

    def __len__(self) -> int:
        return len(self._texts)


def _version(file: Path) -> tuple[int, int, int] | None:
    """Changes with the file; None: unreadable."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def addresses(text: str, where: str) -> tuple[tuple[str, int], ...]:
    """`where` begins error messages."""
    found = []
    for server in text.split(","):
        host, colon, port = server.strip().rpartition(":")
        bare = host[1:-1] if host.startswith("[") and host.endswith("]") else ""
        if not colon or not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
            raise BadRequest(f"{where}: {server.strip()!r} is not host:port")
        if not bare and set(":[]") & set(host):
            raise BadRequest(f"{where}: {server.strip()!r}: write an IPv6 address in brackets, such as [::1]:9092")
        found.append((bare or host, int(port)))
    return tuple(found)


def find_config(explicit: Path | None) -> Path:
    """--config, then MIRRORBOOK_CONFIG, then ./mirrorbook.yaml."""
    chosen = explicit or Path(os.environ.get("MIRRORBOOK_CONFIG") or "mirrorbook.yaml")
    if chosen.is_dir():
        raise BadRequest(f"{chosen} is a folder: give the file in it")
    if not chosen.is_file():
        raise BadRequest(
            f"no configuration at {chosen}: give --config FILE, set MIRRORBOOK_CONFIG, or write mirrorbook.yaml"
        )
    # Keep symlinks: Kubernetes retargets them with each change, and executors differ.
    return chosen.absolute()


def hold_config(path: Path, text: str) -> None:
    """For a path that is on no disk: the text may hold secrets. Other processes cannot see it.

    Relative paths start at the path's folder.
    """
    _HELD[path] = text


def load_config(path: Path, *, only: Principal | None = None) -> Config:
    """`only_principal`: the other principal's secrets are not followed and need not exist.

    DATA is for executors; CONTROL for read-only commands.
    """
    try:
        held = _HELD.get(path)
        if held is None:
            _check_not_world_writable(path)
        document = yaml.safe_load(path.read_text(encoding="utf-8") if held is None else held)
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(f"{path}: cannot be read: {error}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}" if mark else ""
        raise BadRequest(f"{path}{where}: not valid YAML") from None
    clusters = document.get("clusters") if isinstance(document, dict) else None
    if not isinstance(clusters, dict) or not clusters:
        raise BadRequest(f"{path}: needs a mapping `clusters:` of name to client properties")
    for key in document:
        if key not in _SECTIONS:
            raise BadRequest(f"{path}: there is no section `{key}:`{suggestion(str(key), _SECTIONS)}")
    return Config(
        path,
        {ClusterName(str(name)): _cluster(path, str(name), raw, only) for name, raw in clusters.items()},
        mirrors=mirror_sections(str(path), document.get("mirrors", {})),
        **_evidence(path, document.get("evidence", {})),
        sets=sets_of(f"{path}: sets", document.get("sets", {})),
        expectations=_expectations(path, document.get("expectations", {})),
    )


def _check_not_world_writable(path: Path) -> None:
    """Whoever can write the file can redirect passwords."""
    if path.stat().st_mode & stat.S_IWOTH:
        raise BadRequest(
            f"{path}: every user of this machine can change it, and with it where passwords are sent: chmod o-w {path}"
        )


def _expectations(path: Path, section: object) -> object:
    return path.parent / section if isinstance(section, str) else section


def _evidence(path: Path, section: object) -> dict[str, Any]:
    """Relative paths start at the file's folder."""
    known = {"signing_key", "copy_to"}
    if not isinstance(section, dict) or section.keys() - known:
        raise BadRequest(f"{path}: `evidence:` must be a mapping with the keys {', '.join(sorted(known))}")
    for key, named in section.items():
        if not isinstance(named, str) or not named:
            what = "the path of a file" if key == "signing_key" else "a folder or a URL"
            raise BadRequest(f"{path}: evidence.{key}: must be {what}")
        if holds_password(named):
            raise BadRequest(f"{path}: evidence.{key}: its URL {PASSWORD_APART}")
    key, copy = section.get("signing_key"), section.get("copy_to")
    return {
        "signing_key": None if key is None else path.parent / key,
        "evidence_copy": copy if copy is None or "://" in copy else str(path.parent / copy),
    }


def _cluster(path: Path, name: str, raw: object, only: Principal | None) -> ClusterConfig:
    where = f"{path}: clusters.{name}"
    if not isinstance(raw, dict):
        raise BadRequest(f"{where}: must be a mapping of client properties")
    overrides = raw.pop("data", {})
    if not isinstance(overrides, dict):
        raise BadRequest(f"{where}.data: must be a mapping of client properties of the data principal")
    for entry in (key for key in ENTRIES if key in overrides):
        raise BadRequest(
            f"{where}.data.{entry}: is the cluster's, not its data principal's: write it to {where}.{entry}"
        )
    ruling = ruling_of(where, raw)
    ours, data = _user(path, where, raw), _user(path, f"{where}.data", overrides)
    is_data, is_control = only is Principal.DATA, only is Principal.CONTROL
    control = _properties(path, where, {k: v for k, v in raw.items() if not (is_data and k in overrides)})
    own = _properties(path, f"{where}.data", {k: v for k, v in overrides.items() if not is_control or k in _LOGINS})
    both = control | own
    check_names(where, both)
    if not (both if is_data else control).get("bootstrap.servers"):
        raise BadRequest(f"{where}: bootstrap.servers is missing")
    if data is None and not own.keys() & _LOGINS:
        data = ours  # same login as the control principal
    users = {Principal.CONTROL: ours, Principal.DATA: data}
    return ClusterConfig(
        ClusterName(name),
        both if is_data else control,
        both,
        {p: user for p, user in users.items() if user is not None},
        ruling,
        knows_data=not (is_control and overrides),
    )


_LOGINS: Final = frozenset({"security.protocol", "sasl.username", "ssl.certificate.location"})


def _user(path: Path, where: str, raw: dict[object, object]) -> str | None:
    """Mirrorbook's own entry `principal`."""
    if "principal" not in raw:
        return None
    principal = _properties(path, where, {"principal": raw.pop("principal")})["principal"]
    if not principal.startswith(_TYPE) or principal == _TYPE:
        raise BadRequest(f"{where}.principal: {principal!r} is not as Kafka names principals: User:NAME")
    return principal.removeprefix(_TYPE)


def _properties(path: Path, where: str, raw: Mapping[object, object]) -> _FollowedProperties:
    properties = {}
    for key, value in raw.items():
        if isinstance(value, bool):
            value = str(value).lower()
        if not isinstance(value, str | int | float):
            raise BadRequest(f"{where}.{key}: must be a single value")
        properties[str(key)] = f"{where}.{key}", str(value)
    return _FollowedProperties(path, properties)


def _source(path: Path, argument: str) -> Path:
    return (path.parent / argument.rpartition(":")[0]).absolute()


def _resolve(path: Path, where: str, match: re.Match[str]) -> str:
    kind, argument = match.groups()
    if kind == "env":
        if argument not in os.environ:
            raise BadRequest(f"{where}: environment variable {argument} is not set")
        return os.environ[argument]
    if kind != "file":
        raise BadRequest(
            f"{where}: ${{{kind}:...}} is no reference that Mirrorbook follows. There are ${{env:NAME}} and "
            "${file:PATH:KEY}; a value that is really written so goes into such a file"
        )
    _, colon, key = argument.rpartition(":")
    if not colon:
        raise BadRequest(f"{where}: a file reference is written ${{file:PATH:KEY}}")
    source = _source(path, argument)
    try:
        _check_not_world_writable(source)
        lines = source.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = (
            error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        )  # never the text: it may hold the secret
        raise BadRequest(f"{where}: {source} cannot be read: {why}") from None
    for line in lines:
        name, equals, value = line.partition("=")
        if equals and name.strip() == key:
            return value.strip()
    raise BadRequest(f"{where}: {source} has no key {key}")
