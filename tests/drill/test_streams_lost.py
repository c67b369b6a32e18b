"""The cluster of a Kafka Streams application is killed under load: what differs then is what the plan has named."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from mirror_core.kafka.client import ClusterClient
from mirror_core.mirrors import mirror_commands
from mirror_core.model.names import Offset, Partition
from mirror_core.model.run import RunMode, RunState
from tests.drill.applications import words
from tests.drill.streams import INPUT, OUTPUT, PATIENCE_S, SOME, counted, counting, counts, miscounted
from tests.support.cluster_admin import as_admin
from tests.support.dedicated_clusters import two_clusters
from tests.support.group_commits import fetch_offsets
from tests.support.kafka_clients import Pair, Record, read_all, read_topics
from tests.support.mirrored_topics import new_mirror
from tests.support.replicate_process import at_work
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.drill, pytest.mark.heavy]


@pytest.fixture(scope="module")
def doomed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with two_clusters(tmp_path_factory.mktemp("doomed")) as pair:
        yield pair


def committed(client: ClusterClient, group: str) -> dict[Partition, Offset]:
    found = fetch_offsets(client, group).committed
    return {partition: row.offset for partition, row in found.items()}


def in_doubt(records: list[Record], topic: str, offsets: dict[Partition, Offset]) -> list[Record]:
    """What was in the log when the application began anew, and is handled then, perhaps a second time."""
    return [record for record in records if record.offset >= offsets.get(Partition(topic, record.partition), 0)]


def test_what_is_counted_differently_is_what_the_group_reads_again(doomed: Pair, tmp_path: Path) -> None:
    east, west = doomed.east, doomed.west
    with counting(doomed, tmp_path) as (application, lines), ExitStack() as later:
        lines.start(east)
        application.start(east, "state")
        application.works_on(east)
        mirrored = new_mirror(doomed, tmp_path, "streams-.*", f"{application.name}-.*", groups=(application.name,))
        with at_work(mirrored, "local", tmp_path):
            application.works_on(east)
            wait_until(lambda: counted(west) > SOME, timeout_s=PATIENCE_S, why="the copy is close behind")
            mirror_commands.run_sync(mirrored.link)
            application.works_on(east)
            east.kill()
            later.callback(east.start)
            application.stop(signal.SIGKILL)
            lines.abandon()
            failover = mirrored.failover
            plan = failover.plan(RunMode.UNPLANNED)
            assert application.name in plan.groups
            assert failover.drive(failover.begin(plan.hash, RunMode.UNPLANNED).id).state is RunState.DONE
        repartition, _ = application.internal
        with as_admin(west) as client:
            offsets = committed(client, application.name)
        before = read_topics(west, [INPUT, repartition])
        doubtful = words(in_doubt(before[INPUT], INPUT, offsets))
        doubtful += Counter((r.key or b"").decode() for r in in_doubt(before[repartition], repartition, offsets))

        application.start(west, "anew")  # the old folder may know more than the changelog here
        lines.start(west)
        application.works_on(west)
        lines.stop()
        wanted = words(read_all(west, INPUT))

        def handled() -> bool:
            said = counts(read_all(west, OUTPUT))
            return all(max(said.get(word, [0])) >= often for word, often in wanted.items())

        wait_until(handled, timeout_s=PATIENCE_S, why="no word is skipped")
        application.stop()

        found = read_topics(west, [INPUT, OUTPUT])
        unexplained = {word: why for word, why in miscounted(found).items() if not doubtful[word]}
        assert not unexplained, unexplained
        said = counts(found[OUTPUT])
        assert all(max(said[word]) <= often + doubtful[word] for word, often in wanted.items())
        print(f"{len(miscounted(found))} words of {len(wanted)} differ; plan: {plan.groups[application.name]}")
