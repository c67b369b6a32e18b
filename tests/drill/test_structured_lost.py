"""The cluster of a Spark Structured Streaming application is killed under load: its checkpoint is ahead of the copy."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from mirror_core.mirrors import mirror_commands
from mirror_core.model.names import Partition
from mirror_core.model.run import RunMode, RunState
from tests.drill.structured import PARTITIONS, PATIENCE_S, SOME, Application, assert_handled_once, streaming
from tests.support.cli_process import mirrorbook
from tests.support.dedicated_clusters import two_clusters
from tests.support.kafka_clients import Pair, Record, read_all, read_all_aiokafka
from tests.support.mirrored_topics import Mirrored, new_mirror
from tests.support.replicate_process import Progress, at_work
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.spark, pytest.mark.drill, pytest.mark.heavy]

REWIND: Final = Path(__file__).parents[2] / "docs" / "operate" / "rewind_checkpoint.py"


@pytest.fixture(scope="module")
def doomed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with two_clusters(tmp_path_factory.mktemp("doomed")) as pair:
        yield pair


def rewind(application: Application, mirrored: Mirrored) -> None:
    """As the page on applications says; what a sink of its own has by batch number is the application's business."""
    described = mirrorbook("mirror", "describe", mirrored.name, "--json", "--config", str(mirrored.config.path))
    for folders in (["lines-checkpoint", "lines"], ["counts-checkpoint"]):
        command = [sys.executable, str(REWIND), *(str(application.folder / folder) for folder in folders)]
        done = subprocess.run(command, input=described.stdout, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        print(done.stdout)
    last = max(int(path.name) for path in (application.checkpoint("counts") / "commits").glob("[0-9]*"))
    for number, folder in application.batches().items():
        if number > last:
            folder.rename(folder.with_name(f"rewound-{number}"))


def held(mirrored: Mirrored, topic: str) -> set[Record]:
    """What there is on the destination."""
    west = mirrored.pair.west
    return set(read_all(west, topic)) if Progress(mirrored, west.name, topic).exists() else set()


def test_what_was_read_and_not_copied_is_all_that_differs(doomed: Pair, tmp_path: Path) -> None:
    east, west = doomed.east, doomed.west
    with streaming(doomed, tmp_path) as (application, lines), ExitStack() as later:
        lines.start(east)
        application.start(east)
        mirrored = new_mirror(doomed, tmp_path, application.topic)
        with at_work(mirrored, "local", tmp_path) as copying:
            application.works(SOME)
            there = set(read_all(east, application.topic))
            why = "batches are copied to go back to"
            wait_until(lambda: held(mirrored, application.topic) >= there, timeout_s=PATIENCE_S, why=why)
            mirror_commands.run_sync(mirrored.link)
            copying.kill()
            # However far it is behind: beyond what the copy can have.
            application.works(len(read_all(east, application.topic)) + SOME)
            east.kill()
            later.callback(east.start)
            application.kill()
            lines.abandon()
        failover = mirrored.failover
        run = failover.begin(failover.plan(RunMode.UNPLANNED).hash, RunMode.UNPLANNED)
        assert failover.drive(run.id).state is RunState.DONE
        lmos = [mirrored.statuses[Partition(application.topic, index)].lmo or 0 for index in range(PARTITIONS)]
        before = dict(application.lines())

        application.start(west)
        assert application.ends() != 0, "it went on, ahead of the log"
        assert "Some data may have been lost" in application.said
        assert dict(application.lines()) == before

        rewind(application, mirrored)
        lines.start(west)
        application.start(west)
        application.works(len(before) + SOME)  # beyond what it had read there
        lines.stop()
        application.stop()

        written = read_all(west, application.topic)
        assert read_all_aiokafka(west, application.topic) == written
        assert_handled_once(application, written)
        after = dict(application.lines())
        lost = {place: line for place, line in before.items() if after.get(place) != line}
        assert lost, "it was not ahead of the copy"
        assert all(offset >= lmos[partition] for partition, offset in lost)
        assert not set(lost.values()) & set(after.values()), "a line came back at another place"
        missing = set(lines.acknowledged) - {record.value for record in written}
        print(f"{len(lost)} of {len(before)} handled lines, and {len(missing)} acknowledged ones, were not copied")
