"""Two clusters, `east` and `west`, in one folder: brought up, repaired, taken down.

Every step of `up` looks at what is there and does only what is missing, so an `up` that was killed anywhere is
continued by the next one.
"""

from __future__ import annotations

import base64
import os
import signal
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import psutil
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from mirror_core.model.errors import BadRequest
from mirrorbook_tools.sandbox import grants, sandbox_folder, storage_format
from mirrorbook_tools.sandbox.broker import MAIN_CLASS, Broker
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from mirrorbook_tools.sandbox.credentials import (
    ADMIN,
    CONTROL,
    DATA,
    SECRETS_FILE,
    create_passwords,
    load_passwords,
)
from mirrorbook_tools.sandbox.errors import SandboxFailed
from mirrorbook_tools.sandbox.jars import ensure_jars, jars_dir
from mirrorbook_tools.sandbox.ports import choose_ports
from mirrorbook_tools.sandbox.process import end, running
from mirrorbook_tools.sandbox.sandbox_folder import NAMES
from mirrorbook_tools.sandbox.state import (
    ClusterState,
    NodePorts,
    SandboxState,
    load_state,
    save_state,
)
from mirrorbook_tools.sandbox.wan_process import Link
from mirrorbook_tools.sandbox.wan_proxy import Weather

NODE_COUNTS: Final = (1, 3)
GRACE_S: Final = 30.0


def _silent(_line: str) -> None:
    return


def _new_cluster_id() -> str:
    """As Kafka makes them, and without the dash that would make it look like an option on a command line."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "A")


class Sandbox:
    """The sandbox in folder `dir`, running or not. `say` hears one line per step."""

    def __init__(self, dir: Path, say: Callable[[str], None] = _silent) -> None:
        self.dir = Path(os.path.abspath(dir))
        self._say = say

    def up(self, nodes: int | None = None, extra: Mapping[str, str] | None = None, *, link: bool | None = None) -> None:
        """Start both clusters, or what of them is not running, and return when every broker answers.

        `nodes` of each cluster, `extra` broker properties and the `link` between sites hold for the life of the folder;
        None means what it has, at first 1 and nothing. Raises BadRequest for a wish that contradicts the folder,
        SandboxFailed otherwise; brokers that this call started are then stopped again.
        """
        if nodes is not None and nodes not in NODE_COUNTS:
            raise BadRequest(f"a sandbox has 1 or 3 nodes in each cluster, not {nodes}")
        try:
            sandbox_folder.claim(self.dir)
            with sandbox_folder.exclusive(self.dir):
                self._up(nodes, extra, link)
        except OSError as error:
            raise SandboxFailed(
                f"cannot write the sandbox in {self.dir}: {error.strerror or error} ({error.filename or 'no name'}). "
                "Make room or choose another --dir; `up` goes on from here"
            ) from error

    def down(self, delete: bool = False) -> int:
        """Stop exactly our brokers, in order, and return how many; `delete` removes what we made in the folder."""
        if not self.dir.is_dir():
            return 0
        sandbox_folder.refuse_foreign(self.dir)
        with sandbox_folder.exclusive(self.dir):
            storage_format.stop_formatters(path.parent for path in self._nodes())
            stopped = self.running()
            # Combined nodes that stop together lose their quorum, and the last one may wait for it in vain.
            self.link.down()
            stubborn = end(stopped, signal.SIGTERM, GRACE_S)
            if immortal := end(stubborn, signal.SIGKILL, GRACE_S):
                raise SandboxFailed(f"could not stop pid {immortal[0].pid}: the system doesn't let it die")
            if delete:
                sandbox_folder.clear(self.dir)
            return len(stopped)

    def running(self) -> list[psutil.Process]:
        """Its brokers that live, also of an `up` that was killed."""
        return list(running(MAIN_CLASS, self._nodes()))

    def _nodes(self) -> list[Path]:
        return sorted(self.dir.glob("*/*/server.properties"))

    @property
    def link(self) -> Link:
        """Between Mirrorbook and the clusters; only a sandbox that was made with one has it."""
        return Link(self.dir)

    @property
    def state(self) -> SandboxState:
        state = load_state(self.dir)
        if state is None:
            raise BadRequest(f"there is no sandbox in {self.dir}: start one with `mirrorbook sandbox up`")
        return state

    def cluster(self, name: str) -> SandboxCluster:
        return self._cluster(name, self.state, load_passwords(self.dir))

    def clusters(self) -> tuple[SandboxCluster, ...]:
        return tuple(self.cluster(name) for name in NAMES)

    def mirrorbook_yaml(self) -> str:
        """A mirrorbook.yaml for both clusters; it refers to passwords and holds none."""
        lines = ["clusters:"]
        for cluster in self.clusters():
            lines += [
                f"  {cluster.name}:",
                f'    bootstrap.servers: "{cluster.by_link}"',
                "    security.protocol: SASL_PLAINTEXT",
                "    sasl.mechanism: SCRAM-SHA-512",
                f"    sasl.username: {CONTROL}",
                f'    sasl.password: "{self._reference(CONTROL)}"',
                "    data:",
                f"      sasl.username: {DATA}",
                f'      sasl.password: "{self._reference(DATA)}"',
            ]
        return "\n".join(lines) + "\n"

    def _reference(self, user: str) -> str:
        return f"${{file:{self.dir / SECRETS_FILE}:{user}}}"

    def _up(self, nodes: int | None, extra: Mapping[str, str] | None, link: bool | None) -> None:
        state = self._state_for(nodes, extra, link)
        if not (self.dir / SECRETS_FILE).exists() and not any(self.dir.glob("*/*/formatted")):
            create_passwords(self.dir)
        passwords = load_passwords(self.dir)
        self._say(f"jars: verifying, or fetching into {jars_dir()}")
        ensure_jars()
        clusters = [self._cluster(name, state, passwords) for name in NAMES]
        processes = {(b.cluster, b.node): b.process() for cluster in clusters for b in cluster.brokers}
        dead = [b for cluster in clusters for b in cluster.brokers if processes[b.cluster, b.node] is None]
        if not dead:
            self._say("already running")
        storage_format.prepare(dead, state, passwords, self._say)
        started: list[psutil.Process] = []
        try:
            for broker in dead:
                process = broker.spawn()
                started.append(process)
                processes[broker.cluster, broker.node] = process
                self._say(f"{broker.label}: started, pid {process.pid}, port {broker.ports.client}")
            for cluster in clusters:
                mine = {node: found for (name, node), found in processes.items() if name == cluster.name and found}
                cluster.wait_ready(mine, whole_cluster=True)
                self._say(f"{cluster.name}: answers on {cluster.bootstrap}")
                state = self._provision(cluster, state)
        except BaseException:
            # Also on Ctrl-C: what this call started and has not handed over must not run on unseen.
            end(started, signal.SIGKILL, GRACE_S)
            raise
        if state.linked:
            self.link.up([port for cluster in clusters for port in cluster.link_ports()])
            self._say("the link between the sites is up: `mirrorbook sandbox config` leads over it")
            for line in self._list_link_faults(clusters):
                self._say(line)

    def _list_link_faults(self, clusters: Iterable[SandboxCluster]) -> Iterator[str]:
        for cluster in clusters:
            for node in cluster.nodes(None):
                weather = self.link.weather(*cluster.link_ports(node))
                if weather != Weather():
                    heal = f"`mirrorbook sandbox heal {cluster.name}` ends that"
                    yield f"{cluster.name} node {node}: still {weather}; {heal}"

    def _state_for(self, nodes: int | None, extra: Mapping[str, str] | None, link: bool | None = None) -> SandboxState:
        state = load_state(self.dir)
        if state is None:
            count = nodes or 1
            names = ("client", "controller", *(("far", "link") if link else ()))
            ports = iter(choose_ports(len(names) * count * len(NAMES)))
            clusters = {
                name: ClusterState(
                    cluster_id=_new_cluster_id(),
                    nodes=tuple(NodePorts(**{one: next(ports) for one in names}) for _ in range(count)),
                )
                for name in NAMES
            }
            state = SandboxState(clusters=clusters, extra=dict(extra or {}))
            save_state(self.dir, state)
        if nodes not in (None, state.node_count):
            raise BadRequest(
                f"the sandbox in {self.dir} has {state.node_count} node(s) in each cluster, not {nodes}: "
                "`mirrorbook sandbox down --delete` first, or another --dir"
            )
        if link is not None and link != state.linked:
            raise BadRequest(
                f"the sandbox in {self.dir} was made {'with' if state.linked else 'without'} a link: "
                "`mirrorbook sandbox down --delete` first, or another --dir"
            )
        if extra is not None and dict(extra) != dict(state.extra):
            raise BadRequest(f"the sandbox in {self.dir} was made with other broker properties: delete it first")
        return state

    def _provision(self, cluster: SandboxCluster, state: SandboxState) -> SandboxState:
        """Put in the ACLs once; what a user or a drill changes later is not put back by another `up`."""
        mine = state.clusters[cluster.name]
        if mine.provisioned:
            return state
        admin = AdminClient({**cluster.client_config(ADMIN)})
        try:
            grants.put(admin, grants.baseline(cluster.name))
        except KafkaException as error:
            raise SandboxFailed(f"{cluster.name}: the users' ACLs could not be created: {error}") from error
        state = replace(state, clusters={**state.clusters, cluster.name: replace(mine, provisioned=True)})
        save_state(self.dir, state)
        return state

    def _cluster(self, name: str, state: SandboxState, passwords: Mapping[str, str]) -> SandboxCluster:
        if name not in state.clusters:
            raise BadRequest(f"the sandbox has the clusters {' and '.join(NAMES)}, not {name}")
        brokers = tuple(
            Broker(cluster=name, node=node, folder=self.dir / name / str(node), ports=ports, jars=jars_dir())
            for node, ports in enumerate(state.clusters[name].nodes, start=1)
        )
        return SandboxCluster(name=name, brokers=brokers, passwords=passwords)
