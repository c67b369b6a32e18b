"""A Spark Structured Streaming application: started again and again with the same checkpoints, and what it has done."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq
from confluent_kafka.admin import AclOperation, ResourceType

from mirror_core.spark.session import find_spark_java_home
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from mirrorbook_tools.sandbox.credentials import APP
from mirrorbook_tools.sandbox.jars import ensure_jars
from tests.drill.applications import Lines, Login, login, words
from tests.support.data_errors import about_data
from tests.support.kafka_clients import Pair, Record, grant, new_topic
from tests.support.waiting import patience, wait_until

LOCK: Final = Path(__file__).parents[1] / "kafka-spark.lock"
PARTITIONS: Final = 3
SOME: Final = 500
"""Lines: some seconds of work."""
PATIENCE_S: Final = patience(180.0)
Place = tuple[int, int]
"""Partition and offset."""


class Application:
    """`tests.drill.structured_queries`, always with the same folder."""

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
        command = [sys.executable, "-m", "tests.drill.structured_queries", str(path)]
        environment = {**os.environ, "JAVA_HOME": str(find_spark_java_home()), "PYSPARK_PYTHON": sys.executable}
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
        assert self.ends() == 0, self.said

    def ends(self) -> int:
        """Wait for it; its exit code."""
        assert self._process is not None
        code = self._process.wait(PATIENCE_S)
        self.kill()
        return code

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

    def checkpoint(self, query: str) -> Path:
        return self.folder / f"{query}-checkpoint"

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

    def batches(self) -> dict[int, Path]:
        """What `counts` has written, by number, in their order."""
        found = {int(path.name.removeprefix("batch=")): path for path in (self.folder / "counts").glob("batch=*")}
        return dict(sorted(found.items()))

    def counts(self) -> dict[str, list[int]]:
        """What was said of each word, batch by batch."""
        said = dict[str, list[int]]()
        for folder in self.batches().values():
            for path in folder.glob("*.parquet"):
                for row in pq.ParquetFile(path).read().to_pylist():
                    said.setdefault(row["word"], []).append(row["count"])
        return said

    def handled(self) -> int:
        """Lines that both queries have committed: by their checkpoints, for all of their output is long to read."""
        return min(self._read(self.checkpoint(query)) for query in ("lines", "counts"))

    def _read(self, checkpoint: Path) -> int:
        last = max((int(path.name) for path in (checkpoint / "commits").glob("[0-9]*")), default=None)
        if last is None:
            return 0
        offsets = json.loads((checkpoint / "offsets" / str(last)).read_text(encoding="utf-8").splitlines()[-1])
        return int(sum(offsets[self.topic].values()))

    def works(self, lines: int) -> None:
        """Until it has handled so many lines in all."""

        def done() -> bool:
            assert self._process is not None
            assert self._process.poll() is None, self.said
            return self.handled() >= lines

        wait_until(done, timeout_s=PATIENCE_S, why=f"{lines} lines are handled")


@contextmanager
def streaming(pair: Pair, folder: Path) -> Iterator[tuple[Application, Lines]]:
    """The application and who feeds it, not started yet, with rights on east only."""
    topic = new_topic(pair.east, PARTITIONS)
    grant(pair.east, APP, ResourceType.TOPIC, topic, [AclOperation.WRITE])
    lines = Lines(Login(APP, pair.east.passwords[APP]), topic, PARTITIONS)
    with login(pair) as user:
        grant(pair.east, user.name, ResourceType.TOPIC, topic, [AclOperation.READ])
        application = Application(user, topic, folder)
        try:
            yield application, lines
        finally:
            application.kill()
            lines.stop()


@about_data()
def assert_handled_once(application: Application, written: list[Record]) -> None:
    places = {(record.partition, record.offset): (record.value or b"").decode() for record in written}
    found = application.lines()
    twice = [place for place, often in Counter(place for place, _ in found).items() if often > 1]
    assert not twice, f"{len(twice)} lines were handled more than once, such as {twice[:3]}"
    assert dict(found) == places
    said, expected = application.counts(), words(written)
    assert {word: counts[-1] for word, counts in said.items()} == expected
    assert all(counts == sorted(set(counts)) for counts in said.values()), "a word was counted twice, or less"
