"""Connections of type `kafka_cluster` (or `kafka`), and the mirrorbook.yaml that is made of them.

It stays in this process's memory: passwords reach no file, XCom, log or environment.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import yaml
from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from mirror_core.model.config_sections import ALL_FROM_PREFIX, AUTHORIZER_KEYS, parse_mirror_sections, parse_sets
from mirror_core.model.errors import BadRequest, MirrorError
from mirror_core.model.names import MirrorName
from mirror_core.model.text import format_suggestion
from mirrorbook_airflow import kafka_type

_EXTRA_KEYS: Final = (
    "security_protocol",
    "sasl_mechanism",
    "ssl_ca_location",
    "ssl_certificate_location",
    "ssl_key_location",
    "ssl_key_password",
    "ssl_endpoint_identification_algorithm",
    "principal",
)
_DATA_EXTRA_KEYS: Final = ("data_username", "data_password")
_SAFE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}")
_SECTIONS: Final = frozenset({"clusters", "mirrors", "evidence", "expectations", "sets"})
_REFERENCE: Final = re.compile(r"\$\{(env|file):")
_log = logging.getLogger(__name__)
_unusable_by_config: dict[Path | None, dict[str, str]] = {}
"""By the path of a configuration, as it was made last in this process."""


class KafkaClusterHook(BaseHook):
    """One cluster, named by its connection id."""

    conn_name_attr = "kafka_conn_id"
    default_conn_name = "kafka_cluster_default"
    conn_type = "kafka_cluster"
    hook_name = "Kafka cluster (Mirrorbook)"

    def __init__(self, kafka_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.kafka_conn_id = kafka_conn_id

    def make_cluster_entry(self) -> dict[str, Any]:
        """This cluster's entry of a mirrorbook.yaml, with passwords: not for logs. Raises BadRequest."""
        connection = self.get_connection(self.kafka_conn_id)
        extra = {key: _format_value(value) for key, value in connection.extra_dejson.items() if value not in (None, "")}
        if connection.conn_type == kafka_type.CONN_TYPE:
            control, data = kafka_type.split_properties(self.kafka_conn_id, extra)
        elif connection.conn_type == self.conn_type:
            known = (*_EXTRA_KEYS, *_DATA_EXTRA_KEYS)
            if unknown := sorted(extra.keys() - set(known)):
                what = f"{unknown[0]}, which is not known{format_suggestion(unknown[0], known)}"
                raise BadRequest(f"connection {self.kafka_conn_id}: its extra has {what}")
            control = {
                "bootstrap.servers": connection.host or "",
                "sasl.username": connection.login or "",
                "sasl.password": connection.password or "",
                **{key.replace("_", "."): extra[key] for key in _EXTRA_KEYS if key in extra},
            }
            data = {f"sasl.{key.removeprefix('data_')}": extra.get(key, "") for key in _DATA_EXTRA_KEYS}
        else:
            raise BadRequest(
                f"connection {self.kafka_conn_id} is of type {connection.conn_type}, not {self.conn_type} (nor "
                f"{kafka_type.CONN_TYPE}): change its type, or name another one"
            )
        if not control.get("bootstrap.servers"):
            raise BadRequest(f"connection {self.kafka_conn_id}: the bootstrap servers are missing")
        for key, value in (*control.items(), *data.items()):
            if _REFERENCE.search(value):
                # The reader would replace it, and whoever may edit connections could read the workers' environment.
                raise BadRequest(f"connection {self.kafka_conn_id}: {key} must not hold ${{env:...}} or ${{file:...}}")
        return {**_drop_empty(control), "data": _drop_empty(data)}

    def test_connection(self) -> tuple[bool, str]:
        """For the button on the connection's page."""
        from mirror_core.mirrors.preflight import probe_connection

        try:
            document = self.make_cluster_entry()
            del document["data"]
            return True, probe_connection(self.kafka_conn_id, document)
        except MirrorError as error:
            return False, str(error)


def provide_config(name: str, connections: Iterable[str]) -> Path:
    """Keeps a mirrorbook.yaml with these connections and their passwords in memory; the path stands for it."""
    from mirror_core.state.mirror_link import register_config

    path = get_home_folder("config") / f"{_check_name(name)}.yaml (in memory)"  # hooks run in this folder
    register_config(path, _format_config(_read_usable_connections(path, connections), list_unusable_connections(path)))
    return path


def list_unusable_connections(path: Path | None) -> Mapping[str, str]:
    """Reasons by connection id; mirrors that do not need these connections go on."""
    return _unusable_by_config.get(path, {})


def _read_usable_connections(path: Path, connections: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Entries of those connections that can be clusters; BadRequest where none can."""
    entries, failed = dict[str, dict[str, Any]](), dict[str, str]()
    for name in sorted(set(connections)):
        try:
            entries[name] = KafkaClusterHook(name).make_cluster_entry()
        except MirrorError as error:
            failed[name] = str(error)
        except AirflowNotFoundException:
            failed[name] = f"connection {name}: there is no such connection"
        except Exception as error:  # noqa: BLE001 - secrets backends have errors of their own, perhaps with secrets
            failed[name] = f"connection {name} cannot be read: {type(error).__name__}"
    _unusable_by_config[path] = failed
    for reason in failed.values():
        _log.warning("%s", reason)
    if failed and not entries:
        raise BadRequest("; ".join(failed.values()))
    return entries


def _check_name(name: str) -> str:
    if not _SAFE_NAME.fullmatch(name):
        raise BadRequest(f"{name!r} cannot be a mirror's name: letters, digits, dot, dash and underscore only")
    return name


def _format_config(clusters: dict[str, dict[str, Any]], unusable: Mapping[str, str]) -> str:
    document = _read_mirrors_file()
    for connection, authorizer in _parse_authorizers(document.pop("clusters", {})).items():
        if connection in clusters:
            clusters[connection].update(authorizer)
        elif connection not in unusable:
            _refuse_unknown_connection(connection, clusters)
    return yaml.safe_dump({"clusters": clusters, **document}, sort_keys=True)


def _refuse_unknown_connection(connection: str, known_connections: Iterable[str]) -> None:
    try:
        BaseHook.get_connection(connection)
    except AirflowNotFoundException:
        suggestion = format_suggestion(connection, known_connections)
        raise BadRequest(f"mirrors.yaml: clusters.{connection}: there is no such connection{suggestion}") from None


def _parse_authorizers(section: object) -> dict[str, dict[str, Any]]:
    """The authorizer settings of each cluster; all else is in connections."""
    known = ", ".join(AUTHORIZER_KEYS)
    if not isinstance(section, dict) or not all(isinstance(entry, dict) for entry in section.values()):
        raise BadRequest(f"mirrors.yaml: clusters: must be a mapping of connection ids to mappings with {known}")
    for connection, entry_of_cluster in section.items():
        if unknown := sorted(entry_of_cluster.keys() - set(AUTHORIZER_KEYS)):
            raise BadRequest(f"mirrors.yaml: clusters.{connection}.{unknown[0]}: is not known here; known are {known}")
    return section


def _read_mirrors_file() -> dict[str, Any]:
    """What `$AIRFLOW_HOME/mirrorbook/mirrors.yaml` says besides clusters, if there is such a file.

    A file, and no Variable: it names commands and keys that workers use, and references to secrets that they can read.
    """
    path = get_home_folder("config").parent / "mirrors.yaml"
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadRequest(f"{path}: cannot be read: {type(error).__name__}") from None
    if not isinstance(document, dict) or document.keys() - _SECTIONS:
        raise BadRequest(f"{path}: must have no other keys than {', '.join(sorted(_SECTIONS))}")
    if isinstance(expectations_file := document.get("expectations"), str):
        document["expectations"] = str(
            path.parent / expectations_file
        )  # what is written from this lies in another folder
    return document


def find_owners(params: Mapping[str, Any]) -> dict[str, str]:
    """Owners by mirror: of the mirrors of a run's parameters, or of all. Raises BadRequest."""
    document = _read_mirrors_file()
    sections = parse_mirror_sections("mirrors.yaml", document.get("mirrors", {}))
    chosen = [params["mirror"]] if params.get("mirror") else [*(params.get("mirrors") or ())]
    if params.get("set"):
        mirror_set = parse_sets("mirrors.yaml: sets", document.get("sets", {})).get(params["set"])
        all_known = [*sections.owners] if params["set"].startswith(ALL_FROM_PREFIX) else []
        chosen = [*mirror_set.mirrors] if mirror_set else all_known
    elif not chosen:
        chosen = [*sections.owners]
    return {name: owner for name in chosen if (owner := sections.get_owner(MirrorName(name)))}


def get_home_folder(part: str) -> Path:
    """A folder of this Airflow for this user only: `config` (where hooks run), `evidence`."""
    from airflow.configuration import AIRFLOW_HOME

    top = Path(AIRFLOW_HOME) / "mirrorbook"
    top.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = top / part
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _drop_empty(properties: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in properties.items() if value}


def _format_value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
