"""Behind a failover whose source is dead: whoever watches for it is seen to, and missed when it was killed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mirror_core.decide.process_liveness import MAX_MISSED_PROBES, find_watcher_heartbeat
from mirror_core.mirrors.describe import describe_mirror
from mirror_core.mirrors.fence_watcher import ANSWER_WAIT_S, check_fence
from mirror_core.mirrors.mirror_facts import FactKey
from mirror_core.model.run_checkpoints import WatcherHeartbeat
from mirror_core.runbook.failback_conductor import Failback
from mirror_core.state.watcher_heartbeat import find_watcher_status
from tests.support.broker_faults import suspended
from tests.support.failover_runs import app_topic
from tests.support.kafka_clients import Pair, produce
from tests.support.mirrored_topics import Mirrored
from tests.support.pending_fences import copied, promoted, stood, watching
from tests.support.sentences import format_sentence
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster
TIMEOUT_S = 90.0
SILENT_MS = round(MAX_MISSED_PROBES * ANSWER_WAIT_S * 1000)


@contextmanager
def another_process(mirrored: Mirrored) -> Iterator[subprocess.Popen[bytes]]:
    """`mirrorbook mirror watch`, which is killed when the block is left."""
    command = (sys.executable, "-m", "mirror_core", "mirror", "watch", mirrored.name)
    process = subprocess.Popen([*command, "--config", str(mirrored.config.path)], stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def sign_of(mirrored: Mirrored) -> WatcherHeartbeat | None:
    return find_watcher_heartbeat(mirrored.name, mirrored.state.checkpoints)


def described(mirrored: Mirrored, at_ms: int) -> str:
    """As `mirror describe` says it at this time."""
    return str(describe_mirror(mirrored.link, mirrored.state, at_ms).facts[FactKey.WATCHER].text)


def test_a_watcher_that_is_killed_is_missed_until_another_one_watches(pair: Pair, tmp_path: Path) -> None:
    topic = app_topic(pair)
    produce(pair.east, topic, 20)
    mirrored = copied(pair, tmp_path, topic)
    assert str(find_watcher_status(mirrored.state, mirrored.name, None)) == "not needed"
    with suspended(pair.east):
        promoted(mirrored)
        check_fence(mirrored.link)
        assert sign_of(mirrored) is None, "one look is no watching"
        assert str(find_watcher_status(mirrored.state, mirrored.name, None)).startswith("none yet, ")
        with another_process(mirrored) as process:
            wait_until(lambda: sign_of(mirrored), timeout_s=TIMEOUT_S, why="it gives a sign of life")
        last = sign_of(mirrored)
        assert last is not None
        assert last.pid == process.pid
        missed_ms = last.at_ms + SILENT_MS + 1
        nobody = described(mirrored, missed_ms)
        assert nobody.startswith("nobody has watched cluster east since ")
        assert format_sentence("nobody_would_fence_it_when", mirrored.name) in nobody
        with watching(mirrored):
            wait_until(lambda: sign_of(mirrored) != last, timeout_s=TIMEOUT_S, why="another one watches")
            assert described(mirrored, missed_ms).startswith("mirrorbook mirror watch on ")
        assert described(mirrored, missed_ms).startswith("nobody has watched cluster east since "), "it was stopped"
    found = wait_until(lambda: stood(check_fence(mirrored.link)), timeout_s=TIMEOUT_S, why="east answers again")
    assert found is not None
    failback = Failback(mirrored.link, mirrored.services, started_by="test")
    assert "source_unwatched" in [warning.code for warning in failback.plan().warnings]
    before = sign_of(mirrored)
    with watching(mirrored):
        wait_until(lambda: sign_of(mirrored) != before, timeout_s=TIMEOUT_S, why="somebody watches")
        assert "source_unwatched" not in [warning.code for warning in failback.plan().warnings]
