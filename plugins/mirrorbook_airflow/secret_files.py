"""Passwords of connections in files of their own, so that executors elsewhere see the data principals' and no others.

config/<mirror>.yaml              refers to both; holds no secret
config/<mirror>.data.properties   the data principals', and what both share: for executors, too
control/<mirror>.properties       the control principals': for Airflow and the data plane's driver
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from mirror_core.model.errors import BadRequest

SECRET_KEYS: Final = ("sasl.password", "ssl.key.password")


@dataclass(slots=True)
class SecretFiles:
    """What was taken out of clusters' entries, as lines of two files with these paths, seen from the configuration."""

    control_file: str
    data_file: str
    control: list[str] = field(default_factory=list)
    data: list[str] = field(default_factory=list)

    def extract_secrets(self, cluster: str, document: Mapping[str, Any]) -> dict[str, Any]:
        """The entry, with references where secrets were."""
        data_entry: dict[str, str] = dict(document["data"])
        entry: dict[str, Any] = dict(document)
        for key in SECRET_KEYS:
            if key in entry and key in data_entry:
                entry[key] = self._store_secret(self.control, self.control_file, cluster, key, entry[key])
            elif key in entry:  # both principals have it
                entry[key] = self._store_secret(self.data, self.data_file, cluster, key, entry[key])
            if key in data_entry:
                data_entry[key] = self._store_secret(self.data, self.data_file, cluster, f"data.{key}", data_entry[key])
        return {**entry, "data": data_entry}

    def copy_lines(self, cluster: str, control: Path, data: Path) -> None:
        """Take over what these files hold of a cluster whose entry stays as it was."""
        for lines, file in ((self.control, control), (self.data, data)):
            old_lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
            lines += [line for line in old_lines if line.partition("=")[0].endswith(f"/{quote(cluster, safe='')}")]

    @staticmethod
    def _store_secret(lines: list[str], file: str, cluster: str, key: str, secret: str) -> str:
        if secret.splitlines() != [secret] or secret != secret.strip():
            raise BadRequest(
                f"connection {cluster}: {key} begins or ends with white space, or has several lines: files here cannot "
                "keep it so; choose another one"
            )
        name = f"{key}/{quote(cluster, safe='')}"  # ids of connections may have colons
        lines.append(f"{name}={secret}")
        return f"${{file:{file}:{name}}}"
