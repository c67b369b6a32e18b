"""What is known of a source that no longer answers: heartbeats, sightings, and the loss bound that a plan says."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Mapping
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from types import TracebackType

import pytest
from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AclOperation, AclPermissionType, ResourceType

from mirror_core.dataplane.heartbeat_writer import HeartbeatOutcome, HeartbeatWriter
from mirror_core.dataplane.source_monitor import SourceMonitor
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import load_config
from mirror_core.kafka.log_offsets import OffsetPoint, list_offsets
from mirror_core.kafka.topics import delete_records
from mirror_core.mirrors.describe import describe_mirror
from mirror_core.mirrors.mirror_facts import FactKey, MirrorFact
from mirror_core.model.errors import PartitionFailed
from mirror_core.model.figures import FigureKey
from mirror_core.model.forecast import PlanForecast, UncopiedReason
from mirror_core.model.mirror import FailureKind
from mirror_core.model.names import Offset, Partition, get_heartbeat_topic
from mirror_core.model.run import Plan, RunMode
from mirror_core.model.source_observation import TRANSACTION_OVER
from mirror_core.model.timing import now_ms
from mirror_core.state.writer import StateWriter, make_data_id
from mirrorbook_tools.sandbox.credentials import CONTROL
from tests.support.broker_faults import killed
from tests.support.checked_threads import beside
from tests.support.cluster_admin import as_admin
from tests.support.data_plane_thread import TIMEOUT_S, beating, beats, driving
from tests.support.dedicated_clusters import two_clusters
from tests.support.kafka_clients import Pair, grant, new_topic, produce, read_all
from tests.support.log_cutting import batch_of_100, lose_tails
from tests.support.mirrored_topics import Mirrored, new_mirror
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster


def test_heartbeats_are_numbered_timed_and_mirrored_like_data(pair: Pair, tmp_path: Path) -> None:
    topic = new_topic(pair.east, 1)
    produce(pair.east, topic, 10)
    mirrored = new_mirror(pair, tmp_path, topic)
    before = now_ms()
    with driving(mirrored):
        beating(mirrored, 3)
    found = beats(mirrored)
    numbers = [beat["number"] for beat in found]
    assert numbers == sorted(set(numbers))  # type: ignore[type-var]  # one that was not acknowledged in time is not there
    times = [beat["at_ms"] for beat in found]
    assert times == sorted(times)  # type: ignore[type-var]
    assert before <= min(times) <= max(times) <= now_ms()  # type: ignore[type-var, operator]
    assert {beat["mirror"] for beat in found} == {mirrored.name}
    assert found == beats(mirrored, "east")[: len(found)]
    mirrored.copy()  # also what was beaten in the last moment
    assert read_all(pair.west, get_heartbeat_topic(mirrored.name)) == read_all(
        pair.east, get_heartbeat_topic(mirrored.name)
    )


def test_the_bound_that_a_plan_says_holds_and_widens_when_the_source_is_killed_under_load(
    pair: Pair, tmp_path: Path
) -> None:
    topic = new_topic(pair.east, 3)
    produce(pair.east, topic, 10)
    mirrored = new_mirror(pair, tmp_path, topic)
    acknowledged = Writing(pair, topic)
    with driving(mirrored):
        beating(mirrored, 2)
        with acknowledged:
            wait_until(lambda: acknowledged.count() > 2_000, timeout_s=TIMEOUT_S, why="an application is at work")
            pair.east.kill()
        try:
            found = wait_until(
                lambda: at_rest(mirrored, topic), timeout_s=TIMEOUT_S, why="what is on its way has arrived"
            )
            state = mirrored.state
        finally:
            pair.east.start()
    assert found is not None
    first, later, positions = found
    seen = dict(state.source_observations[mirrored.name].get_ends())
    missing = {p: max(0, seen[p].end - end) for p, end in positions.items()}
    for partition, count in missing.items():
        row = first.partitions[str(partition)]
        assert (row[FigureKey.MIRROR_POSITION], row[FigureKey.MISSING_OFFSETS]) == (positions[partition], count)
    assert isinstance(first.forecast, PlanForecast)
    assert first.forecast.copied_unseen_offsets == sum(max(0, end - seen[p].end) for p, end in positions.items())
    assert said(first) == said(later)
    assert silence(later) > silence(first) > 0, "it widens"
    assert first.figures[FigureKey.HEARTBEAT_NUMBERS]
    complete = first.figures[FigureKey.COMPLETE_UP_TO_MS]
    assert isinstance(complete, Mapping)
    (whole_ms,) = complete.values()
    assert isinstance(whole_ms, int)
    assert 0 <= state.source_observations[mirrored.name].at_ms - whole_ms < 10_000, "it went along with the copy"
    lost = {key for key, at in acknowledged.told.items() if at[1] >= positions[at[0]]}
    assert [at for at in map(acknowledged.told.__getitem__, lost) if at[2] < whole_ms] == [], "it was not whole then"
    for partition, offset, when_ms in (acknowledged.told[key] for key in lost):
        known = offset < seen[partition].end
        assert known or when_ms >= seen[partition].at_ms, "acknowledged before the last look, and not in the bound"
    assert len(lost) <= sum(missing.values()) + sum(
        when_ms >= seen[p].at_ms for p, _, when_ms in acknowledged.told.values()
    )


class Writing:
    """A plain application with acks=all: what it was told, by (partition, offset), and when."""

    def __init__(self, pair: Pair, topic: str) -> None:
        self._producer = Producer({**pair.east.client_config("admin"), "acks": "all", "linger.ms": 1, "log_level": 0})
        self._topic = topic
        self._stop = threading.Event()
        self._beside = ExitStack()
        self.told: dict[int, tuple[Partition, Offset, int]] = {}

    def __enter__(self) -> Writing:
        self._beside.enter_context(beside(self._run, self._stop.set))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._beside.__exit__(kind, error, trace)

    def count(self) -> int:
        return len(self.told)

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            for _ in range(20):
                number += 1
                self._producer.produce(
                    self._topic, f"{number}", partition=number % 3, on_delivery=partial(self._heard, number)
                )
            self._producer.poll(0.01)
        self._producer.flush(1)

    def _heard(self, number: int, error: KafkaError | None, message: Message) -> None:
        if error is None:
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            self.told[number] = Partition(self._topic, partition), Offset(offset), now_ms()


def ends_of(pair: Pair, topic: str) -> dict[Partition, Offset]:
    with ClusterClient(load_config(pair.config_path).cluster("west")) as client:
        return list_offsets(client, [Partition(topic, index) for index in range(3)], OffsetPoint.LOG_END)


def at_rest(mirrored: Mirrored, topic: str) -> tuple[Plan, Plan, dict[Partition, Offset]] | None:
    """Two plans, and where the destination ended before, between and behind them; None: something arrived, records or
    what the data plane had seen last."""
    before, seen = ends_of(mirrored.pair, topic), last_seen_ms(mirrored)
    first, between = unplanned(mirrored), ends_of(mirrored.pair, topic)
    later = wait_until(lambda: widened(mirrored, first), timeout_s=TIMEOUT_S, why="the silence is longer")
    behind = ends_of(mirrored.pair, topic)
    still = before == between == behind and seen == last_seen_ms(mirrored)
    return (first, later, before) if later and still else None


def widened(mirrored: Mirrored, before: Plan) -> Plan | None:
    """Plans tell of it in tenths of a second, and may be made more quickly."""
    plan = unplanned(mirrored)
    return plan if silence(plan) > silence(before) else None


def last_seen_ms(mirrored: Mirrored) -> int:
    return mirrored.state.source_observations[mirrored.name].at_ms


def unplanned(mirrored: Mirrored) -> Plan:
    return mirrored.failover.plan(RunMode.UNPLANNED)


def said(plan: Plan) -> int:
    lost = plan.figures[FigureKey.LOST_OFFSETS]
    assert isinstance(lost, int)
    return lost


def silence(plan: Plan) -> float:
    seconds = plan.figures[FigureKey.SOURCE_SEEN_S]
    assert isinstance(seconds, float)
    return seconds


def described(mirrored: Mirrored) -> Mapping[FactKey, MirrorFact]:
    return describe_mirror(mirrored.link, mirrored.state, now_ms()).facts


def test_transactions_are_seen_with_their_first_offsets_until_they_are_copied(pair: Pair, tmp_path: Path) -> None:
    topic = new_topic(pair.east, 2)
    for index in (0, 1):
        produce(pair.east, topic, 3 + index, partition=index)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    writer = Producer({**pair.east.client_config("admin"), "transactional.id": f"tx-{topic}"})
    writer.init_transactions(TIMEOUT_S)
    writer.begin_transaction()
    for index in (0, 1):
        writer.produce(topic, b"half", partition=index)
    assert writer.flush(TIMEOUT_S) == 0
    hidden = described(mirrored)[FactKey.HIDDEN_OFFSETS]
    assert hidden.value == 2, "no data plane has run since they were written"
    link = mirrored.link
    lookout = SourceMonitor(link, None)
    lookout.set_recorded(mirrored.statuses)
    with closing(lookout), ClusterClient(link.source) as source, ClusterClient(link.destination) as destination:
        (seen,) = lookout.observe(source, destination).transactions
        assert (seen.id, seen.state) == (f"tx-{topic}", "Ongoing")
        assert [(part.partition.index, part.first) for part in seen.parts] == [(0, 3), (1, 4)]
        assert described(mirrored)[FactKey.LAG].value == 0, "nobody may read it"
        assert lookout.incomplete_since.keys() == {Partition(topic, 0), Partition(topic, 1)}
        with StateWriter(link.destination, make_data_id(mirrored.name)) as state:
            assert lookout.newest_observation is not None
            state.put(lookout.newest_observation)
        assert f"tx-{topic}" in described(mirrored)[FactKey.HIDDEN_OFFSETS].text
        writer.commit_transaction(TIMEOUT_S)
        over = wait_until(
            lambda: [t for t in lookout.observe(source, destination).transactions if t.state == TRANSACTION_OVER],
            timeout_s=TIMEOUT_S,
            why="the transaction is over",
        )
        assert [(part.first, part.end) for part in over[0].parts] == [(3, 5), (4, 6)]
        mirrored.copy()
        assert lookout.observe(source, destination).transactions == ()
        assert not lookout.incomplete_since
    assert described(mirrored)[FactKey.HIDDEN_OFFSETS].text == "none"


def test_without_the_right_to_make_the_topic_copying_goes_on_and_says_why(pair: Pair, tmp_path: Path) -> None:
    topic = new_topic(pair.east, 1)
    produce(pair.east, topic, 10)
    mirrored = new_mirror(pair, tmp_path, topic)
    heart = get_heartbeat_topic(mirrored.name)
    operations = [AclOperation.CREATE, AclOperation.WRITE]
    grant(pair.east, CONTROL, ResourceType.TOPIC, heart, operations, permission=AclPermissionType.DENY)
    with driving(mirrored) as words:
        wait_until(lambda: ends(pair, topic) == 10, timeout_s=TIMEOUT_S, why="records are copied")
        wait_until(
            lambda: mirrored.name in mirrored.state.source_observations,
            timeout_s=TIMEOUT_S,
            why="the source was looked at",
        )
    assert [line for line in words if line.startswith("no heartbeats, so a loss bound without their clock")]
    plan = mirrored.failover.plan(RunMode.UNPLANNED)
    assert plan.figures[FigureKey.HEARTBEAT_NUMBERS] == {}
    assert any("no heartbeat of east has arrived on west" in warning for warning in map(str, plan.warnings))


def ends(pair: Pair, topic: str) -> int:
    with ClusterClient(load_config(pair.config_path).cluster("west")) as client:
        if topic not in client.metadata([topic]).topics:
            return 0
        return list_offsets(client, [Partition(topic, 0)], OffsetPoint.LOG_END)[Partition(topic, 0)]


def test_no_heartbeat_is_written_behind_a_fence_and_they_go_on_after_an_abort(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hearts, start = list[HeartbeatWriter](), HeartbeatWriter.start

    def started(heart: HeartbeatWriter) -> None:
        hearts.append(heart)
        start(heart)

    monkeypatch.setattr(HeartbeatWriter, "start", started)
    topic = new_topic(pair.east, 1)
    produce(pair.east, topic, 10)
    mirrored = new_mirror(pair, tmp_path, topic)
    with driving(mirrored):
        beating(mirrored, 2)
        failover = mirrored.failover
        run = failover.begin(failover.plan(RunMode.PLANNED).hash).id
        failover.run_step(run, "prove")
        failover.run_step(run, "fence")
        held = hearts[-1].outcomes[HeartbeatOutcome.HELD]
        wait_until(
            lambda: hearts[-1].outcomes[HeartbeatOutcome.HELD] > held,
            timeout_s=TIMEOUT_S,
            why="no beat is on its way any more",
        )
        before, held = len(beats(mirrored, "east")), hearts[-1].outcomes[HeartbeatOutcome.HELD]
        wait_until(
            lambda: hearts[-1].outcomes[HeartbeatOutcome.HELD] > held + 2,
            timeout_s=TIMEOUT_S,
            why="the heart holds on and on",
        )
        assert len(beats(mirrored, "east")) == before
        failover.abort(run)
        wait_until(
            lambda: len(beats(mirrored, "east")) > before, timeout_s=TIMEOUT_S, why="the heart beats on after an abort"
        )


def test_what_a_source_rewrites_while_no_data_plane_runs_counts_at_the_next_one_s_first_look(
    pair: Pair, tmp_path: Path
) -> None:
    topic = new_topic(pair.east, retention_ms="-1")
    for first in range(0, 400, 100):
        batch_of_100(pair.east, topic, first)
    mirrored = new_mirror(pair, tmp_path, topic)
    with driving(mirrored):
        wait_until(lambda: ends(pair, topic) == 400, timeout_s=TIMEOUT_S, why="all is copied")
        wait_until(partial(was_seen_at, mirrored, topic, 400), timeout_s=TIMEOUT_S, why="the monitor has seen it")
    lose_tails(pair.east, {topic: 200})
    batch_of_100(pair.east, topic, 1_000)
    look_again(mirrored)
    with killed(pair.east):
        plan = mirrored.failover.plan(RunMode.UNPLANNED)
    assert plan.figures[FigureKey.UNCOPIED_SIZES] == {f"{topic}-0": 100}
    assert plan.figures[FigureKey.UNCOPIED_REASONS] == {f"{topic}-0": UncopiedReason.DIVERGED}


def test_what_a_source_deletes_before_it_is_copied_counts_as_lost(pair: Pair, tmp_path: Path) -> None:
    """Whether retention or a person deletes it after the last observation: nobody can tell once the source is dead."""
    topic = new_topic(pair.east, retention_ms="-1")
    batch_of_100(pair.east, topic, 0)
    mirrored = new_mirror(pair, tmp_path, topic)
    with driving(mirrored):
        wait_until(partial(was_seen_at, mirrored, topic, 100), timeout_s=TIMEOUT_S, why="the monitor has seen it")
        wait_until(lambda: ends(pair, topic) == 100, timeout_s=TIMEOUT_S, why="all is copied")
    for first in (100, 200):
        batch_of_100(pair.east, topic, first)
    look_again(mirrored)
    with as_admin(pair.east) as client:
        delete_records(client, {Partition(topic, 0): Offset(250)})
    with killed(pair.east):
        plan = mirrored.failover.plan(RunMode.UNPLANNED)
    assert plan.partitions[f"{topic}-0"][FigureKey.MISSING_OFFSETS] == 200


@pytest.mark.slow
@pytest.mark.parametrize(
    ("restarts", "runs_on", "epoch_s"),
    [(3, True, 600), (3, False, 600), (0, True, 600), (0, True, 3), (0, False, 600), (-1, False, 600)],
    ids=[
        "beside_a_data_plane",
        "without_one",
        "same_epoch",
        "same_epoch_and_tasks_that_end",
        "same_epoch_without_one",
        "epoch_ended_without_one",
    ],
)
def test_what_a_source_restored_from_an_older_copy_writes_counts_from_where_that_one_ends(
    tmp_path: Path, *, restarts: int, runs_on: bool, epoch_s: float
) -> None:
    with two_clusters(tmp_path / "restored") as pair:
        topic = new_topic(pair.east, retention_ms="-1")
        batch_of_100(pair.east, topic, 0)
        mirrored = new_mirror(pair, tmp_path, topic)
        older = tmp_path / "older"
        pair.east.terminate()
        shutil.copytree(pair.east.log_dir(), older)
        pair.east.start()
        for _ in range(restarts):  # leader epochs that the older copy has not seen; below 0: the other way round
            pair.east.terminate()
            pair.east.start()
        batch_of_100(pair.east, topic, 100)
        with driving(mirrored, epoch_s=epoch_s):
            wait_until(lambda: ends(pair, topic) == 200, timeout_s=TIMEOUT_S, why="all is copied")
            wait_until(partial(was_seen_at, mirrored, topic, 200), timeout_s=TIMEOUT_S, why="the monitor has seen it")
            if runs_on:
                restore(pair, older)
                for first in (500, 600, 700):
                    batch_of_100(pair.east, topic, first)
                wait_until(partial(was_seen_at, mirrored, topic, 400), timeout_s=TIMEOUT_S, why="the monitor looks")
                if not restarts:
                    wait_until(
                        lambda: mirrored.statuses[Partition(topic, 0)].kind is FailureKind.DIVERGED,
                        timeout_s=2 * TIMEOUT_S,
                        why="both logs are compared, since the connection was lost",
                    )
        if not runs_on:
            restore(pair, older)
            for first in (500, 600, 700):
                batch_of_100(pair.east, topic, first)
            for _ in range(-restarts):
                pair.east.terminate()
                pair.east.start()
            if restarts > 0:
                look_again(mirrored)
            else:
                with pytest.raises(PartitionFailed):
                    mirrored.copy()
                assert mirrored.statuses[Partition(topic, 0)].kind is FailureKind.DIVERGED
        assert ends(pair, topic) == 200
        with killed(pair.east):
            plan = mirrored.failover.plan(RunMode.UNPLANNED)
        assert plan.figures[FigureKey.UNCOPIED_SIZES] == {f"{topic}-0": 300}
        assert plan.figures[FigureKey.UNCOPIED_REASONS] == {f"{topic}-0": UncopiedReason.DIVERGED}


def restore(pair: Pair, older: Path) -> None:
    pair.east.terminate()
    shutil.rmtree(pair.east.log_dir())
    shutil.copytree(older, pair.east.log_dir())
    pair.east.start()


def was_seen_at(mirrored: Mirrored, topic: str, end: int) -> bool:
    observation = mirrored.state.source_observations.get(mirrored.name)
    seen = dict(observation.get_ends()).get(Partition(topic, 0)) if observation else None
    return seen is not None and seen.end == end


def look_again(mirrored: Mirrored) -> None:
    """The next data plane's first observation, before any of its tasks."""
    link, state = mirrored.link, mirrored.state
    monitor = SourceMonitor(link, state.source_observations[mirrored.name], state.partitions[mirrored.name])
    with closing(monitor), ClusterClient(link.source) as source, ClusterClient(link.destination) as destination:
        observation = monitor.observe(source, destination)
    with StateWriter(link.destination, make_data_id(mirrored.name)) as writer:
        writer.put(observation)
