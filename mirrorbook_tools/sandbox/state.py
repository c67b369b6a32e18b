"""What the sandbox remembers in its folder: how many nodes, which ports, which cluster ids, which extra properties."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from mirrorbook_tools.sandbox.errors import SandboxFailed

STATE_FILE: Final = "sandbox.json"
FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class NodePorts:
    """Loopback ports of one node; they stay the same as long as the folder lives."""

    client: int
    controller: int
    far: int | None = None
    """For one more listener, which says that its address is the link's. None: the sandbox has no link."""
    link: int | None = None
    """For the link, on the way to that listener."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    cluster_id: str
    nodes: tuple[NodePorts, ...]  # node ids count from 1
    provisioned: bool = False  # our ACLs were put in once; later changes are the user's


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxState:
    clusters: Mapping[str, ClusterState]
    extra: Mapping[str, str]  # broker properties beyond ours

    @property
    def node_count(self) -> int:
        """Nodes of each cluster."""
        return len(next(iter(self.clusters.values())).nodes)

    @property
    def linked(self) -> bool:
        """Whether Mirrorbook's way to the brokers is over a link."""
        return all(ports.link is not None for cluster in self.clusters.values() for ports in cluster.nodes)


def load_state(folder: Path) -> SandboxState | None:
    """The state, or None when this folder never got as far as having one."""
    path = folder / STATE_FILE
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        if raw["format"] != FORMAT:
            raise SandboxFailed(f"{path} is of format {raw['format']}, this version knows {FORMAT}: delete the folder")
        clusters = {
            name: ClusterState(
                cluster_id=entry["cluster_id"],
                nodes=tuple(NodePorts(**ports) for ports in entry["nodes"]),
                provisioned=entry["provisioned"],
            )
            for name, entry in raw["clusters"].items()
        }
        return SandboxState(clusters=clusters, extra=raw["extra"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise SandboxFailed(
            f"{path} is damaged ({error}): stop the brokers with `mirrorbook sandbox down`, delete the folder, "
            "and start again"
        ) from error


def save_state(folder: Path, state: SandboxState) -> None:
    body = {"format": FORMAT, **asdict(state)}
    write_atomically(folder / STATE_FILE, json.dumps(body, indent=2) + "\n")


def write_atomically(path: Path, text: str) -> None:
    """Replace a private file so that a reader, or the next run after a crash, sees the old text or the new one."""
    fresh = path.with_name(path.name + ".new")
    fresh.unlink(missing_ok=True)
    # Private from the first byte on: a chmod afterwards would leave a moment in which others may open it.
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    os.replace(fresh, path)
