"""mirrorbook.yaml and the commands that follow from mm2.properties; a finding for each thing that has no counterpart.

No secret is in the result: one of the file's own references stays, everything else becomes an environment variable.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

import yaml

from mirror_core.decide.topic_settings import ALWAYS_SYNCED_KEYS, parse_replication_factor
from mirror_core.kafka.config import SASL_MECHANISMS, parse_addresses
from mirror_core.model.errors import BadRequest
from mirror_core.model.findings import Finding
from mirror_core.model.names import compile_name_pattern, is_reverse_mirror
from mirror_core.model.text import format_option, format_shell_command
from mirrorbook_tools.mirrormaker.java_properties import Property
from mirrorbook_tools.mirrormaker.mm2_config import Mm2Config, Mm2Flow, split_list

DEFAULT_TOPICS_EXCLUDE: Final = (r".*[\-\.]internal", r".*\.replica", "__.*")
DEFAULT_GROUPS_EXCLUDE: Final = ("console-consumer-.*", "connect-.*", "__.*")
_INNER_TOPICS: Final = (r"(.*\.)?heartbeats", r"mm2-.*", r".*[\-\.]internal")
"""MirrorMaker's own, and Kafka Connect's."""
_REFERENCE: Final = re.compile(r"\$\{([\w.-]{1,100}):([^}]{0,1000})\}")
_LOGIN_VALUE: Final = re.compile(r'(\w+)\s*=\s*("(?:[^"\\]|\\.)*"|[^\s;]+)')
_FILE_PROVIDER: Final = "FileConfigProvider"
_ENVIRONMENT_PROVIDER: Final = "EnvVarConfigProvider"
_FOLLOWED_NAMES: Final[Mapping[str, str]] = {_FILE_PROVIDER: "file", _ENVIRONMENT_PROVIDER: "env"}
_KEY: Final = re.compile(r"[a-zA-Z0-9._>-]+")
_PEM: Final = "PEM"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mm2Conversion:
    configuration: str
    """YAML."""
    commands: Mapping[Mm2Flow, tuple[str, ...]]
    differences: tuple[Finding, ...]
    settings: tuple[Finding, ...]
    """Without a counterpart, or to be completed by hand. Their subjects are the file's keys."""


def convert(config: Mm2Config) -> Mm2Conversion:
    """Raises BadRequest."""
    clusters = dict.fromkeys(name for flow in config.flows for name in (flow.source, flow.target))
    logins = [_ClusterConversion(config, cluster) for cluster in clusters]
    document = {"clusters": {login.cluster: login.convert() for login in logins}}
    return Mm2Conversion(
        configuration=yaml.safe_dump(document, sort_keys=False, allow_unicode=False, width=10_000),
        commands={flow: tuple(_list_commands(config, flow)) for flow in config.flows},
        differences=tuple(_list_differences(config)),
        settings=tuple(
            sorted(
                (*(finding for login in logins for finding in login.findings), *_list_settings(config)),
                key=lambda finding: (int(str(finding.values["line"])), finding.code),
            )
        ),
    )


def choose_mirror_name(flow: Mm2Flow) -> str:
    name = f"{flow.source}-to-{flow.target}"[:63]
    return f"{name[:56]}-mirror" if is_reverse_mirror(name) else name


@dataclass(slots=True)
class _ClusterConversion:
    """One cluster's client properties, as librdkafka calls them."""

    config: Mm2Config
    cluster: str
    findings: list[Finding] = field(default_factory=list)
    _properties: dict[str, Property] = field(init=False)

    def __post_init__(self) -> None:
        self._properties = self.config.cluster_properties(self.cluster)

    def convert(self) -> dict[str, str]:
        bootstrap = self._properties.get("bootstrap.servers")
        if bootstrap is None or not bootstrap.value.strip():
            raise BadRequest(
                f"{self.config.path}: cluster {self.cluster}: `{self.cluster}.bootstrap.servers` is missing"
            )
        servers = ",".join(split_list(bootstrap.value))
        if not _REFERENCE.search(servers):
            parse_addresses(servers, f"{self.config.path} line {bootstrap.line}: {bootstrap.key}")
        converted = {"bootstrap.servers": self._convert_references(bootstrap, servers)}
        for key, one in sorted(self._properties.items()):
            if key in _CLUSTER_RULES:
                converted |= _CLUSTER_RULES[key](self, one)
            elif key.startswith(("ssl.", "sasl.", "security.")):
                self.findings.append(Finding("mm2_security_setting", one.key, line=one.line))
        return converted

    def keep(self, one: Property, name: str = "") -> dict[str, str]:
        return {name or self._bare_key(one): self._convert_references(one, one.value.strip())}

    def drop(self, one: Property) -> dict[str, str]:
        return {}

    def convert_mechanism(self, one: Property) -> dict[str, str]:
        if not _REFERENCE.search(one.value) and one.value.strip().upper() not in SASL_MECHANISMS:
            self.findings.append(Finding("mm2_login_unsupported", one.key, line=one.line, mechanisms=SASL_MECHANISMS))
        return self.keep(one)

    def convert_login(self, one: Property) -> dict[str, str]:
        options = {name: value.strip('"') for name, value in _LOGIN_VALUE.findall(one.value)}
        user = options.get("username")
        username = (
            self._leave_secret(one, "USERNAME") if user is None else self._convert_references(one, user, "USERNAME")
        )
        if user is not None and not _REFERENCE.search(user):
            self.findings.append(Finding("mm2_login_shared", one.key, line=one.line, user=user))
        return {"sasl.username": username, "sasl.password": self._convert_secret(one, options.get("password", ""))}

    def convert_truststore(self, one: Property) -> dict[str, str]:
        if self._is_pem("ssl.truststore.type"):
            return self.keep(one, "ssl.ca.location")
        return {"ssl.ca.location": self._need_pem(one, "ca")}

    def convert_certificates(self, one: Property) -> dict[str, str]:
        return {"ssl.ca.location": self._need_pem(one, "ca")}

    def convert_keystore(self, one: Property) -> dict[str, str]:
        if not self._is_pem("ssl.keystore.type"):
            return dict.fromkeys(("ssl.certificate.location", "ssl.key.location"), self._need_pem(one, "client"))
        kept = self.keep(one, "ssl.certificate.location")
        return {**kept, "ssl.key.location": kept["ssl.certificate.location"]}

    def _need_pem(self, one: Property, content: str) -> str:
        file = f"{self.cluster}-{content}.pem"
        self.findings.append(Finding("mm2_store_format", one.key, line=one.line, file=file))
        return file

    def convert_key_password(self, one: Property) -> dict[str, str]:
        return {"ssl.key.password": self._convert_secret(one, one.value.strip(), "KEY_PASSWORD")}

    def convert_host_check(self, one: Property) -> dict[str, str]:
        return {"ssl.endpoint.identification.algorithm": one.value.strip() or "none"}

    def _is_pem(self, key: str) -> bool:
        return key in self._properties and self._properties[key].value.strip().upper() == _PEM

    def _bare_key(self, one: Property) -> str:
        return one.key.removeprefix(f"{self.cluster}.")

    def _leave_secret(self, one: Property, suffix: str) -> str:
        variable = f"{re.sub(r'[^A-Z0-9]', '_', self.cluster.upper())}_{suffix}"
        self.findings.append(Finding("mm2_secret_left", one.key, line=one.line, variable=variable))
        return f"${{env:{variable}}}"

    def _convert_secret(self, one: Property, value: str, suffix: str = "PASSWORD") -> str:
        """Only a value that is one followed reference stays."""
        whole = _REFERENCE.fullmatch(value)
        converted = self._convert_reference(whole) if whole else None
        return converted or self._leave_secret(one, suffix)

    def _convert_references(self, one: Property, value: str, suffix: str = "") -> str:
        references = list(_REFERENCE.finditer(value))
        if any(self._convert_reference(match) is None for match in references):
            return self._leave_secret(one, suffix or re.sub(r"[^A-Z0-9]", "_", self._bare_key(one).upper()))
        return _REFERENCE.sub(lambda match: self._convert_reference(match) or "", value)

    def _convert_reference(self, match: re.Match[str]) -> str | None:
        """As mirrorbook.yaml writes it; None: Mirrorbook does not follow it."""
        provider, argument = match.groups()
        declared = self.config.properties.get(f"config.providers.{provider}.class")
        kind = _FOLLOWED_NAMES.get(declared.value.strip().rpartition(".")[2]) if declared else None
        path, _, key = argument.rpartition(":")
        if kind == "env":
            return f"${{env:{key}}}"
        return f"${{file:{argument}}}" if kind == "file" and path else None


_Rule = Callable[[_ClusterConversion, Property], dict[str, str]]
_CLUSTER_RULES: Final[Mapping[str, _Rule]] = MappingProxyType(
    {
        "security.protocol": _ClusterConversion.keep,
        "sasl.mechanism": _ClusterConversion.convert_mechanism,
        "sasl.jaas.config": _ClusterConversion.convert_login,
        "ssl.truststore.location": _ClusterConversion.convert_truststore,
        "ssl.truststore.certificates": _ClusterConversion.convert_certificates,
        "ssl.truststore.password": _ClusterConversion.drop,
        "ssl.truststore.type": _ClusterConversion.drop,
        "ssl.keystore.location": _ClusterConversion.convert_keystore,
        "ssl.keystore.password": _ClusterConversion.drop,
        "ssl.keystore.type": _ClusterConversion.drop,
        "ssl.key.password": _ClusterConversion.convert_key_password,
        "ssl.endpoint.identification.algorithm": _ClusterConversion.convert_host_check,
    }
)


def _list_commands(config: Mm2Config, flow: Mm2Flow) -> Iterator[str]:
    name = choose_mirror_name(flow)
    create = (
        *("mirrorbook", "mirror", "create", name, "--source", flow.source, "--destination", flow.target),
        *(word for expression in config.expressions(flow, "topics", (".*",)) for word in ("--topics", expression)),
        *(word for expression in list_excluded_topics(config, flow) for word in ("--exclude-topics", expression)),
        *_list_group_options(config, flow),
        *(() if config.is_on(flow, "sync.topic.acls.enabled", default=True) else ("--exclude-principals", ".*")),
        *(word for expression in _list_excluded_settings(config, flow) for word in ("--exclude-settings", expression)),
        *_list_replication_options(config.setting(flow, "replication.factor")),
    )
    yield format_shell_command("mirrorbook", "cluster", "check", flow.source)
    yield format_shell_command("mirrorbook", "cluster", "check", flow.target)
    yield format_shell_command(*create, "--dry-run")
    yield format_shell_command(*create)
    yield format_shell_command("mirrorbook", "mirror", "start", name)
    yield format_shell_command("mirrorbook", "supervise", name)
    names = config.names(flow)
    if names.prefix and not names.is_custom:
        path = format_option("--flow", str(flow))
        yield format_shell_command("mirrorbook", "import", "mm2-offsets", name, str(config.path), *path)


def list_excluded_topics(config: Mm2Config, flow: Mm2Flow) -> tuple[str, ...]:
    """MirrorMaker's exclusions, its own topics, and what it has copied from the target to the source."""
    back = config.names(Mm2Flow(flow.target, flow.source)).prefix
    came_back = (f"{re.escape(back)}.*",) if back else ()
    given = config.expressions(flow, "topics.exclude", DEFAULT_TOPICS_EXCLUDE)
    return tuple(dict.fromkeys((*given, *_INNER_TOPICS, *came_back)))


def _list_group_options(config: Mm2Config, flow: Mm2Flow) -> Iterator[str]:
    if not config.is_on(flow, "emit.checkpoints.enabled", default=True):
        yield from ("--groups", "")
        return
    for expression in config.expressions(flow, "groups", (".*",)) or ("",):
        yield from ("--groups", expression)
    for expression in config.expressions(flow, "groups.exclude", DEFAULT_GROUPS_EXCLUDE):
        yield from ("--exclude-groups", expression)


def _list_excluded_settings(config: Mm2Config, flow: Mm2Flow) -> tuple[str, ...]:
    if not config.is_on(flow, "sync.topic.configs.enabled", default=True):
        return (".*",)
    given = config.expressions(flow, "config.properties.exclude", ())
    return tuple(expression for expression in given if not _is_always_synced(expression))


def _is_always_synced(expression: str) -> bool:
    return expression.replace("\\", "") in ALWAYS_SYNCED_KEYS


def _list_replication_options(given: Property | None) -> tuple[str, ...]:
    """None where Mirrorbook has no such number."""
    if given is None:
        return ()
    policy = "default" if given.value.strip() == "-1" else given.value.strip()
    try:
        parse_replication_factor(policy, 1)
    except BadRequest:
        return ()
    return ("--replication-factor", policy)


def _list_differences(config: Mm2Config) -> Iterator[Finding]:
    for flow in config.flows:
        names = config.names(flow)
        if names.is_custom:
            yield Finding("mm2_names_unknown", flow)
        elif names.prefix:
            yield Finding("mm2_names_change", flow, prefix=names.prefix, destination=flow.target)
        else:
            yield Finding("mm2_names_stay", flow, destination=flow.target)
        yield Finding("mm2_offsets_equal", flow, source=flow.source, destination=flow.target)
        if config.is_on(flow, "sync.topic.acls.enabled", default=True):
            yield Finding("mm2_rights_follow", flow, destination=flow.target)
        else:
            yield Finding("mm2_rights_stay_out", flow, destination=flow.target)
        if not config.is_on(flow, "emit.checkpoints.enabled", default=True):
            yield Finding("mm2_groups_left_out", flow)
        exactly_once = config.setting(flow, "exactly.once.source.support") or config.properties.get(
            f"{flow.target}.exactly.once.source.support"
        )
        is_enabled = exactly_once is not None and exactly_once.value.strip().lower() == "enabled"
        yield Finding("mm2_exactly_once", flow, destination=flow.target, transactional=is_enabled)
        if not _reads_committed(config, flow):
            yield Finding("mm2_aborted_records", flow, destination=flow.target)
        back = Mm2Flow(flow.target, flow.source)
        if back in config.flows and flow < back:
            yield Finding("mm2_both_directions", flow, clusters=(flow.source, flow.target))


def _reads_committed(config: Mm2Config, flow: Mm2Flow) -> bool:
    keys = (f"{flow}.source.consumer.isolation.level", f"{flow.source}.consumer.isolation.level")
    given = [config.properties[key].value.strip() for key in keys if key in config.properties]
    return given[:1] == ["read_committed"]


_CONVERTED: Final = frozenset(
    {
        *("enabled", "topics", "topics.exclude", "topics.blacklist", "groups", "groups.exclude", "groups.blacklist"),
        *("replication.policy.class", "replication.policy.separator", "sync.topic.acls.enabled"),
        *("replication.policy.internal.topic.separator.enabled", "emit.checkpoints.enabled"),
        *("sync.topic.configs.enabled", "config.properties.exclude", "config.properties.blacklist"),
        *("sync.group.offsets.enabled", "exactly.once.source.support", "offset-syncs.topic.location", "clusters"),
        *("source.cluster.alias", "target.cluster.alias", "name"),
    }
)
"""They have a counterpart, or a difference of their own."""

_LOGIN: Final = ("bootstrap.", "security.", "sasl.", "ssl.")
"""`_ClusterConversion` deals with them."""
_EXCLUDED_SETTINGS: Final = ("config.properties.exclude", "config.properties.blacklist")
_FILTERS: Final = ("topics", "topics.exclude", "groups", "groups.exclude", *_EXCLUDED_SETTINGS)
_TRANSFORMING: Final = ("transforms", "predicates", "key.converter", "value.converter", "header.converter")
_CLIENTS: Final = ("consumer.", "producer.", "admin.", "client.", "bootstrap.", "security.", "sasl.", "ssl.")
_INNER_WORK: Final = ("checkpoints.", "heartbeats.", "offset-syncs.", "emit.", "offset.lag.", "sync.group.", "refresh.")
_WORKER: Final = (
    *("tasks.max", "task.", "worker.", "group.id", "connector.", "plugin.", "listeners", "rest.", "errors."),
    *("offset.storage.", "config.storage.", "status.storage.", "offset.flush.", "dedicated.mode.", "scheduled."),
    *("exactly.once.", "transaction.boundary", "topic.creation.", "internal.", "rebalance.", "session."),
)
_METRICS: Final = ("metric.", "metrics.", "auto.include.jmx")


def _list_settings(config: Mm2Config) -> Iterator[Finding]:
    for one in config.repeated:
        yield Finding("mm2_repeated", _find_safe_key(one), line=one.line)
    for key, one in config.properties.items():
        owner, name = config.split_key(key)
        is_login = not isinstance(owner, Mm2Flow) and name.startswith(_LOGIN)
        is_converted = name in _CONVERTED or (name == "replication.factor" and _list_replication_options(one))
        if not (is_login or is_converted or _is_followed_provider(one, name)):
            yield _explain_setting(one, name)
        if name in _FILTERS:
            yield from _check_expressions(one)
        if name in _EXCLUDED_SETTINGS:
            needed = filter(_is_always_synced, split_list(one.value))
            yield from (Finding("mm2_setting_needed", one.key, line=one.line, expression=e) for e in needed)


def _is_followed_provider(one: Property, name: str) -> bool:
    is_followed = one.value.strip().rpartition(".")[2] in _FOLLOWED_NAMES
    return name == "config.providers" or (name.startswith("config.providers.") and is_followed)


def _explain_setting(one: Property, name: str) -> Finding:
    if name == "replication.factor":
        return Finding("mm2_replication_factor", one.key, line=one.line)
    if name == "use.defaults.from":
        return Finding("mm2_settings_sync", one.key, line=one.line)
    if name.endswith(".interval.seconds"):
        return Finding("mm2_interval", one.key, line=one.line)
    if name.endswith((".filter.class", "forwarding.admin.class")):
        return Finding("mm2_own_class", one.key, line=one.line)
    if name.startswith("config.providers"):
        return Finding("mm2_reference_provider", one.key, line=one.line)
    if name.startswith(_TRANSFORMING):
        return Finding("mm2_transformation", one.key, line=one.line)
    if name.startswith(_CLIENTS):
        return Finding("mm2_client_tuning", one.key, line=one.line)
    if name.startswith(_INNER_WORK):
        return Finding("mm2_inner_work", one.key, line=one.line)
    if name.startswith(_METRICS):
        return Finding("mm2_metrics", one.key, line=one.line)
    if name.startswith(_WORKER):
        return Finding("mm2_worker", one.key, line=one.line)
    return Finding("mm2_unknown", _find_safe_key(one), line=one.line)


def _find_safe_key(one: Property) -> str:
    """Empty for what may be a secret that stands on a line of its own, and is no key."""
    return one.key if one.value and "." in one.key and _KEY.fullmatch(one.key) else ""


def _check_expressions(one: Property) -> Iterator[Finding]:
    for expression in split_list(one.value):
        try:
            compile_name_pattern(one.key, expression)
        except BadRequest:
            yield Finding("mm2_expression", one.key, line=one.line, expression=expression)
