"""What MirrorMaker 2 is told by mm2.properties, or by one connector's properties: clusters, flows, names of topics."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from mirror_core.model.errors import BadRequest
from mirror_core.model.text import format_suggestion, join_limited
from mirrorbook_tools.mirrormaker.java_properties import Property, read_properties

_ALIAS: Final = re.compile(r"[a-zA-Z0-9._-]+")
"""Part of topic names."""
_MAX_CLUSTERS: Final = 20
_CLIENTS: Final = ("consumer.", "producer.", "admin.")
_SHARED_SECURITY: Final = ("bootstrap.servers", "security.protocol", "security.providers", "sasl.", "ssl.")
"""Without a cluster's alias they hold for each cluster."""
_CONNECTOR_ALIASES: Final = ("source.cluster.alias", "target.cluster.alias")
_IDENTITY_POLICY: Final = "IdentityReplicationPolicy"
_DEFAULT_POLICY: Final = "DefaultReplicationPolicy"
_OLD_NAMES: Final[Mapping[str, str]] = {
    "topics.exclude": "topics.blacklist",
    "groups.exclude": "groups.blacklist",
    "config.properties.exclude": "config.properties.blacklist",
}
"""Before Kafka 3.0; still read until 4.0."""


@dataclass(frozen=True, slots=True, order=True)
class Mm2Flow:
    source: str
    target: str

    def __str__(self) -> str:
        return f"{self.source}->{self.target}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mm2Names:
    """How one flow's topics are called."""

    prefix: str
    """Begins names of copies on the target. Empty: they keep their names."""
    is_custom: bool
    """By a class that is not Kafka's: its names are not known."""
    checkpoints: str
    """Topic on the target."""
    offset_syncs: str
    is_on_target: bool
    """Where the offset-syncs topic is; else on the source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mm2Config:
    path: Path
    properties: Mapping[str, Property]
    """By key. Java takes the last of repeated ones."""
    repeated: tuple[Property, ...]
    """Without effect."""
    clusters: tuple[str, ...]

    @property
    def flows(self) -> tuple[Mm2Flow, ...]:
        """Those that are enabled."""
        flows = (Mm2Flow(source, target) for source in self.clusters for target in self.clusters if source != target)
        return tuple(flow for flow in flows if self.is_on(flow, "enabled", default=False))

    def setting(self, flow: Mm2Flow, name: str) -> Property | None:
        """The flow's own, else the one for all flows."""
        for key in filter(None, (name, _OLD_NAMES.get(name))):
            found = self.properties.get(f"{flow}.{key}") or self.properties.get(key)
            if found is not None:
                return found
        return None

    def is_on(self, flow: Mm2Flow, name: str, *, default: bool) -> bool:
        found = self.setting(flow, name)
        return default if found is None else found.value.strip().lower() == "true"

    def expressions(self, flow: Mm2Flow, name: str, default: tuple[str, ...]) -> tuple[str, ...]:
        """A list of regular expressions."""
        found = self.setting(flow, name)
        return default if found is None else split_list(found.value)

    def names(self, flow: Mm2Flow) -> Mm2Names:
        policy, separator = self.setting(flow, "replication.policy.class"), "."
        kind = policy.value.strip().rpartition(".")[2] if policy else _DEFAULT_POLICY
        if kind != _IDENTITY_POLICY and (given := self.setting(flow, "replication.policy.separator")):
            separator = given.value
        is_separated = self.is_on(flow, "replication.policy.internal.topic.separator.enabled", default=True)
        inner = separator if is_separated else "."
        location = self.setting(flow, "offset-syncs.topic.location")
        is_on_target = location is not None and location.value.strip() == "target"
        other = flow.source if is_on_target else flow.target
        return Mm2Names(
            prefix="" if kind == _IDENTITY_POLICY else flow.source + separator,
            is_custom=kind not in (_IDENTITY_POLICY, _DEFAULT_POLICY),
            checkpoints=f"{flow.source}{inner}checkpoints{inner}internal",
            offset_syncs=f"mm2-offset-syncs{inner}{other}{inner}internal",
            is_on_target=is_on_target,
        )

    def cluster_properties(self, cluster: str) -> dict[str, Property]:
        """A cluster's own, and those of security that hold for all. Without those of single clients."""
        shared = {key: p for key, p in self.properties.items() if key.startswith(_SHARED_SECURITY)}
        own = {key.removeprefix(f"{cluster}."): p for key, p in self.properties.items() if self.owner(key) == cluster}
        return {key: p for key, p in {**shared, **own}.items() if not key.startswith(_CLIENTS)}

    def owner(self, key: str) -> str | None:
        """Cluster whose client property it is."""
        owners = [alias for alias in self.clusters if key.startswith(f"{alias}.")]
        return max(owners, key=len, default=None)

    def split_key(self, key: str) -> tuple[Mm2Flow | str | None, str]:
        """A flow, a cluster or neither, and the rest of the key."""
        for source in self.clusters if "->" in key else ():
            for target in self.clusters:
                if key.startswith(f"{source}->{target}.") and source != target:
                    flow = Mm2Flow(source, target)
                    return flow, key.removeprefix(f"{flow}.")
        owner = self.owner(key)
        return (None, key) if owner is None else (owner, key.removeprefix(f"{owner}."))

    def find_flow(self, given: str | None, source: str, target: str) -> Mm2Flow:
        """The one that is given, else the one of these names, else the only one. Raises BadRequest."""
        flows = {str(flow): flow for flow in self.flows}
        wanted = given or f"{source}->{target}"
        if wanted in flows:
            return flows[wanted]
        if given is None and len(flows) == 1:
            return next(iter(flows.values()))
        raise BadRequest(
            f"{self.path}: no flow {wanted!r} is enabled: give one of these with --flow: {join_limited(flows)}"
            f"{format_suggestion(wanted, flows)}"
        )


def split_list(text: str) -> tuple[str, ...]:
    return tuple(filter(None, (part.strip() for part in text.split(","))))


def read_mm2_config(path: Path) -> Mm2Config:
    """Raises BadRequest, with the line."""
    listed = read_properties(path)
    properties = {one.key: one for one in listed}
    if "clusters" not in properties and properties.keys() >= set(_CONNECTOR_ALIASES):
        properties = {one.key: one for one in _to_dedicated_form(properties)}
    if "clusters" not in properties:
        raise BadRequest(
            f"{path}: has neither `clusters` nor {' and '.join(f'`{key}`' for key in _CONNECTOR_ALIASES)}: give the "
            "properties file of MirrorMaker 2, or of one of its connectors"
        )
    clusters = properties["clusters"]
    aliases = tuple(dict.fromkeys(split_list(clusters.value)))
    where = f"{path} line {clusters.line}"
    for alias in aliases:
        if not _ALIAS.fullmatch(alias):
            raise BadRequest(f"{where}: alias {alias!r}: only letters, digits, dot, hyphen and underscore are allowed")
    if len(aliases) < 2:
        raise BadRequest(f"{where}: names fewer than two clusters, so nothing is copied")
    if len(aliases) > _MAX_CLUSTERS:
        raise BadRequest(f"{where}: names more than {_MAX_CLUSTERS} clusters: leave the flows that you move over")
    config = Mm2Config(
        path=path,
        properties=properties,
        repeated=tuple(_list_repeated(listed)),
        clusters=aliases,
    )
    if not config.flows:
        raise BadRequest(f"{path}: no flow is enabled: there is no `{aliases[0]}->{aliases[1]}.enabled = true`")
    return config


def _list_repeated(listed: Iterable[Property]) -> Iterator[Property]:
    last = {one.key: one for one in listed}
    return (one for one in listed if last[one.key] is not one)


def _to_dedicated_form(connector: Mapping[str, Property]) -> Iterator[Property]:
    """A connector's properties under the keys of mm2.properties."""
    source, target = (connector[key] for key in _CONNECTOR_ALIASES)
    yield replace(source, key="clusters", value=f"{source.value}, {target.value}")
    yield replace(source, key=f"{source.value}->{target.value}.enabled", value="true")
    for one in connector.values():
        for side, alias in (("source.", source.value), ("target.", target.value)):
            inner = one.key.removeprefix(side)
            if inner != one.key and inner.startswith(("cluster.", *_CLIENTS)):
                yield replace(one, key=f"{alias}.{inner.removeprefix('cluster.')}")
                break
        else:
            yield one
