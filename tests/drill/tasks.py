"""Copying tasks in processes of their own: as Spark's executors run them, and with nobody's leave."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import msgspec

from mirror_core.copy import task as copy_task
from mirror_core.kafka.client import ClusterClient
from mirror_core.model.names import Partition
from mirror_core.model.task_messages import Assignment, PartitionAssignment, PartitionFailure, TaskReport
from mirror_core.model.timing import MAX_FRESH_AGE_S
from tests.support.mirrored_topics import Mirrored
from tests.support.waiting import patience

AT_ONCE = 2
GRACE_S = patience(90.0)


class Tasks:
    """At most two at a time, each with all partitions: whoever comes second must do no harm."""

    def __init__(self, mirrored: Mirrored, topics: tuple[str, ...], folder: Path, chance: random.Random) -> None:
        self.mirrored = mirrored
        self.chance = chance
        self.folder = folder
        self.failures: list[PartitionFailure] = []
        self._number = 0
        self._running: list[tuple[subprocess.Popen[bytes], Path]] = []
        self._suspended: set[int] = set()
        # As the driver remembers it: where the source's leadership has changed since, the logs are compared.
        self._vouched = {partition: status.source_epoch for partition, status in mirrored.statuses.items()}
        self._partitions = self._assigned(topics)
        self._mirror = mirrored.link.mirror  # asked once: the destination may be away when a task is to be started

    def start(self) -> bool:
        """One more, for some seconds. False when there are enough."""
        self._reap()
        if len(self._running) >= AT_ONCE:
            return False
        mirror, now_ms = self._mirror, int(time.time() * 1000)
        self._number += 1
        assignment = Assignment(
            mirror=mirror.name,
            source=mirror.source,
            destination=mirror.destination,
            config_path=str(self.mirrored.config.path),
            producer_id=mirror.producer_id,
            gaps=mirror.gaps,
            partitions=tuple(replace(p, source_epoch=self._vouched.get(p.partition)) for p in self._partitions),
            epoch=self._number,
            task=0,
            start_ms=now_ms,
            stop_ms=now_ms + self.chance.randrange(3_000, 15_000),
        )
        out = self.folder / f"task-{self._number}.json"
        command = [sys.executable, "-m", "tests.drill.tasks", str(out)]
        with out.with_suffix(".log").open("wb") as log:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT)
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(assignment))
        process.stdin.close()
        self._running.append((process, out))
        return True

    def kill(self) -> bool:
        """SIGKILL, wherever it stands. False when there was nobody to kill, or it had just ended."""
        if not self._running:
            return False
        process, _ = self.chance.choice(self._running)
        process.kill()
        struck = process.wait() == -signal.SIGKILL
        self._reap()
        return struck

    def suspend(self) -> bool:
        """SIGSTOP: it holds its connections and its batches, and knows nothing of the time that passes."""
        awake = [process for process, _ in self._running if process.pid not in self._suspended]
        if not awake:
            return False
        process = self.chance.choice(awake)
        process.send_signal(signal.SIGSTOP)
        self._suspended.add(process.pid)
        return process.poll() is None

    def wake(self) -> bool:
        """SIGCONT to all that were suspended."""
        asleep = [process for process, _ in self._running if process.pid in self._suspended]
        for process in asleep:
            process.send_signal(signal.SIGCONT)
        self._suspended.clear()
        return bool(asleep)

    def oversleep(self) -> bool:
        """Suspend one for longer than any lease stays fresh, while another one takes over. False when there is none."""
        if not self.suspend():
            return False
        self.start()
        time.sleep(MAX_FRESH_AGE_S + 1)  # that is the action
        return self.wake()

    def close(self) -> None:
        """Let what still runs end by its own clock; never longer than a task may take."""
        self.wake()
        for process, _ in self._running:
            try:
                process.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise
        self._reap()

    def _reap(self) -> None:
        for process, out in [entry for entry in self._running if entry[0].poll() is not None]:
            self._running.remove((process, out))
            if process.returncode == 0:
                report = msgspec.json.decode(out.read_bytes(), type=TaskReport)
                self.failures += report.failures
                self._vouched.update((found.partition, found.source_epoch) for found in report.aligned)
            else:
                said = out.with_suffix(".log").read_text(encoding="utf-8", errors="replace")
                assert process.returncode == -9, f"a task ended with {process.returncode}:\n{said}"

    def _assigned(self, topics: tuple[str, ...]) -> tuple[PartitionAssignment, ...]:
        link = self.mirrored.link
        with ClusterClient(link.source) as source, ClusterClient(link.destination) as destination:
            there, here = source.metadata(topics).topics, destination.metadata(topics).topics
        return tuple(
            PartitionAssignment(
                partition=Partition(topic, index),
                source_topic_id=there[topic].id,
                destination_topic_id=here[topic].id,
            )
            for topic in topics
            for index in there[topic].partitions
        )


if __name__ == "__main__":
    report = copy_task.run(msgspec.json.decode(sys.stdin.buffer.read(), type=Assignment))
    Path(sys.argv[1]).write_bytes(msgspec.json.encode(report))
