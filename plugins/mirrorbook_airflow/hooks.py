"""Connections of type `kafka_cluster` (or `kafka`), and the private mirrorbook.yaml that is made of them.

A data plane that Airflow starts is a process of its own that opens its configuration by path, so the connections that
it needs are written to `$AIRFLOW_HOME/mirrorbook/`, readable by this user only. Where Airflow starts none, they stay in
this process's memory. They reach no XCom, log or environment.
"""

from __future__ import annotations

import logging
import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import yaml
from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from mirror_core.model.config_sections import AUTHORIZER_KEYS, parse_mirror_sections, parse_sets
from mirror_core.model.errors import BadRequest, MirrorError
from mirror_core.model.names import MirrorName
from mirror_core.model.text import format_suggestion
from mirrorbook_airflow import kafka_type
from mirrorbook_airflow.params import starts_data_planes
from mirrorbook_airflow.secret_files import Passwords

_EXTRA: Final = (
    "security_protocol",
    "sasl_mechanism",
    "ssl_ca_location",
    "ssl_certificate_location",
    "ssl_key_location",
    "ssl_key_password",
    "ssl_endpoint_identification_algorithm",
    "principal",
)
_DATA_EXTRA: Final = ("data_username", "data_password")
_SAFE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}")
_SECTIONS: Final = frozenset({"clusters", "mirrors", "evidence", "expectations", "sets"})
_REFERENCE: Final = re.compile(r"\$\{(env|file):")
_log = logging.getLogger(__name__)
_unusable: dict[Path | None, dict[str, str]] = {}
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

    def document(self) -> dict[str, Any]:
        """This cluster's entry of a mirrorbook.yaml. Holds passwords: not for logs.

        Raises BadRequest when the connection cannot be a cluster.
        """
        connection = self.get_connection(self.kafka_conn_id)
        extra = {key: _text(value) for key, value in connection.extra_dejson.items() if value not in (None, "")}
        if connection.conn_type == kafka_type.CONN_TYPE:
            control, data = kafka_type.properties_of(self.kafka_conn_id, extra)
        elif connection.conn_type == self.conn_type:
            known = (*_EXTRA, *_DATA_EXTRA)
            if unknown := sorted(extra.keys() - set(known)):
                what = f"{unknown[0]}, which is not known{format_suggestion(unknown[0], known)}"
                raise BadRequest(f"connection {self.kafka_conn_id}: its extra has {what}")
            control = {
                "bootstrap.servers": connection.host or "",
                "sasl.username": connection.login or "",
                "sasl.password": connection.password or "",
                **{key.replace("_", "."): extra[key] for key in _EXTRA if key in extra},
            }
            data = {f"sasl.{key.removeprefix('data_')}": extra.get(key, "") for key in _DATA_EXTRA}
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
        return {**_given(control), "data": _given(data)}

    def test_connection(self) -> tuple[bool, str]:
        """For the button on the connection's page."""
        from mirror_core.mirrors.preflight import probe_connection

        try:
            document = self.document()
            del document["data"]
            return True, probe_connection(self.kafka_conn_id, document)
        except MirrorError as error:
            return False, str(error)


def current_config(name: str, connections: Iterable[str]) -> Path:
    """Where this process finds a mirrorbook.yaml with these connections as they are now: on a disk only where a data
    plane that Airflow starts has to open it."""
    return (write_config if starts_data_planes() else hold_in_memory)(name, connections)


def hold_in_memory(name: str, connections: Iterable[str]) -> Path:
    """Keep the configuration in this process, with its passwords; the path that stands for it."""
    from mirror_core.state.mirror_link import register_config

    path = home("config") / f"{_safe(name)}.yaml (in memory)"  # hooks run in this folder
    register_config(path, _text_of(_usable(path, connections), unusable_connections(path)))
    return path


def write_config(name: str, connections: Iterable[str]) -> Path:
    """Write `$AIRFLOW_HOME/mirrorbook/config/<name>.yaml` with these connections, if it is not so yet; its path.

    Their passwords stand in two files of their own (`passwords`).
    """
    path, control = home("config") / f"{_safe(name)}.yaml", home("control") / f"{name}.properties"
    data = path.with_name(f"{name}.data.properties")
    passwords = Passwords(f"../{control.parent.name}/{control.name}", data.name)
    clusters = {
        connection: passwords.taken_out(connection, document)
        for connection, document in _usable(path, connections).items()
    }
    unusable = unusable_connections(path)
    # A data plane has this file: while Airflow cannot tell of a cluster, it goes on with what it was told before.
    for connection, entry in _written_clusters(path).items():
        if connection in unusable:
            clusters[connection] = {key: value for key, value in entry.items() if key not in AUTHORIZER_KEYS}
            passwords.keep_lines(connection, control, data)
    _keep(control, "".join(f"{line}\n" for line in passwords.control))
    _keep(data, "".join(f"{line}\n" for line in passwords.data))
    _keep(path, _text_of(clusters, unusable))
    return path


def unusable_connections(path: Path | None) -> Mapping[str, str]:
    """Connections that are no clusters of this configuration, and why: mirrors that do not need them go on."""
    return _unusable.get(path, {})


def _usable(path: Path, connections: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Entries of those connections that can be clusters; BadRequest where none can."""
    found, failed = dict[str, dict[str, Any]](), dict[str, str]()
    for name in sorted(set(connections)):
        try:
            found[name] = KafkaClusterHook(name).document()
        except MirrorError as error:
            failed[name] = str(error)
        except AirflowNotFoundException:
            failed[name] = f"connection {name}: there is no such connection"
        except Exception as error:  # noqa: BLE001 - secrets backends have errors of their own, perhaps with secrets
            failed[name] = f"connection {name} cannot be read: {type(error).__name__}"
    _unusable[path] = failed
    for reason in failed.values():
        _log.warning("%s", reason)
    if failed and not found:
        raise BadRequest("; ".join(failed.values()))
    return found


def _written_clusters(path: Path) -> dict[str, dict[str, Any]]:
    """Of this file as it is; nothing where there is none."""
    document = yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return dict(document.get("clusters", {}))


def _safe(name: str) -> str:
    if not _SAFE_NAME.fullmatch(name):
        raise BadRequest(f"{name!r} cannot be a mirror's name: letters, digits, dot, dash and underscore only")
    return name


def _text_of(clusters: dict[str, dict[str, Any]], unusable: Mapping[str, str]) -> str:
    """A mirrorbook.yaml with these clusters, and what mirrors.yaml says."""
    document = _switching()
    for connection, ruling in _rulings(document.pop("clusters", {})).items():
        if connection in clusters:
            clusters[connection].update(ruling)
        elif connection not in unusable:
            _refuse_unknown(connection, clusters)
    return yaml.safe_dump({"clusters": clusters, **document}, sort_keys=True)


def _refuse_unknown(connection: str, wanted: Iterable[str]) -> None:
    """A cluster whose commands nobody would call for a typing mistake. One that is only not wanted here is none."""
    try:
        BaseHook.get_connection(connection)
    except AirflowNotFoundException:
        meant = format_suggestion(connection, wanted)
        raise BadRequest(f"mirrors.yaml: clusters.{connection}: there is no such connection{meant}") from None


def _rulings(section: object) -> dict[str, dict[str, Any]]:
    """What mirrors.yaml says of clusters: who rules their access rights. All else of them is in connections."""
    known = ", ".join(AUTHORIZER_KEYS)
    if not isinstance(section, dict) or not all(isinstance(one, dict) for one in section.values()):
        raise BadRequest(f"mirrors.yaml: clusters: must be a mapping of connection ids to mappings with {known}")
    for connection, ruling in section.items():
        if unknown := sorted(ruling.keys() - set(AUTHORIZER_KEYS)):
            raise BadRequest(f"mirrors.yaml: clusters.{connection}.{unknown[0]}: is not known here; known are {known}")
    return section


def _switching() -> dict[str, Any]:
    """What `$AIRFLOW_HOME/mirrorbook/mirrors.yaml` says besides clusters, if there is such a file.

    A file, and no Variable: it names commands and keys that workers use, and references to secrets that they can read.
    """
    path = home("config").parent / "mirrors.yaml"
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadRequest(f"{path}: cannot be read: {type(error).__name__}") from None
    if not isinstance(document, dict) or document.keys() - _SECTIONS:
        raise BadRequest(f"{path}: must have no other keys than {', '.join(sorted(_SECTIONS))}")
    if isinstance(named := document.get("expectations"), str):
        document["expectations"] = str(path.parent / named)  # what is written from this lies in another folder
    return document


def named_owners(given: Mapping[str, Any]) -> dict[str, str]:
    """Whom to call, by mirror, as mirrors.yaml names them: of the mirrors that a run was given, of all where it was
    given none. `given`: its parameters. BadRequest when the file cannot be read."""
    document = _switching()
    named = parse_mirror_sections("mirrors.yaml", document.get("mirrors", {}))
    chosen = [given["mirror"]] if given.get("mirror") else [*(given.get("mirrors") or ())]
    if given.get("set"):
        found = parse_sets("mirrors.yaml: sets", document.get("sets", {})).get(given["set"])
        chosen = [*found.mirrors] if found else []
    elif not chosen:
        chosen = [*named.owners]
    return {name: owner for name in chosen if (owner := named.get_owner(MirrorName(name)))}


def home(part: str) -> Path:
    """A folder of this Airflow for this user only: `config`, `control` (passwords), `data-plane` (supervisors and their
    logs), `evidence`."""
    from airflow.configuration import AIRFLOW_HOME

    top = Path(AIRFLOW_HOME) / "mirrorbook"
    top.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = top / part
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _given(properties: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in properties.items() if value}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _keep(path: Path, content: str) -> None:
    """Have this content in the file, untouched if it is so; no file for nothing."""
    if not content:
        path.unlink(missing_ok=True)
    elif not path.is_file() or path.read_text(encoding="utf-8") != content:
        _write_private(path, content)


def _write_private(path: Path, content: str) -> None:
    """Whole or not at all: a data plane may be opening it at this moment."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # created with mode 0600
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
