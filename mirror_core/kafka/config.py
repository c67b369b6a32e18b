"""mirrorbook.yaml. Names of properties are checked: a mistyped one would show late or never.

`${env:NAME}` is an environment variable, `${file:PATH:KEY}` the value of KEY in a properties file.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final

import yaml
from confluent_kafka import KafkaException, Producer

from mirror_core.kafka.tls import SubjectUnreadable, parse_subject
from mirror_core.model.config_sections import (
    AUTHORIZER_KEYS,
    KAFKA_AUTHORIZER,
    AuthorizerConfig,
    MirrorSections,
    MirrorSet,
    get_for_mirror,
    parse_authorizer_config,
    parse_mirror_sections,
    parse_sets,
)
from mirror_core.model.errors import BadRequest
from mirror_core.model.files import PASSWORD_ADVICE, has_password
from mirror_core.model.hooks import Hook
from mirror_core.model.logs import get_logger
from mirror_core.model.names import ClusterIdentity, ClusterName, MirrorName
from mirror_core.model.text import format_suggestion

SUPPORTED_SECURITY: Final = frozenset(
    {
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.password",
        "sasl.username",
        "ssl.ca.location",
        "ssl.ca.pem",
        "ssl.certificate.location",
        "ssl.crl.location",
        "ssl.endpoint.identification.algorithm",
        "ssl.key.location",
        "ssl.key.password",
    }
)


"""Honoured by our connections and by librdkafka: one known to only one of them would only seem to protect."""
_COMMON_NAMES: Final = (
    *AUTHORIZER_KEYS,
    *sorted(SUPPORTED_SECURITY),
    "bootstrap.servers",
    "client.id",
    "client.rack",
    "data",
    "principal",
    "security.protocol",
    "socket.timeout.ms",
)
SECURITY_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
SASL_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_SECURITY_PREFIXES: Final = ("ssl.", "sasl.", "https.", "enable.ssl.", "enable.sasl.")
_INVALID_PROPERTY: Final = "mirrorbook.stops.here"
"""Unknown to librdkafka, so that no client is ever created."""


def check_property_names(where: str, names: Iterable[str]) -> None:
    """BadRequest for unknown names, and for security properties not honoured everywhere."""
    for name in names:
        if _is_unknown_property(name):
            raise BadRequest(
                f"{where}.{name}: there is no such property of Kafka's client{format_suggestion(name, _COMMON_NAMES)}"
            )
        if name.startswith(_SECURITY_PREFIXES) and name not in SUPPORTED_SECURITY:
            raise BadRequest(
                f"{where}.{name}: not all of Mirrorbook's connections would go by it: leave it out; of security's "
                f"properties they know security.protocol, {', '.join(sorted(SUPPORTED_SECURITY))}"
            )


@lru_cache(maxsize=256)
def _is_unknown_property(name: str) -> bool:
    try:
        Producer({name: "", _INVALID_PROPERTY: ""})
    except KafkaException as error:
        message: str = error.args[0].str()
        return message.startswith("Java ") or message == f'No such configuration property: "{name}"'
    except TypeError:
        return False  # a callback, which no file can set
    raise AssertionError(f"librdkafka has a property {_INVALID_PROPERTY}")


_log = get_logger(__name__)
ANONYMOUS: Final = "ANONYMOUS"
"""The principal of every unauthenticated client."""
_USER_PREFIX: Final = "User:"
_REFERENCE = re.compile(r"\$\{([\w.-]+):([^}]*)\}")
_BARE_REFERENCE = re.compile(r"\$\{[\w.-]*\}")
_FILE = re.compile(r"\$\{file:([^}]*)\}")
_KNOWN_SECTIONS: Final = ("clusters", "mirrors", "evidence", "sets", "expectations")
_IN_MEMORY_CONFIGS: Final[dict[Path, str]] = {}


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
    ruling: AuthorizerConfig = KAFKA_AUTHORIZER
    has_data_login: bool = True
    """False if `load_config` read for CONTROL only."""
    pinned_id: str | None = None
    """Clients refuse a cluster with another id. None: any."""

    def properties(self, principal: Principal = Principal.CONTROL) -> dict[str, str]:
        return dict(self.control if principal is Principal.CONTROL else self.data)

    @property
    def bootstrap(self) -> tuple[tuple[str, int], ...]:
        return parse_addresses(self.control["bootstrap.servers"], f"cluster {self.name}: bootstrap.servers")

    def user(self, principal: Principal = Principal.CONTROL) -> str | None:
        """Without `User:`; None if only an unreadable certificate has it."""
        if principal in self.users:
            return self.users[principal]
        properties = self.properties(principal)
        protocol = get_security_protocol(properties)
        if "SASL" in protocol:
            return properties.get("sasl.username")
        certificate = properties.get("ssl.certificate.location")
        if protocol != "SSL" or certificate is None:
            return ANONYMOUS
        try:
            return parse_subject(Path(certificate).read_bytes())
        except (OSError, SubjectUnreadable):
            return None

    def is_user_certain(self, principal: Principal) -> bool:
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
    """None leaves evidence unsigned."""
    evidence_copy: str | None = None
    """Folder or Spark URL for a copy of each bundle."""
    sets: Mapping[str, MirrorSet] = field(default_factory=dict)
    expectations: object = field(default_factory=dict)
    """Section or path; unchecked, because a mistake here must stop neither copying nor a failover."""

    def cluster(self, name: str) -> ClusterConfig:
        try:
            return self.clusters[ClusterName(name)]
        except KeyError:
            known = ", ".join(sorted(self.clusters)) or "none"
            raise BadRequest(f"unknown cluster {name!r}: {self.path} knows {known}") from None

    def pinned_cluster(self, identity: ClusterIdentity) -> ClusterConfig:
        return replace(self.cluster(identity.name), pinned_id=identity.id)

    def hooks(self, mirror: MirrorName) -> tuple[Hook, ...]:
        return get_for_mirror(self.mirrors.switch_hooks, mirror, ())

    def consistency_groups(self, mirror: MirrorName) -> tuple[tuple[str, ...], ...]:
        """Topics by group."""
        return get_for_mirror(self.mirrors.consistency_groups, mirror, ())

    def owner(self, mirror: MirrorName) -> str:
        """Contact for the mirror and its reverse mirror; may be empty."""
        return self.mirrors.get_owner(mirror)

    def rto_s(self, mirror: MirrorName) -> float | None:
        """How long a failover, in either direction, may leave applications without writes."""
        rto_ms = get_for_mirror(self.mirrors.rtos_ms, mirror, None)
        return None if rto_ms is None else rto_ms / 1_000

    def health_command(self, mirror: MirrorName) -> Hook | None:
        """Exit code 0: the application is well on the active cluster."""
        return get_for_mirror(self.mirrors.health_commands, mirror, None)

    def deletion_hold_ms(self, mirror: MirrorName) -> int:
        """For at least so long the destination keeps what the source deletes."""
        return get_for_mirror(self.mirrors.deletion_holds_ms, mirror, 0)

    def resolve_references(self, where: str, text: str) -> str:
        """Values may be secrets. BadRequest for a dangling reference."""
        return _REFERENCE.sub(lambda match: _resolve_reference(self.path, where, match), text)


class _FollowedProperties(Mapping[str, str]):
    """Resolved again when a referenced file changes. While a file is unusable, the old values stay."""

    def __init__(self, path: Path, texts: Mapping[str, tuple[str, str]]) -> None:
        self._path, self._texts = path, texts
        self._files = [
            _resolve_source(path, argument) for _, text in texts.values() for argument in _FILE.findall(text)
        ]
        self._versions = self._file_versions()
        self._values = self._resolve_all()

    def _resolve_all(self) -> dict[str, str]:
        return {
            key: _REFERENCE.sub(partial(_resolve_reference, self._path, where), text)
            for key, (where, text) in self._texts.items()
        }

    def _file_versions(self) -> list[tuple[int, int, int] | None]:
        return [_file_version(file) for file in self._files]

    def _current_values(self) -> dict[str, str]:
        if self._files and (versions := self._file_versions()) != self._versions:
            self._versions = versions
            try:
                self._values = self._resolve_all()
            except BadRequest as error:
                _log.warning("goes on with what was read before: %s", error)
        return self._values

    def __or__(self, other: _FollowedProperties) -> _FollowedProperties:
        return _FollowedProperties(self._path, {**self._texts, **other._texts})

    def __getitem__(self, key: str) -> str:
        return self._current_values()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._current_values())

    def __len__(self) -> int:
        return len(self._texts)


def _file_version(file: Path) -> tuple[int, int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def parse_addresses(text: str, where: str) -> tuple[tuple[str, int], ...]:
    """`where` begins error messages."""
    parsed = []
    for server in text.split(","):
        host, colon, port = server.strip().rpartition(":")
        ipv6_host = host[1:-1] if host.startswith("[") and host.endswith("]") else ""
        if not colon or not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
            raise BadRequest(f"{where}: {server.strip()!r} is not host:port")
        if not ipv6_host and set(":[]") & set(host):
            raise BadRequest(f"{where}: {server.strip()!r}: write an IPv6 address in brackets, such as [::1]:9092")
        parsed.append((ipv6_host or host, int(port)))
    return tuple(parsed)


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


def register_config_text(path: Path, text: str) -> None:
    """For a path that is on no disk: the text may hold secrets. Relative paths start at the path's folder."""
    _IN_MEMORY_CONFIGS[path] = text


class _DuplicateKey(yaml.MarkedYAMLError):
    def __init__(self, key: str, mark: yaml.Mark | None) -> None:
        super().__init__(problem_mark=mark)
        self.key = key


class _UniqueKeyLoader(yaml.SafeLoader):
    """YAML would let the second of two equal keys win."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = set[str]()
        for key_node, _ in node.value:
            if isinstance(key_node, yaml.ScalarNode) and key_node.value != "<<":
                if key_node.value in keys:
                    raise _DuplicateKey(key_node.value, key_node.start_mark)
                keys.add(key_node.value)
        return super().construct_mapping(node, deep)


def load_config(path: Path, *, only_principal: Principal | None = None) -> Config:
    """`only_principal`: the other's secrets are not followed and need not exist.

    DATA is for executors; CONTROL for read-only commands.
    """
    try:
        text = _IN_MEMORY_CONFIGS.get(path)
        if text is None:
            _check_not_world_writable(path)
        document = yaml.load(path.read_text(encoding="utf-8") if text is None else text, _UniqueKeyLoader)
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(f"{path}: cannot be read: {error}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}" if mark else ""
        reason = f"key {error.key!r} occurs twice" if isinstance(error, _DuplicateKey) else "not valid YAML"
        raise BadRequest(f"{path}{where}: {reason}") from None
    clusters = document.get("clusters") if isinstance(document, dict) else None
    if not isinstance(clusters, dict) or not clusters:
        raise BadRequest(f"{path}: needs a mapping `clusters:` of name to client properties")
    for key in document:
        if key not in _KNOWN_SECTIONS:
            raise BadRequest(f"{path}: there is no section `{key}:`{format_suggestion(str(key), _KNOWN_SECTIONS)}")
    return Config(
        path,
        {
            ClusterName(str(name)): _parse_cluster(path, str(name), raw, only_principal)
            for name, raw in clusters.items()
        },
        mirrors=parse_mirror_sections(str(path), document.get("mirrors", {})),
        **_parse_evidence(path, document.get("evidence", {})),
        sets=parse_sets(f"{path}: sets", document.get("sets", {})),
        expectations=_resolve_expectations(path, document.get("expectations", {})),
    )


def _check_not_world_writable(path: Path) -> None:
    """A user who can write the file can redirect passwords."""
    if path.stat().st_mode & stat.S_IWOTH:
        raise BadRequest(
            f"{path}: every user of this machine can change it, and with it where passwords are sent: chmod o-w {path}"
        )


def _resolve_expectations(path: Path, section: object) -> object:
    return path.parent / section if isinstance(section, str) else section


def _parse_evidence(path: Path, section: object) -> dict[str, Any]:
    known = {"signing_key", "copy_to"}
    if not isinstance(section, dict) or section.keys() - known:
        raise BadRequest(f"{path}: `evidence:` must be a mapping with the keys {', '.join(sorted(known))}")
    for key, value in section.items():
        if not isinstance(value, str) or not value:
            expected = "the path of a file" if key == "signing_key" else "a folder or a URL"
            raise BadRequest(f"{path}: evidence.{key}: must be {expected}")
        if has_password(value):
            raise BadRequest(f"{path}: evidence.{key}: its URL {PASSWORD_ADVICE}")
    key, copy_to = section.get("signing_key"), section.get("copy_to")
    return {
        "signing_key": None if key is None else path.parent / key,
        "evidence_copy": copy_to if copy_to is None or "://" in copy_to else str(path.parent / copy_to),
    }


def _parse_cluster(path: Path, name: str, section: object, only_principal: Principal | None) -> ClusterConfig:
    where = f"{path}: clusters.{name}"
    if not isinstance(section, dict):
        raise BadRequest(f"{where}: must be a mapping of client properties")
    overrides = section.pop("data", {})
    if not isinstance(overrides, dict):
        raise BadRequest(f"{where}.data: must be a mapping of client properties of the data principal")
    for entry in (key for key in AUTHORIZER_KEYS if key in overrides):
        raise BadRequest(
            f"{where}.data.{entry}: is the cluster's, not its data principal's: write it to {where}.{entry}"
        )
    ruling = parse_authorizer_config(where, section)
    control_user, data_user = _parse_user(path, where, section), _parse_user(path, f"{where}.data", overrides)
    only_data, only_control = only_principal is Principal.DATA, only_principal is Principal.CONTROL
    control = _parse_properties(path, where, {k: v for k, v in section.items() if not (only_data and k in overrides)})
    data_overrides = _parse_properties(
        path, f"{where}.data", {k: v for k, v in overrides.items() if not only_control or k in _LOGIN_PROPERTIES}
    )
    data_properties = control | data_overrides
    check_property_names(where, data_properties)
    if not (data_properties if only_data else control).get("bootstrap.servers"):
        raise BadRequest(f"{where}: bootstrap.servers is missing")
    if not only_data:
        _check_connection_properties(where, control)
    if not only_control and data_overrides:
        _check_connection_properties(f"{where}.data", data_properties)
    if data_user is None and not data_overrides.keys() & _LOGIN_PROPERTIES:
        data_user = control_user  # same login as the control principal
    users = {Principal.CONTROL: control_user, Principal.DATA: data_user}
    return ClusterConfig(
        ClusterName(name),
        data_properties if only_data else control,
        data_properties,
        {p: user for p, user in users.items() if user is not None},
        ruling,
        has_data_login=not (only_control and overrides),
    )


def _check_connection_properties(where: str, properties: Mapping[str, str]) -> None:
    parse_addresses(properties["bootstrap.servers"], f"{where}.bootstrap.servers")
    check_login_properties(where, properties)


def check_login_properties(where: str, properties: Mapping[str, str]) -> None:
    """Raises BadRequest."""
    protocol = get_security_protocol(properties)
    if protocol not in SECURITY_PROTOCOLS:
        raise BadRequest(f"{where}.security.protocol: {_explain_choice(protocol, SECURITY_PROTOCOLS)}")
    mechanism = get_sasl_mechanism(properties)
    if protocol.startswith("SASL") and mechanism not in SASL_MECHANISMS:
        raise BadRequest(f"{where}.sasl.mechanism: {_explain_choice(mechanism, SASL_MECHANISMS)}")


def _explain_choice(value: str, choices: Sequence[str]) -> str:
    problem = f"{value!r} is none of" if value else "missing: give one of"
    return f"{problem} {', '.join(choices)}{format_suggestion(value, choices)}"


def get_security_protocol(properties: Mapping[str, str]) -> str:
    return properties.get("security.protocol", "PLAINTEXT").upper()


def get_sasl_mechanism(properties: Mapping[str, str]) -> str:
    return properties.get("sasl.mechanism", properties.get("sasl.mechanisms", "")).upper()


_LOGIN_PROPERTIES: Final = frozenset({"security.protocol", "sasl.username", "ssl.certificate.location"})


def _parse_user(path: Path, where: str, section: dict[object, object]) -> str | None:
    if "principal" not in section:
        return None
    principal = _parse_properties(path, where, {"principal": section.pop("principal")})["principal"]
    if not principal.startswith(_USER_PREFIX) or principal == _USER_PREFIX:
        raise BadRequest(f"{where}.principal: {principal!r} is not as Kafka names principals: User:NAME")
    return principal.removeprefix(_USER_PREFIX)


def _parse_properties(path: Path, where: str, section: Mapping[object, object]) -> _FollowedProperties:
    properties = {}
    for key, value in section.items():
        if isinstance(value, bool):
            value = str(value).lower()
        if not isinstance(value, str | int | float):
            raise BadRequest(f"{where}.{key}: must be a single value")
        if _BARE_REFERENCE.search(str(value)):
            raise BadRequest(
                f"{where}.{key}: a reference is written ${{env:NAME}} or ${{file:PATH:KEY}}, not ${{NAME}}; a value"
                " that is really written so goes into such a file"
            )
        properties[str(key)] = f"{where}.{key}", str(value)
    return _FollowedProperties(path, properties)


def _resolve_source(path: Path, argument: str) -> Path:
    return (path.parent / argument.rpartition(":")[0]).absolute()


def _resolve_reference(path: Path, where: str, match: re.Match[str]) -> str:
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
    source = _resolve_source(path, argument)
    try:
        _check_not_world_writable(source)
        lines = source.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = (
            error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        )  # never the text: it may hold the secret
        raise BadRequest(f"{where}: {source} cannot be read: {reason}") from None
    for line in lines:
        name, equals, value = line.partition("=")
        if equals and name.strip() == key:
            return value.strip()
    raise BadRequest(f"{where}: {source} has no key {key}")
