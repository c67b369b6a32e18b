"""One process copies several mirrors: what happens to one of them, the others don't notice."""

from __future__ import annotations

import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from mirror_core.evidence.file_store import LocalFolder
from mirror_core.kafka.config import load_config
from mirror_core.mirrors import mirror_commands
from mirror_core.mirrors.mirror_creation import create_mirror
from mirror_core.model.errors import LostOwnership
from mirror_core.model.names import MirrorName
from mirror_core.state.lease import HeldLease, take_over_lease
from mirror_core.state.mirror_link import MirrorLink, find_mirror_link
from mirror_core.state.state_topic import read_state
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.support import mirrored_topics
from tests.support.cli_process import MIRRORBOOK, mirrorbook
from tests.support.dedicated_clusters import third_cluster
from tests.support.kafka_clients import Pair, new_topic, produce, read_all, read_all_aiokafka
from tests.support.metrics_scrape import ADDRESS, Scraped
from tests.support.receipt_files import rows
from tests.support.waiting import patience, wait_until

pytestmark = pytest.mark.cluster
TIMEOUT_S = patience(120.0)
LATE_S = 10.0
"""The others' records are never that late: a third of an epoch."""
WATCHED_S = 25.0
"""Longer than an epoch, so that a boundary is among it."""


@dataclass(frozen=True, slots=True)
class Mirrored:
    """A mirror of one topic of east."""

    config_path: Path
    name: MirrorName
    topic: str
    east: SandboxCluster
    there: SandboxCluster

    @property
    def link(self) -> MirrorLink:
        return find_mirror_link(load_config(self.config_path), self.name)[0]

    def equal(self) -> bool:
        """By offset, content, headers and timestamps."""
        try:
            return read_all(self.there, self.topic) == read_all(self.east, self.topic)
        except Exception:  # noqa: BLE001 - the topic is not there yet, or its cluster is still starting
            return False

    def catches_up(self) -> None:
        produce(self.east, self.topic, 20)
        wait_until(self.equal, timeout_s=TIMEOUT_S, why=f"{self.name}: what east has is on {self.there.name}")


@pytest.fixture
def south(pair: Pair, tmp_path: Path) -> Iterator[tuple[SandboxCluster, Path]]:
    with third_cluster(pair, tmp_path) as third:
        yield third


def new_mirror(pair: Pair, config: Path, destination: str, there: SandboxCluster) -> Mirrored:
    topic, name = new_topic(pair.east, partitions=2), MirrorName("f-" + secrets.token_hex(4))
    create_mirror(load_config(config), name, source="east", destination=destination, topics=(topic,), groups=())
    made = Mirrored(config, name, topic, pair.east, there)
    mirror_commands.start_mirror(made.link)
    return made


class Process:
    """A `mirrorbook replicate` of several mirrors."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log

    @property
    def said(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def says(self, *words: str) -> None:
        wait_until(
            lambda: self.process.poll() is not None or all(word in self.said for word in words),
            timeout_s=TIMEOUT_S,
            why=f"it says {words}",
        )
        assert self.process.poll() is None, self.said

    @property
    def url(self) -> str:
        found = ADDRESS.search(self.said)
        assert found is not None, self.said
        return found[1]


@contextmanager
def fleet(runner: str, folder: Path, config: Path, *mirrors: Mirrored | mirrored_topics.Mirrored) -> Iterator[Process]:
    log = folder / "fleet.log"
    options = ("--runner", runner, "--config", str(config), "--receipts", str(folder / "receipts"), "--metrics", "0")
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*MIRRORBOOK, "replicate", *(m.name for m in mirrors), *options], stdout=out, stderr=subprocess.STDOUT
        )
    try:
        yield Process(process, log)
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def worst_delay_s(of: Mirrored, running: Process, seconds: float) -> float:
    """One record after the other for so long: how late the latest was on the destination."""
    worst, until, sent = 0.0, time.monotonic() + seconds, 0
    while time.monotonic() < until:
        began = time.monotonic()
        produce(of.east, of.topic, 1)
        sent += 1
        assert running.process.poll() is None, running.said
        wait_until(of.equal, timeout_s=TIMEOUT_S, why=f"record {sent} of {of.name} is there; {running.said}")
        worst = max(worst, time.monotonic() - began)
    assert sent > 3
    return worst


@contextmanager
def somebody_copies(mirrored: Mirrored) -> Iterator[None]:
    """Another process takes the lease, and keeps it fresh until left."""
    over = threading.Event()

    def keep(lease: HeldLease) -> None:
        while not over.wait(0.5):
            lease.renew()
        lease.release()

    with ThreadPoolExecutor(1) as pool:
        kept = pool.submit(keep, take_over_lease(mirrored.link.destination, mirrored.name, "elsewhere/1/aaaaaaaa"))
        try:
            yield
        finally:
            over.set()
        kept.result()  # LostOwnership, had the fleet taken it back meanwhile


@pytest.mark.drill
def test_a_mirror_that_is_paused_taken_or_dead_does_not_slow_the_others(
    pair: Pair, south: tuple[SandboxCluster, Path], tmp_path: Path
) -> None:
    third, config = south
    well, paused, taken = (new_mirror(pair, config, "west", pair.west) for _ in range(3))
    dead = new_mirror(pair, config, "south", third)
    everyone = (well, paused, taken, dead)
    for mirrored in everyone:
        produce(pair.east, mirrored.topic, 200)

    with fleet("spark", tmp_path, config, *everyone) as running:
        for mirrored in everyone:
            mirrored.catches_up()
        now = Scraped(running.url)
        assert [now("data_plane_info", mirror=m.name) for m in everyone] == [1, 1, 1, 1]

        mirror_commands.pause_mirror(paused.link)
        with somebody_copies(taken):
            third.terminate()
            assert worst_delay_s(well, running, WATCHED_S) < LATE_S, running.said
            running.says(
                f"{paused.name}: not copied now, tried again: mirror {paused.name}:\n  - it is PAUSED",
                f"{taken.name}: not copied now, tried again: ",
                f"{dead.name}: copying goes on for ",
            )
            now = Scraped(running.url)
            assert [now("data_plane_info", mirror=m.name) for m in (well, paused)] == [1, None]
            assert "Traceback" not in running.said

        third.start()
        mirror_commands.resume_mirror(paused.link)
        for mirrored in everyone:
            mirrored.catches_up()
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(TIMEOUT_S) == 0, running.said

    for mirrored in everyone:
        assert read_all_aiokafka(mirrored.there, mirrored.topic) == read_all_aiokafka(pair.east, mirrored.topic)
        assert read_state(mirrored.link.destination).leases[mirrored.name].released
        assert rows(LocalFolder(tmp_path / "receipts"), mirrored.name)


@pytest.mark.drill
def test_when_sparks_own_process_dies_all_end_for_a_new_process_to_begin(pair: Pair, tmp_path: Path) -> None:
    both = [new_mirror(pair, pair.config_path, "west", pair.west) for _ in range(2)]
    with fleet("spark", tmp_path, pair.config_path, *both) as running:
        for mirrored in both:
            mirrored.catches_up()
        [java] = [p for p in psutil.Process(running.process.pid).children(recursive=True) if p.name() == "java"]
        java.kill()
        assert running.process.wait(TIMEOUT_S) == 1, running.said
        assert "Spark's process has ended" in running.said
    for mirrored in both:
        assert mirrored.equal()


@pytest.mark.slow
def test_what_stops_one_mirror_of_a_process_leaves_the_process_alone(pair: Pair, tmp_path: Path) -> None:
    stopped, well = (new_mirror(pair, pair.config_path, "west", pair.west) for _ in range(2))
    with fleet("local", tmp_path, pair.config_path, stopped, well) as running:
        stopped.catches_up()
        mirror_commands.stop_mirror(stopped.link, lambda line: None)
        running.says(f"{stopped.name}: not copied now, tried again: ")
        well.catches_up()
        assert running.process.poll() is None


def test_a_name_that_no_cluster_knows_is_said_and_the_others_are_copied(pair: Pair, tmp_path: Path) -> None:
    well = new_mirror(pair, pair.config_path, "west", pair.west)
    unknown = Mirrored(pair.config_path, MirrorName("nobody"), "", pair.east, pair.west)
    with fleet("local", tmp_path, pair.config_path, unknown, well) as running:
        running.says("nobody: not copied now, tried again: unknown mirror 'nobody'")
        well.catches_up()


def test_a_mirror_of_a_living_process_is_refused_to_another_one(pair: Pair, tmp_path: Path) -> None:
    one, two = (new_mirror(pair, pair.config_path, "west", pair.west) for _ in range(2))
    with fleet("local", tmp_path, pair.config_path, one, two):
        one.catches_up()
        second = mirrorbook("replicate", one.name, "--runner", "local", "--config", str(pair.config_path))
        assert second.returncode == LostOwnership.exit_code
        assert "another process copies it already" in second.stderr
        one.catches_up()


@pytest.mark.parametrize(
    ("more", "words"),
    [(("a", "a"), "named more than once"), (("a", "b", "--json"), "one mirror at a time")],
)
def test_what_makes_no_sense_for_several_is_said_before_anything_is_done(
    pair: Pair, more: tuple[str, ...], words: str
) -> None:
    done = mirrorbook("replicate", *more, "--runner", "local", "--config", str(pair.config_path))
    assert (done.returncode, words in done.stderr) == (2, True), done.stderr
