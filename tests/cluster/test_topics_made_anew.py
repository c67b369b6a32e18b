"""Topics that are deleted and made anew between two requests of a copying task: none is taken for the old one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from mirror_core.decide.failover_readiness import PointWeight
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.fetch_link import FetchLink
from mirror_core.kafka.produce_link import ProduceBatch, ProduceLink, Tag
from mirror_core.kafka.reassignment import TopicIds
from mirror_core.mirrors import mirror_commands
from mirror_core.mirrors.describe import describe_mirror, list_partitions_not_normal
from mirror_core.model.figures import FigureKey
from mirror_core.model.forecast import UncopiedReason
from mirror_core.model.mirror import FailureKind, PartitionState
from mirror_core.model.names import Partition
from mirror_core.model.run import RunMode
from mirror_core.model.timing import now_ms
from mirror_core.runbook.readiness_report import assess_readiness
from mirror_core.wire.fetch import FetchPosition, IsolationLevel
from tests.drill.one_task import one_task
from tests.support.broker_faults import killed
from tests.support.data_errors import about_data
from tests.support.failover_runs import app_topic
from tests.support.kafka3_source import older_source
from tests.support.kafka_clients import Pair, new_topic, produce, read_all, replace_topic
from tests.support.mirrored_topics import Mirrored, new_mirror, replicate

pytestmark = pytest.mark.cluster

SEND_FETCH, SEND = FetchLink.send_fetch, ProduceLink.send


@contextmanager
def before_fetch_at(monkeypatch: pytest.MonkeyPatch, offset: int, act: Callable[[], object]) -> Iterator[None]:
    """Of the copying task: no Fetch is at the broker then."""
    due = [act]

    def send_fetch(
        link: FetchLink, wanted: Iterable[FetchPosition], *, max_wait_ms: int, isolation: IsolationLevel
    ) -> None:
        positions = list(wanted)
        if due and isolation is IsolationLevel.READ_COMMITTED and {item.offset for item in positions} == {offset}:
            due.pop()()
        SEND_FETCH(link, positions, max_wait_ms=max_wait_ms, isolation=isolation)

    with monkeypatch.context() as patched:
        patched.setattr(FetchLink, "send_fetch", send_fetch)
        yield
    assert not due, "the task has fetched"


@contextmanager
def before_first_produce(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> Iterator[None]:
    due = [act]

    def send(link: ProduceLink[Tag], rows: Sequence[ProduceBatch[Tag]], timeout_s: float = 0.0) -> None:
        if due:
            due.pop()()
        SEND(link, rows, timeout_s)

    with monkeypatch.context() as patched:
        patched.setattr(ProduceLink, "send", send)
        yield
    assert not due, "the task has produced"


def check_new_source_topic(pair: Pair, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One broker, so both topics have leader epoch 0; the new one is filled beyond the position.

    The task itself has copied something: otherwise it compares the logs before it copies on.
    """
    topic = new_topic(pair.east, retention_ms="-1")
    partition, copied = Partition(topic, 0), produce(pair.east, topic, 100)
    mirrored = new_mirror(pair, folder, topic)
    mirrored.copy()
    copied += produce(pair.east, topic, 20)

    def replace() -> None:
        replace_topic(pair.east, topic)
        produce(pair.east, topic, 150)

    with before_fetch_at(monkeypatch, 120, replace), one_task(mirrored, [partition], {partition: 150}) as task:
        report = task.ends()
    with about_data():
        assert read_all(pair.west, topic) == copied, "nothing of the new topic"
        assert [receipt.next for receipt in report.receipts] == [120]
    assert [failure.kind for failure in report.failures] == [FailureKind.RECREATED]
    assert set(replicate(mirrored.link).failed) == {partition}
    assert mirrored.statuses[partition].kind is FailureKind.RECREATED


def test_a_source_topic_made_anew_between_two_fetches_is_not_copied_on(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_new_source_topic(pair, tmp_path, monkeypatch)


@pytest.mark.slow
def test_a_topic_made_anew_on_an_older_source_is_not_copied_on(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with older_source(pair, tmp_path) as older:
        check_new_source_topic(older, tmp_path, monkeypatch)


@pytest.mark.parametrize("copied", [0, 100])
def test_a_destination_topic_made_anew_before_a_produce_gets_nothing(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copied: int
) -> None:
    """At offset 0 the batch would land where it belongs, in a topic that is not the mirror's."""
    topic = new_topic(pair.east, retention_ms="-1")
    partition = Partition(topic, 0)
    produce(pair.east, topic, copied)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    produce(pair.east, topic, 30)
    with (
        before_first_produce(monkeypatch, lambda: replace_topic(pair.west, topic)),
        one_task(mirrored, [partition], {partition: copied + 30}) as task,
    ):
        report = task.ends()
    with about_data():
        assert read_all(pair.west, topic) == [], "it is somebody else's topic"
    assert [failure.kind for failure in report.failures] == [FailureKind.REPLACED]


def replaced_without_data_plane(pair: Pair, folder: Path) -> tuple[Mirrored, Partition]:
    topic = app_topic(pair, retention_ms="-1")
    produce(pair.east, topic, 50)
    mirrored = new_mirror(pair, folder, topic)
    mirrored.copy()
    replace_topic(pair.east, topic)
    produce(pair.east, topic, 500)
    return mirrored, Partition(topic, 0)


def test_what_a_sync_finds_made_anew_is_known_everywhere_when_the_source_is_dead(pair: Pair, tmp_path: Path) -> None:
    mirrored, partition = replaced_without_data_plane(pair, tmp_path)
    for _ in range(2):
        rows = {row.subject: row.code for row in mirror_commands.run_sync(mirrored.link).rows}
        assert rows[partition.topic] is FailureKind.RECREATED
    recorded = mirrored.statuses[partition]
    assert (recorded.state, recorded.kind) == (PartitionState.FAILED, FailureKind.RECREATED)
    lease = mirrored.state.leases[mirrored.name]
    assert lease.released, "a data plane may begin at once"
    with killed(pair.east):
        plan = mirrored.failover.plan(RunMode.UNPLANNED)
        described = describe_mirror(mirrored.link, mirrored.state, now_ms())
    assert plan.figures[FigureKey.UNCOPIED_REASONS] == {str(partition): UncopiedReason.RECREATED}
    assert plan.figures[FigureKey.LOST_UNKNOWN_PARTITIONS] == 1
    assert "partitions_uncopied" in {finding.code for finding in plan.warnings}
    assert [row.partition for row in list_partitions_not_normal(described)] == [str(partition)]
    readiness = assess_readiness(mirrored.link, mirrored.state, mirrored.services, with_drift=False)
    assert readiness.count_points(PointWeight.LOSS) == 1
    assert set(replicate(mirrored.link).failed) == {partition}
    assert mirrored.statuses[partition].kind is FailureKind.RECREATED


def test_a_sync_that_one_broker_contradicts_records_nothing_of_a_topic_made_anew(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be cut off from the controllers, and so may be the one that listed the topics."""
    mirrored, partition = replaced_without_data_plane(pair, tmp_path)
    old_id = mirrored.statuses[partition].source_topic_id

    def sync_by(ids: frozenset[str], unreachable: tuple[int, ...]) -> FailureKind | None:
        def fetch(client: ClusterClient, topics: Iterable[str]) -> TopicIds:
            return TopicIds(dict.fromkeys(topics, ids), unreachable)

        with monkeypatch.context() as patched:
            patched.setattr(mirror_commands, "fetch_topic_ids", fetch)
            mirror_commands.run_sync(mirrored.link)
        return mirrored.statuses[partition].kind

    assert sync_by(frozenset({old_id, "e" * 32}), ()) is None
    assert sync_by(frozenset({"e" * 32}), (7,)) is None
    assert sync_by(frozenset({"e" * 32}), ()) is FailureKind.RECREATED
