"""Saved tails, and who writes them back, shared by tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import yaml

from mirror_core.kafka.acl_requests import create_acls, wait_until_acls_present
from mirror_core.rights.required_acls import REPLAY_ACLS
from tests.support.cluster_admin import as_admin
from tests.support.kafka_clients import TIMEOUT_S, Pair, forget_user, new_user


def saved_rows(folder: Path) -> list[dict[str, Any]]:
    """All records of a salvage, in order."""
    rows = [row for path in folder.rglob("*.parquet") for row in pq.read_table(path).to_pylist()]
    return sorted(rows, key=lambda row: (row["topic"], row["partition"], row["offset"]))


@contextmanager
def replay_login(pair: Pair, path: Path) -> Iterator[Path]:
    """A configuration whose login has a replay's rights on both clusters, and no others."""
    user, password = new_user(pair.east, pair.west)
    document = yaml.safe_load(pair.config_path.read_text(encoding="utf-8"))
    for section in document["clusters"].values():
        del section["data"]
        section |= {"sasl.username": user, "sasl.password": password}
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    acls = [need.to_acl(f"User:{user}") for need in REPLAY_ACLS]
    for cluster in (pair.east, pair.west):
        with as_admin(cluster) as client:
            create_acls(client, acls)
            wait_until_acls_present(client, acls, TIMEOUT_S)
    yield path
    for cluster in (pair.east, pair.west):
        forget_user(cluster, user)
