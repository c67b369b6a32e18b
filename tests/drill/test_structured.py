"""A Spark Structured Streaming application is moved over and home again: its checkpoint holds on either cluster."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq
import pytest
from confluent_kafka.admin import AclOperation, ResourceType

from mirror_core.sandbox.cluster import SandboxCluster
from mirror_core.sandbox.jars import ensure_jars
from mirror_core.spark.java_shim import spark_java_home
from tests.brokers import Pair, Record, grant, new_topic, read_all
from tests.copiers import at_work
from tests.drill.applications import Lines, Login, come_home, fail_over, login, words
from tests.mirroring import new_mirror
from tests.same import assert_same
from tests.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.spark, pytest.mark.drill]

LOCK: Final = Path(__file__).parents[1] / "kafka-spark.lock"
PARTITIONS: Final = 3
SOME: Final = 500
"""Lines: some seconds of work."""
PATIENCE_S: Final = 180.0
Place = tuple[int, int]
"""Partition and offset."""


class Application:
    """`tests.drill.structured`, started again and again with the same folder."""

    def __init__(self, user: Login, topic: str, folder: Path) -> None:
        self.user, self.topic, self.folder = user, topic, folder
        self.log = folder / "structured.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, cluster: SandboxCluster) -> None:
        self._began = self.log.stat().st_size if self.log.exists() else 0
        settings = {f"kafka.{key}": value for key, value in self.user.java(cluster).items()}
        settings |= {"subscribe": self.topic, "folder": str(self.folder)}
        settings["jars"] = ",".join(str(jar) for jar in ensure_jars(LOCK).glob("*.jar"))
        path = self.folder / "settings.json"
        path.touch(mode=0o600)
        path.write_text(json.dumps(settings), encoding="utf-8")
        command = [sys.executable, "-m", "tests.drill.structured", str(path)]
        environment = {**os.environ, "JAVA_HOME": str(spark_java_home()), "PYSPARK_PYTHON": sys.executable}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # with the JVM that it starts
            )

    def stop(self) -> None:
        """Orderly, when nobody writes any more: it handles all that is there first."""
        assert self._process is not None
        self._process.terminate()
        code = self._process.wait(PATIENCE_S)
        self.kill()
        assert code == 0, self.said

    def kill(self) -> None:
        """SIGKILL, to Python and to the JVM."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._process = None

    @property
    def said(self) -> str:
        """Since it was started last."""
        return self.log.read_bytes()[self._began :].decode(errors="replace")

    def lines(self) -> list[tuple[Place, str]]:
        """What the file sink has committed: files are part of it when its log names them, and not before."""
        found = list[tuple[Place, str]]()
        for path in sorted(self._committed()):
            found += [((r["partition"], r["offset"]), r["line"]) for r in pq.ParquetFile(path).read().to_pylist()]
        return found

    def _committed(self) -> set[Path]:
        named = set[Path]()
        for log in (self.folder / "lines" / "_spark_metadata").glob("[0-9]*"):
            rows = log.read_text(encoding="utf-8").splitlines()[1:]
            named |= {Path(json.loads(row)["path"].removeprefix("file://")) for row in rows}
        return named

    def counts(self) -> dict[str, list[int]]:
        """What was said of each word, batch by batch."""
        said = dict[str, list[int]]()
        folders = (self.folder / "counts").glob("batch=*")
        for folder in sorted(folders, key=lambda folder: int(folder.name.removeprefix("batch="))):
            for path in folder.glob("*.parquet"):
                for row in pq.ParquetFile(path).read().to_pylist():
                    said.setdefault(row["word"], []).append(row["count"])
        return said

    def works(self, lines: int) -> None:
        """Until both queries have handled so many lines in all."""

        def done() -> bool:
            assert self._process is not None
            assert self._process.poll() is None, self.said
            counted = sum(found[-1] for word, found in self.counts().items() if word.startswith("n"))
            return len(self._committed()) > 0 and len(self.lines()) >= lines and counted >= lines

        wait_until(done, timeout_s=PATIENCE_S, why=f"{lines} lines are handled")


@pytest.fixture
def user(pair: Pair) -> Iterator[Login]:
    with login(pair) as made:
        yield made


@pytest.fixture
def application(pair: Pair, user: Login, tmp_path: Path) -> Iterator[Application]:
    topic = new_topic(pair.east, PARTITIONS)
    grant(pair.east, user.name, ResourceType.TOPIC, topic, [AclOperation.READ])
    made = Application(user, topic, tmp_path)
    try:
        yield made
    finally:
        made.kill()


@pytest.fixture
def lines(pair: Pair, application: Application) -> Iterator[Lines]:
    grant(pair.east, "app", ResourceType.TOPIC, application.topic, [AclOperation.WRITE])
    made = Lines(Login("app", pair.east.passwords["app"]), application.topic, PARTITIONS)
    try:
        yield made
    finally:
        made.stop()


def assert_handled_once(application: Application, written: list[Record]) -> None:
    places = {(record.partition, record.offset): (record.value or b"").decode() for record in written}
    found = application.lines()
    twice = [place for place, often in Counter(place for place, _ in found).items() if often > 1]
    assert not twice, f"{len(twice)} lines were handled more than once, such as {twice[:3]}"
    assert dict(found) == places
    said, expected = application.counts(), words(written)
    assert {word: counts[-1] for word, counts in said.items()} == expected
    assert all(counts == sorted(set(counts)) for counts in said.values()), "a word was counted twice, or less"


def test_a_checkpoint_holds_over_there_and_home_again(
    pair: Pair, tmp_path: Path, application: Application, lines: Lines
) -> None:
    lines.start(pair.east)
    application.start(pair.east)
    mirrored = new_mirror(pair, tmp_path, application.topic)
    with at_work(mirrored, "local", tmp_path):
        application.works(SOME)
        fail_over(mirrored)  # under it: it was not told
    lines.denied()
    application.stop()

    handled = len(application.lines())
    lines.start(pair.west)
    application.start(pair.west)
    application.works(handled + SOME)
    come_home(mirrored)
    lines.denied()
    application.stop()

    handled = len(application.lines())
    lines.start(pair.east)
    application.start(pair.east)
    application.works(handled + SOME)
    lines.stop()
    application.works(len(read_all(pair.east, application.topic)))
    application.stop()

    written = read_all(pair.east, application.topic)
    assert {record.value for record in written} >= set(lines.acknowledged)
    assert_handled_once(application, written)
    mirrored.copy()
    assert_same(pair, [application.topic])
    print(f"{len(written)} lines, of which {len(lines.acknowledged)} were acknowledged")
