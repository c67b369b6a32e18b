"""Kafka Streams' own example that counts words, exactly once: an application of repartition and changelog topics.

Its jars are locked and fetched as the sandbox's are, when a test asks for it and not before.
"""

from __future__ import annotations

import signal
import struct
import subprocess
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from confluent_kafka import ConsumerGroupState
from confluent_kafka.admin import AclOperation, NewTopic, ResourceType

from mirror_core.java import find_java_home
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from mirrorbook_tools.sandbox.credentials import APP
from mirrorbook_tools.sandbox.jars import ensure_jars, locked
from tests.drill.applications import Lines, Login, login, words
from tests.support.data_errors import about_data
from tests.support.kafka_clients import TIMEOUT_S, Pair, Record, admin_client, grant, read_all
from tests.support.waiting import patience, wait_until

LOCK: Final = Path(__file__).parents[1] / "kafka-streams.lock"
MAIN: Final = "org.apache.kafka.streams.examples.wordcount.WordCountDemo"
INPUT: Final = "streams-plaintext-input"
OUTPUT: Final = "streams-wordcount-output"
"""Both are fixed in the example."""


PARTITIONS: Final = 3
SOME: Final = 3000
"""Counts: some seconds of work."""
PATIENCE_S: Final = patience(120.0)


def counted(cluster: SandboxCluster) -> int:
    return len(read_all(cluster, OUTPUT))


class WordCount:
    """One instance, started again and again: on another cluster, with the same folder of state or with a fresh one."""

    def __init__(self, name: str, user: Login, folder: Path) -> None:
        revisions = {jar.revision for jar in locked() if jar.name == "kafka-clients"}
        assert revisions == {jar.revision for jar in locked(LOCK) if jar.org == "org.apache.kafka"}
        self.name, self.user, self.folder = name, user, folder
        self.log = folder / "streams.log"
        self._jars = ":".join(f"{jars}/*" for jars in (ensure_jars(), ensure_jars(LOCK)))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def internal(self) -> tuple[str, str]:
        """The topics that Streams has made for it."""
        store = f"{self.name}-KSTREAM-AGGREGATE-STATE-STORE-0000000003"
        return f"{store}-repartition", f"{store}-changelog"

    def may_run_on(self, cluster: SandboxCluster) -> None:
        """What its operator grants it: no more than Streams' documentation asks for."""
        op = AclOperation
        grant(cluster, self.user.name, ResourceType.TOPIC, INPUT, [op.READ])
        grant(cluster, self.user.name, ResourceType.TOPIC, OUTPUT, [op.WRITE])
        internal = [op.READ, op.WRITE, op.CREATE, op.DELETE]
        grant(cluster, self.user.name, ResourceType.TOPIC, self.name, internal, prefixed=True)
        grant(cluster, self.user.name, ResourceType.GROUP, self.name, [op.READ])
        ids = ResourceType.TRANSACTIONAL_ID, self.name
        grant(cluster, self.user.name, *ids, [op.WRITE, op.DESCRIBE], prefixed=True)

    def start(self, cluster: SandboxCluster, state: str) -> None:
        settings = {
            **self.user.java(cluster),
            "application.id": self.name,
            "processing.guarantee": "exactly_once_v2",
            "num.stream.threads": "2",
            "session.timeout.ms": "6000",  # dead members are gone soon; nobody commits for a group that has some
            "state.dir": str(self.folder / state),
            "repartition.purge.interval.ms": "2000",  # the log starts of its repartition topic move all the time
        }
        properties = self.folder / "streams.properties"
        properties.touch(mode=0o600)
        properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()), encoding="utf-8")
        options = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Djava.io.tmpdir={self.folder}"]
        command = [str(find_java_home() / "bin" / "java"), *options, "-cp", self._jars, MAIN, str(properties)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)

    def gone_from(self, cluster: SandboxCluster) -> bool:
        """Whether no member of its group is left, not even a dead one."""
        admin = admin_client(cluster)  # kept: collected with a future pending, it would abandon the request
        found = admin.describe_consumer_groups([self.name])[self.name].result(TIMEOUT_S)
        return bool(found.state in (ConsumerGroupState.EMPTY, ConsumerGroupState.DEAD))

    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def works_on(self, cluster: SandboxCluster) -> None:
        """Until it has counted some more."""
        before = counted(cluster)

        def done() -> bool:
            assert self.runs(), self.log.read_text(encoding="utf-8")[-3000:]
            return counted(cluster) >= before + SOME

        wait_until(done, timeout_s=PATIENCE_S, why=f"{SOME} words are counted on {cluster.name}")

    def stop(self, with_signal: signal.Signals = signal.SIGTERM) -> None:
        if self._process is None:
            return
        self._process.send_signal(with_signal)
        try:
            self._process.wait(TIMEOUT_S)
        finally:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextmanager
def counting(pair: Pair, folder: Path) -> Iterator[tuple[WordCount, Lines]]:
    """The application and who feeds it, not started yet, with rights on east only."""
    admin = admin_client(pair.east)
    for future in admin.create_topics([NewTopic(topic, PARTITIONS) for topic in (INPUT, OUTPUT)]).values():
        future.result(TIMEOUT_S)
    grant(pair.east, APP, ResourceType.TOPIC, INPUT, [AclOperation.WRITE])
    lines = Lines(Login(APP, pair.east.passwords[APP]), INPUT, PARTITIONS)
    with login(pair) as user:
        application = WordCount(f"words-{user.name}", user, folder)
        application.may_run_on(pair.east)
        try:
            yield application, lines
        finally:
            lines.stop()
            application.stop()


def counts(output: list[Record]) -> dict[str, list[int]]:
    """What was said of each word, in the order of the log: a word's counts are all in one partition."""
    said = dict[str, list[int]]()
    for record in output:
        assert record.key is not None
        assert record.value is not None
        said.setdefault(record.key.decode(), []).append(struct.unpack(">q", record.value)[0])
    return said


def miscounted(found: dict[str, list[Record]]) -> dict[str, str]:
    """Words that were not counted 1, 2, 3, ... in this order, up to as often as they were written."""
    expected, said = words(found[INPUT]), counts(found[OUTPUT])
    return {
        word: f"{len(said.get(word, ()))} counts up to {max(said.get(word, (0,)))} of {expected[word]}"
        for word in expected | said
        if said.get(word, []) != list(range(1, expected[word] + 1))
    }


@about_data()
def assert_lines_are_there(found: dict[str, list[Record]], acknowledged: Collection[bytes]) -> None:
    """What was acknowledged, once."""
    values = [record.value for record in found[INPUT]]
    assert len(values) == len(set(values)), "a line is in the log twice"
    assert set(acknowledged) <= set(values), "an acknowledged line is lost"
