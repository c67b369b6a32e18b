"""mirrorbook.yaml: clusters by name, as librdkafka client properties, with references instead of secrets; and hooks.

`${env:NAME}` is an environment variable, `${file:PATH:KEY}` the value of KEY in a properties file (`KEY=value` lines).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

import yaml

from mirror_core.kafka.subject import NoSubject, subject_of
from mirror_core.model.errors import BadRequest
from mirror_core.model.hooks import Hook, hooks_of
from mirror_core.model.names import ClusterName, MirrorName, base_name

ANONYMOUS: Final = "ANONYMOUS"
"""What brokers call everybody who says neither name nor certificate: not us alone."""
_TYPE: Final = "User:"
_REFERENCE = re.compile(r"\$\{(env|file):([^}]*)\}")


class Principal(StrEnum):
    """As whom to connect. Executors only ever use DATA."""

    CONTROL = "control"
    DATA = "data"


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """Client properties of one cluster. Secrets are left out of its repr and never stored by us."""

    name: ClusterName
    control: Mapping[str, str] = field(repr=False)
    data: Mapping[str, str] = field(repr=False)
    users: Mapping[Principal, str] = field(default_factory=dict)
    """Names that mirrorbook.yaml gives: brokers may call a client otherwise than its login or certificate says."""

    def properties(self, principal: Principal = Principal.CONTROL) -> dict[str, str]:
        """librdkafka properties, references resolved already."""
        return dict(self.control if principal is Principal.CONTROL else self.data)

    @property
    def bootstrap(self) -> tuple[tuple[str, int], ...]:
        """Host and port of each bootstrap server."""
        servers = []
        for server in self.control["bootstrap.servers"].split(","):
            host, colon, port = server.strip().rpartition(":")
            if not colon or not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
                raise BadRequest(f"cluster {self.name}: bootstrap.servers: {server.strip()!r} is not host:port")
            servers.append((host.strip("[]"), int(port)))
        return tuple(servers)

    def user(self, principal: Principal = Principal.CONTROL) -> str | None:
        """The name of its Kafka principal, without `User:`; None when only a certificate says it that cannot be read.

        By mirrorbook.yaml, else the SASL user, else the certificate's subject. See `certain`.
        """
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
        """False when the name is a certificate's subject: brokers may have rules that make another name of it."""
        properties = self.properties(principal)
        by_subject = (
            properties.get("security.protocol", "").upper() == "SSL" and "ssl.certificate.location" in properties
        )
        return principal in self.users or not by_subject


@dataclass(frozen=True, slots=True)
class Config:
    """All clusters of one mirrorbook.yaml, and what is called when a mirror's applications move."""

    path: Path
    clusters: Mapping[ClusterName, ClusterConfig]
    switch: Mapping[MirrorName, tuple[Hook, ...]] = field(default_factory=dict)

    def cluster(self, name: str) -> ClusterConfig:
        try:
            return self.clusters[ClusterName(name)]
        except KeyError:
            known = ", ".join(sorted(self.clusters)) or "none"
            raise BadRequest(f"unknown cluster {name!r}: {self.path} knows {known}") from None

    def hooks(self, mirror: MirrorName) -> tuple[Hook, ...]:
        """Of this mirror, or of the one that it is the way home of: applications move back by the same hooks."""
        return self.switch.get(mirror, self.switch.get(base_name(mirror), ()))

    def resolved(self, where: str, text: str) -> str:
        """A value of the file with its references replaced: a secret, perhaps. BadRequest when one leads nowhere."""
        return _REFERENCE.sub(lambda match: _resolve(self.path, where, match), text)


def find_config(explicit: Path | None) -> Path:
    """The file to read: --config, then MIRRORBOOK_CONFIG, then ./mirrorbook.yaml."""
    chosen = explicit or Path(os.environ.get("MIRRORBOOK_CONFIG") or "mirrorbook.yaml")
    if not chosen.is_file():
        raise BadRequest(
            f"no configuration at {chosen}: give --config FILE, set MIRRORBOOK_CONFIG, or write mirrorbook.yaml"
        )
    return chosen.resolve()


def load_config(path: Path, *, only_data: bool = False) -> Config:
    """Read and check a mirrorbook.yaml.

    `only_data`: on an executor, which connects as the data principal and as nobody else. What leads to secrets of the
    control principal is not followed: they need not be there.
    """
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(f"{path}: cannot be read: {error}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}" if mark else ""
        raise BadRequest(f"{path}{where}: not valid YAML") from None
    clusters = document.get("clusters") if isinstance(document, dict) else None
    if not isinstance(clusters, dict) or not clusters:
        raise BadRequest(f"{path}: needs a mapping `clusters:` of name to client properties")
    return Config(
        path,
        {ClusterName(str(name)): _cluster(path, str(name), raw, only_data) for name, raw in clusters.items()},
        _switch(path, document.get("mirrors", {})),
    )


def _switch(path: Path, mirrors: object) -> dict[MirrorName, tuple[Hook, ...]]:
    if not isinstance(mirrors, dict):
        raise BadRequest(f"{path}: `mirrors:` must be a mapping of a mirror's name to its section `switch:`")
    found = {}
    for name, section in mirrors.items():
        where = f"{path}: mirrors.{name}"
        if not isinstance(section, dict) or section.keys() != {"switch"}:
            raise BadRequest(f"{where}: must be a mapping with the one key `switch`")
        found[MirrorName(str(name))] = hooks_of(f"{where}.switch", section["switch"])
    return found


def _cluster(path: Path, name: str, raw: object, only_data: bool) -> ClusterConfig:
    where = f"{path}: clusters.{name}"
    if not isinstance(raw, dict):
        raise BadRequest(f"{where}: must be a mapping of client properties")
    overrides = raw.pop("data", {})
    if not isinstance(overrides, dict):
        raise BadRequest(f"{where}.data: must be a mapping of client properties of the data principal")
    ours, data = _user(path, where, raw), _user(path, f"{where}.data", overrides)
    control = _properties(path, where, {k: v for k, v in raw.items() if not (only_data and k in overrides)})
    own = _properties(path, f"{where}.data", overrides)
    both = {**control, **own}
    if not (both if only_data else control).get("bootstrap.servers"):
        raise BadRequest(f"{where}: bootstrap.servers is missing")
    if data is None and not own.keys() & _LOGINS:
        data = ours  # it connects as the control principal does
    users = {Principal.CONTROL: ours, Principal.DATA: data}
    return ClusterConfig(
        ClusterName(name),
        both if only_data else control,
        both,
        {p: user for p, user in users.items() if user is not None},
    )


_LOGINS: Final = frozenset({"security.protocol", "sasl.username", "ssl.certificate.location"})


def _user(path: Path, where: str, raw: dict[object, object]) -> str | None:
    """The entry `principal`, which is ours and no client property."""
    if "principal" not in raw:
        return None
    principal = _properties(path, where, {"principal": raw.pop("principal")})["principal"]
    if not principal.startswith(_TYPE) or principal == _TYPE:
        raise BadRequest(f"{where}.principal: {principal!r} is not as Kafka names principals: User:NAME")
    return principal.removeprefix(_TYPE)


def _properties(path: Path, where: str, raw: Mapping[object, object]) -> dict[str, str]:
    properties = {}
    for key, value in raw.items():
        if isinstance(value, bool):
            value = str(value).lower()
        if not isinstance(value, str | int | float):
            raise BadRequest(f"{where}.{key}: must be a single value")
        properties[str(key)] = _REFERENCE.sub(lambda m, k=key: _resolve(path, f"{where}.{k}", m), str(value))  # type: ignore[misc]
    return properties


def _resolve(path: Path, where: str, match: re.Match[str]) -> str:
    kind, argument = match.groups()
    if kind == "env":
        if argument not in os.environ:
            raise BadRequest(f"{where}: environment variable {argument} is not set")
        return os.environ[argument]
    file, colon, key = argument.rpartition(":")
    if not colon:
        raise BadRequest(f"{where}: a file reference is written ${{file:PATH:KEY}}")
    source = (path.parent / file).resolve()
    try:
        lines = source.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(f"{where}: {source} cannot be read: {type(error).__name__}") from None
    for line in lines:
        name, equals, value = line.partition("=")
        if equals and name.strip() == key:
            return value.strip()
    raise BadRequest(f"{where}: {source} has no key {key}")
