"""One of the two clusters, as tests and drills handle it: connect, kill, suspend, start again, look inside."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from mirror_core.model.errors import BadRequest
from mirror_core.model.timing import TIMEOUTS
from mirrorbook_tools.sandbox.broker import Broker, run_tool
from mirrorbook_tools.sandbox.credentials import ADMIN, scram_config
from mirrorbook_tools.sandbox.errors import SandboxFailed
from mirrorbook_tools.sandbox.ports import HOST
from mirrorbook_tools.sandbox.process import is_alive, suspend

READY_TIMEOUT_S: Final = 120.0
PROBE_PAUSE_S: Final = 0.1
# A broker that is still starting refuses connections: ask again soon, and say nothing of it.
QUIET: Final = {"log_level": 0, "reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 200}


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxCluster:
    """Nodes count from 1."""

    name: str
    brokers: tuple[Broker, ...]
    passwords: Mapping[str, str] = field(repr=False)

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{HOST}:{broker.ports.client}" for broker in self.brokers)

    @property
    def by_link(self) -> str:
        """Where Mirrorbook finds the brokers: by way of the link, in a sandbox that has one."""
        return ",".join(f"{HOST}:{broker.ports.link or broker.ports.client}" for broker in self.brokers)

    @property
    def controllers(self) -> str:
        """Addresses of the controller listener: SASL PLAIN, user `admin`, for what must be set before brokers start."""
        return ",".join(f"{HOST}:{broker.ports.controller}" for broker in self.brokers)

    def client_config(self, user: str) -> dict[str, str]:
        """librdkafka properties for one of the sandbox's users. Holds the password: not for logs."""
        return scram_config(self.bootstrap, user, self.passwords[user])

    def nodes(self, wanted: int | None = None) -> tuple[int, ...]:
        """All numbers, or the one that is wanted. BadRequest when there is none of this number."""
        known = tuple(broker.node for broker in self.brokers)
        if wanted is None:
            return known
        if wanted not in known:
            raise BadRequest(f"{self.name} has {len(known)} node(s), and none of number {wanted}")
        return (wanted,)

    def link_ports(self, node: int | None = None) -> tuple[int, ...]:
        """For the link, on the way to all nodes or this one; none in a sandbox without."""
        found = (self._broker(number).ports.link for number in self.nodes(node))
        return tuple(port for port in found if port is not None)

    def pid(self, node: int = 1) -> int | None:
        """None when the broker is not running."""
        process = self._broker(node).process()
        return None if process is None else process.pid

    def log_dir(self, node: int = 1) -> Path:
        """The folder of partition folders, for DumpLogSegments and for cutting logs of a stopped node."""
        return self._broker(node).data_dir

    def kill(self, node: int = 1) -> None:
        """SIGKILL, as a crash does it; returns when the process is gone."""
        self._broker(node).stop(signal.SIGKILL)

    def terminate(self, node: int = 1) -> None:
        """Orderly shutdown; returns when the process is gone."""
        self._broker(node).stop(signal.SIGTERM)

    def stop_process(self, node: int = 1) -> None:
        """Suspend: the broker keeps its connections and answers nothing from now on."""
        suspend(self._living(node))

    def cont_process(self, node: int = 1) -> None:
        self._living(node).send_signal(signal.SIGCONT)

    def fill_disk(self, node: int = 1) -> None:
        """From now on no file of the broker takes another byte, as on a full disk: it gives up its logs, and ends.

        A limit of the process (RLIMIT_FSIZE), which the next one does not have: nothing is filled in truth.
        """
        if sys.platform != "linux":
            raise SandboxFailed("a disk can be made to seem full on Linux only: limits of a running process are set")
        process = self._living(node)
        _, hard = process.rlimit(psutil.RLIMIT_FSIZE)
        process.rlimit(psutil.RLIMIT_FSIZE, (0, hard))

    def start(self, node: int = 1) -> None:
        """Start a dead broker on its data and wait until it answers. A living one is only waited for."""
        broker = self._broker(node)
        process = broker.process() or broker.spawn()
        self.wait_ready({node: process}, whole_cluster=False)

    def tool(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a Java main class of Kafka's, e.g. org.apache.kafka.tools.GetOffsetShell, with these arguments."""
        return run_tool(self.brokers[0].jars, *arguments)

    def answering(self, node: int, timeout_s: float = TIMEOUTS.sandbox_broker_s) -> Sequence[int]:
        """Node ids in an authenticated Metadata answer that was asked of this node; empty when none came."""
        address = f"{HOST}:{self._broker(node).ports.client}"
        admin = AdminClient({**self.client_config(ADMIN), "bootstrap.servers": address, **QUIET})
        try:
            return sorted(admin.list_topics(timeout=timeout_s).brokers)
        except KafkaException:
            return []

    def wait_ready(self, processes: Mapping[int, psutil.Process], *, whole_cluster: bool) -> None:
        """Wait until each of these nodes answers, and (`whole_cluster`) until each lists all nodes."""
        deadline = time.monotonic() + READY_TIMEOUT_S
        wanted = {broker.node for broker in self.brokers} if whole_cluster else set()
        for node, process in processes.items():
            while not wanted | {node} <= set(self.answering(node)):
                broker = self._broker(node)
                if not is_alive(process):
                    raise SandboxFailed(
                        f"{broker.label} ended while starting; remove the cause, and `up` goes on from here. "
                        f"The end of {broker.log_path}:\n{broker.log_tail()}"
                    )
                if time.monotonic() > deadline:
                    raise SandboxFailed(
                        f"{broker.label} (pid {process.pid}, {process.status()}) does not answer a Metadata request "
                        f"as `{ADMIN}` on {HOST}:{broker.ports.client} after {READY_TIMEOUT_S:.0f} s. "
                        f"The end of {broker.log_path}:\n{broker.log_tail()}"
                    )
                time.sleep(PROBE_PAUSE_S)

    def _broker(self, node: int) -> Broker:
        return self.brokers[node - 1]

    def _living(self, node: int) -> psutil.Process:
        process = self._broker(node).process()
        if process is None:
            raise SandboxFailed(f"{self.name} node {node} is not running")
        return process
