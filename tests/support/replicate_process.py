"""A `mirrorbook replicate` in a process of its own, to be killed, suspended and started again."""

from __future__ import annotations

import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
from confluent_kafka import Producer

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.log_offsets import OffsetPoint, list_offsets
from mirror_core.model.mirror import is_lease_fresh
from mirror_core.model.names import MirrorName, Partition
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.support.checked_threads import beside
from tests.support.cli_process import MIRRORBOOK, Forked
from tests.support.data_errors import about_data
from tests.support.detached_supervisor import ensure_supervisor, stop_supervisor
from tests.support.kafka_clients import TIMEOUT_S, Record
from tests.support.mirrored_topics import Mirrored
from tests.support.sentences import format_sentence
from tests.support.waiting import patience, wait_until

PATIENCE_S = patience(180.0)
"""For a process that starts Spark beside others on two cores."""
HELD = "another process copies it already ("


class Copier:
    """One process; leave nothing of it behind by `copier()`."""

    def __init__(self, mirrored: Mirrored, runner: str, log: Path, *options: str) -> None:
        self.log = log
        config = ("--config", str(mirrored.pair.config_path))
        receipts = ("--receipts", str(mirrored.evidence / "receipts"))
        command = ["replicate", mirrored.name, "--runner", runner, *config, *receipts, *options]
        with log.open("wb") as out:
            self.process: subprocess.Popen[bytes] | Forked = (
                Forked(*command, log=log)
                if runner == "local"
                else subprocess.Popen(
                    [*MIRRORBOOK, *command], stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
                )
            )
        self.psutil = psutil.Process(self.process.pid)

    @property
    def said(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    @property
    def code(self) -> int | None:
        return self.process.poll()

    def ends(self) -> int:
        """Wait for it; its exit code."""
        return self.process.wait(PATIENCE_S)

    def children(self) -> list[psutil.Process]:
        """Spark's processes."""
        try:
            return self.psutil.children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def kill(self) -> None:
        """SIGKILL, only of the process itself; whatever it had started is given time to find out."""
        children = self.children()
        self.process.kill()
        assert self.process.wait(PATIENCE_S) == -signal.SIGKILL, f"it was over already: {self.said}"
        gone = wait_until(
            lambda: not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children),
            timeout_s=PATIENCE_S,
            why="Spark's processes follow their driver",
        )
        assert gone

    def clear(self) -> None:
        for process in [*self.children(), self.psutil]:
            try:
                process.resume()
                process.kill()
            except psutil.NoSuchProcess:
                continue  # it has ended by itself
        self.process.wait()


@contextmanager
def copier(mirrored: Mirrored, runner: str, log: Path, *options: str) -> Iterator[Copier]:
    made = Copier(mirrored, runner, log, *options)
    try:
        yield made
    finally:
        made.clear()


@contextmanager
def supervising(config: Path, mirror: MirrorName, home: Path) -> Iterator[None]:
    """Its supervisor, as systemd would run it."""
    ensure_supervisor(config, mirror, home, ("--runner", "local", "--receipts", str(home / "receipts")))
    try:
        yield
    finally:
        stop_supervisor(home, mirror)


@contextmanager
def at_work(
    mirrored: Mirrored, runner: str, folder: Path, *options: str, begun: Callable[[], bool] | None = None
) -> Iterator[Copier]:
    """Start one as a supervisor does: again after it was refused because the lease of a dead one is still fresh.

    Returns when it has `begun`; when it has the lease, if nothing is said.
    """
    held = mirrored.state.leases.get(mirrored.name)
    generation = held.generation if held else 0
    while True:
        with copier(mirrored, runner, folder / "replicate.log", *options) as made:
            wait_until(
                partial(_begun_or_ended, made, begun or partial(_leased, mirrored, generation)),
                timeout_s=PATIENCE_S,
                why="it has begun, or has been refused",
            )
            if made.code is None or _leased(mirrored, generation):
                yield made
                return
            assert made.code == 5, made.said
            assert f"error: mirror {mirrored.name}: {HELD}" in made.said
            assert format_sentence("stop_that_one_first_or_wait", 10) in made.said
            assert "Traceback" not in made.said
        wait_until(
            lambda: not is_lease_fresh(held, int(time.time() * 1000)),
            timeout_s=PATIENCE_S,
            why="the dead one's lease ends",
        )


def _begun_or_ended(made: Copier, begun: Callable[[], bool]) -> bool:
    return made.code is not None or begun()


def _leased(mirrored: Mirrored, after: int) -> bool:
    lease = mirrored.state.leases.get(mirrored.name)
    return lease is not None and lease.generation > after


class Progress:
    """Log ends of a topic on one cluster."""

    def __init__(self, mirrored: Mirrored, cluster: str, topic: str) -> None:
        self.topic = topic
        self.cluster = mirrored.config.cluster(cluster)

    def exists(self) -> bool:
        with ClusterClient(self.cluster) as client:
            return self.topic in client.metadata([self.topic]).topics

    def total(self) -> int:
        """Sum of the partitions' log ends; 0 while there is no such topic."""
        with ClusterClient(self.cluster) as client:
            return self._total(client)

    def reaches(self, mark: int, copying: Copier) -> None:
        """Return as soon as there are so many; asks all the time, since copying is quick."""
        deadline = time.monotonic() + PATIENCE_S
        with ClusterClient(self.cluster) as client:
            while self._total(client) < mark:
                assert copying.code is None, copying.said
                assert time.monotonic() < deadline, f"not {mark} within {PATIENCE_S} s: {copying.said}"

    def _total(self, client: ClusterClient) -> int:
        view = client.metadata([self.topic]).topics.get(self.topic)
        if view is None or any(leader.broker < 0 for leader in view.partitions.values()):
            return 0
        return sum(
            list_offsets(client, [Partition(self.topic, p) for p in view.partitions], OffsetPoint.LOG_END).values()
        )


class Application:
    """Something that writes all the time, in a thread, while entered."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._beside = ExitStack()

    def __enter__(self) -> Self:
        self._beside.enter_context(beside(self._write, self._stop.set, timeout_s=PATIENCE_S))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._beside.__exit__(kind, error, trace)

    def _write(self) -> None:
        raise NotImplementedError


class Writer(Application):
    """Small batches to all partitions of a topic."""

    def __init__(self, cluster: SandboxCluster, topic: str, partitions: int) -> None:
        super().__init__()
        self.cluster, self.topic, self.partitions = cluster, topic, partitions

    def _write(self) -> None:
        settings = {**self.cluster.client_config("admin"), "enable.idempotence": True, "linger.ms": 0}
        producers = [Producer({**settings, "compression.type": codec}) for codec in ("none", "lz4")]
        while not self._stop.wait(0.05):
            for partition in range(self.partitions):
                for number in range(1 + partition):
                    producers[partition % 2].produce(
                        self.topic, key=f"k{number}", value=secrets.token_hex(20), partition=partition
                    )
            for producer in producers:
                assert producer.flush(TIMEOUT_S) == 0, f"{self.cluster.name} does not acknowledge"


@about_data()
def assert_prefix(here: list[Record], there: list[Record]) -> None:
    """What is on the destination is what the source began with, partition by partition."""
    for partition in {record.partition for record in here}:
        mine = [record for record in here if record.partition == partition]
        assert mine == [record for record in there if record.partition == partition][: len(mine)]
